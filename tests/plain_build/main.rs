//! Without any feature the library is plain: no thread is started, and neither Torch nor Python is linked.
//!
//! One test in this program on purpose: a second one would run beside it and change the thread count.
#![cfg(all(target_os = "linux", not(feature = "parallel"), not(feature = "torch")))]

use std::fs;
use std::process::Command;

use mm_libtorch_encoder::Dtype;
use mm_libtorch_encoder::image::{self, DecodePolicy, Limits};
use mm_libtorch_encoder::pixels::{
    self, Arithmetic, Canvas, Filter, Normalize, PassOrder, PatchLayout, PatchOrder, Recipe, SampleOrder,
};

const FILES: [&[u8]; 2] = [include_bytes!("gradient.jpg"), include_bytes!("gradient.png")];

/// From encoded bytes to a patch matrix, once through every stage.
fn preprocess(bytes: &[u8]) -> pixels::PixelValues {
    let (policy, limits) = (DecodePolicy::default(), Limits::default());
    let header = image::header(bytes, &policy, &limits).expect("a good header");
    assert_eq!((header.width, header.height), (40, 24));
    let image = image::decode(bytes, &policy, &limits).expect("a good image");
    let recipe = Recipe {
        canvas: Canvas { height: 32, width: 64, content_height: 32, content_width: 64, top: 0, left: 0 },
        filter: Filter::Bicubic,
        arithmetic: Arithmetic::Pillow(PassOrder::Pillow13),
        normalize: Normalize::pil(1.0 / 255.0, [0.5; 3], [0.5; 3]),
        layout: PatchLayout {
            patch: 16,
            frames: 2,
            order: PatchOrder::Blocks(2),
            samples: SampleOrder::ChannelFrame,
        },
        dtype: Dtype::F32,
    };
    pixels::prepare(&image, &recipe).expect("a good recipe")
}

#[test]
fn preprocessing_starts_no_thread_and_loads_neither_torch_nor_python() {
    let threads = || fs::read_dir("/proc/self/task").expect("procfs").count();
    let before = threads();
    for bytes in FILES {
        let matrix = preprocess(bytes);
        assert_eq!((matrix.rows, matrix.columns), (8, 3 * 2 * 16 * 16));
        assert_eq!(threads(), before);
    }
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs");
    let mapped: Vec<_> =
        maps.lines().filter_map(|line| line.rsplit_once('/').map(|(_, name)| name)).collect();
    assert!(mapped.iter().any(|name| name.starts_with("libc.so")), "the maps are those of this process");
    for part in ["torch", "c10", "python", "cuda"] {
        assert!(!mapped.iter().any(|name| name.contains(part)), "{part} is loaded: {mapped:?}");
    }
    plain_dependencies();
}

/// The crate's dependencies without any feature hold no runtime, cache, thread pool or Python.
fn plain_dependencies() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let text = String::from_utf8(tree.stdout).expect("names are text");
    let names: Vec<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"blake3") && names.contains(&"mm-libtorch-encoder"), "{names:?}");
    for part in ["foyer", "tokio", "futures", "parking_lot", "rayon", "crossbeam", "pyo3", "libloading"] {
        assert!(!names.iter().any(|name| name.starts_with(part)), "{part} is among {names:?}");
    }
}
