//! Compiles the C and C++ parts: the libjpeg shim, and with feature `torch` the LibTorch bridge.

#[path = "build/bridge.rs"]
mod bridge;
#[path = "build/decoders.rs"]
mod decoders;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let torch = std::env::var_os("CARGO_FEATURE_TORCH").is_some();
    let compiled = decoders::compile().and_then(|()| if torch { bridge::compile() } else { Ok(()) });
    if let Err(sentence) = compiled {
        println!("cargo::error={sentence}");
        std::process::exit(1);
    }
}
