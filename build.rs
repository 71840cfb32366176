//! Compiles the C and C++ parts: the libjpeg shim, and with feature `torch` the LibTorch bridge.

#[path = "build/bridge.rs"]
mod bridge;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_TORCH").is_some()
        && let Err(sentence) = bridge::compile()
    {
        println!("cargo::error={sentence}");
        std::process::exit(1);
    }
}
