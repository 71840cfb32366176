//! Compiles the shim over libjpeg-turbo and links the library itself, shared.

/// Compiles `src/image/jpeg/shim.c`.
pub fn compile() -> Result<(), String> {
    for file in ["build/decoders.rs", "src/image/jpeg/shim.c", "src/image/jpeg/shim.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    cc::Build::new()
        .file("src/image/jpeg/shim.c")
        .std("c11")
        .warnings_into_errors(true)
        .flag("-Wall")
        .flag("-Wextra")
        .flag("-fvisibility=hidden")
        .try_compile("mm_jpeg_shim")
        .map_err(|error| {
            format!("the libjpeg shim does not compile; it needs libjpeg-turbo's headers (libjpeg62-turbo-dev): {error}")
        })?;
    println!("cargo:rustc-link-lib=dylib=jpeg");
    Ok(())
}
