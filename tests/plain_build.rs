//! Without any feature the library is plain: no thread is started, and neither Torch nor Python is linked.
//!
//! One test in this file on purpose: a second one would run beside it and change the thread count.
#![cfg(all(target_os = "linux", not(feature = "parallel"), not(feature = "torch")))]

use std::fs;

#[test]
fn preprocessing_starts_no_thread_and_loads_no_torch() {
    let threads = || fs::read_dir("/proc/self/task").expect("procfs").count();
    let before = threads();
    preprocess();
    assert_eq!(threads(), before);
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs");
    for library in ["libtorch", "libc10", "libpython", "libcuda", "libmm_torch"] {
        assert!(!maps.contains(library), "{library} is loaded");
    }
}
