//! Finds the Torch of the chosen Python and compiles the bridge on its stable ABI.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Oldest Torch whose headers hold what the bridge includes.
const OLDEST_HEADERS: (u32, u32) = (2, 14);
/// Oldest Torch that the compiled bridge runs under.
const TARGET_VERSION: &str = "0x020b000000000000";
const SOURCES: &[&str] = &[
    "api",
    "attention",
    "common",
    "conv",
    "cuda",
    "kernels",
    "linear",
    "norm",
    "patches",
    "results",
    "tensor",
];
/// Kernel files and the instruction sets they are compiled for, on x86-64.
const KERNELS: &[(&str, &[&str])] = &[
    ("kernels_base", &[]),
    ("kernels_avx2", &["-mavx2", "-mf16c"]),
    ("kernels_avx512", &["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mf16c"]),
];

/// Compiles `src/torch/bridge` into `libmm_torch.so` and puts it beside the Python package's sources.
pub fn compile() -> Result<(), String> {
    println!("cargo:rerun-if-changed=build/bridge.rs");
    println!("cargo:rerun-if-changed=src/torch/bridge");
    println!("cargo:rerun-if-changed=cuda/api.h");
    for variable in ["MM_TORCH_PYTHON", "PYO3_PYTHON", "MM_BRIDGE_DIR", "CXX", "CXXFLAGS"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let torch = find_torch()?;
    println!("cargo:rerun-if-changed={}", torch.join("version.py").display());
    check_version(&torch)?;

    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let mut objects = build(&torch).files(SOURCES.iter().map(|name| source(name))).try_objects()?;
    for (name, flags) in KERNELS {
        let mut kernels = build(&torch);
        // One rounding per operation: the bits must not depend on the instruction set.
        kernels.opt_level(3).flags(["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]);
        if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
            kernels.flags(*flags);
        } else if !flags.is_empty() {
            continue;
        }
        objects.extend(kernels.file(source(name)).try_objects()?);
    }
    let library = out.join("libmm_torch.so");
    link(&torch, &objects, &library)?;
    println!("cargo:rustc-env=MM_TORCH_BRIDGE={}", library.display());
    place_beside_package(&library)
}

fn source(name: &str) -> PathBuf {
    Path::new("src/torch/bridge").join(name).with_extension("cpp")
}

/// The folder of the `torch` package, without importing it.
fn find_torch() -> Result<PathBuf, String> {
    let python = env::var("MM_TORCH_PYTHON").or_else(|_| env::var("PYO3_PYTHON")).unwrap_or("python3".into());
    let script = "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')";
    let output = Command::new(&python).args(["-c", script]).output().map_err(|_| {
        format!("cannot run {python:?}: set MM_TORCH_PYTHON to the Python whose Torch to build for")
    })?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || text.is_empty() {
        return Err(format!(
            "{python:?} has no Torch: install torch 2.14 or newer there, or set MM_TORCH_PYTHON"
        ));
    }
    Ok(PathBuf::from(text))
}

fn check_version(torch: &Path) -> Result<(), String> {
    let text = fs::read_to_string(torch.join("version.py"))
        .map_err(|_| "the Torch found has no version.py: it is not a complete installation".to_owned())?;
    let version = text.split("__version__ = '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or("");
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < OLDEST_HEADERS {
        let (major, minor) = OLDEST_HEADERS;
        return Err(format!(
            "Torch {version:?} is too old to build against: headers of {major}.{minor} or newer are needed"
        ));
    }
    if !torch.join("include/torch/csrc/stable/c/shim.h").is_file() {
        return Err(format!("Torch {version} has no stable ABI headers: it is not a complete installation"));
    }
    Ok(())
}

fn build(torch: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .opt_level(2)
        .pic(true)
        .debug(false)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .cargo_metadata(false)
        .flag("-fvisibility=hidden")
        .flag("-fno-semantic-interposition")
        .define("TORCH_TARGET_VERSION", TARGET_VERSION)
        .flag("-isystem")
        .flag(torch.join("include"));
    build
}

trait Objects {
    fn try_objects(&mut self) -> Result<Vec<PathBuf>, String>;
}

impl Objects for cc::Build {
    fn try_objects(&mut self) -> Result<Vec<PathBuf>, String> {
        self.try_compile_intermediates()
            .map_err(|error| format!("the bridge does not compile (is g++ installed?): {error}"))
    }
}

/// Links against libtorch_cpu alone and records no path to it: the host's Torch is in the process already.
fn link(torch: &Path, objects: &[PathBuf], library: &Path) -> Result<(), String> {
    let status = build(torch)
        .get_compiler()
        .to_command()
        .arg("-shared")
        .args(["-Wl,-soname,libmm_torch.so", "-Wl,--as-needed", "-Wl,-z,now", "-Wl,-z,relro", "-s"])
        .arg("-o")
        .arg(library)
        .args(objects)
        .arg("-L")
        .arg(torch.join("lib"))
        // libgcc's archive before its shared library: half-precision helpers are in no libgcc_s older than GCC 12's.
        .args(["-ltorch_cpu", "-ldl", "-lgcc"])
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => Err("the bridge does not link: is this Torch a complete installation with lib/libtorch_cpu.so?"
            .into()),
    }
}

/// `maturin develop` finds the bridge where it finds the package's Python files. build_wheel.py, which keeps one
/// build beside another, names a folder of its own with `MM_BRIDGE_DIR`.
fn place_beside_package(library: &Path) -> Result<(), String> {
    let folder = env::var_os("MM_BRIDGE_DIR").map_or("python/mm_libtorch_encoder".into(), PathBuf::from);
    fs::create_dir_all(&folder).map_err(|error| format!("making the folder of the bridge: {error}"))?;
    let target = &folder.join("libmm_torch.so");
    let bytes = fs::read(library).map_err(|error| format!("reading the linked bridge: {error}"))?;
    if fs::read(target).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    // A process may have the old file mapped: replace the name, never the contents.
    let fresh = target.with_extension("so.new");
    fs::write(&fresh, bytes)
        .and_then(|()| fs::rename(&fresh, target))
        .map_err(|error| format!("placing the bridge beside the Python package: {error}"))
}
