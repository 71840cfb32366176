//! Writing safetensors files.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};

use super::TensorSpec;
use super::file::failure;
use crate::{Dtype, Error, Result};

/// Bytes that one step makes and writes; a multiple of every element's size.
const STEP_BYTES: usize = 256 << 10;

/// Writes the tensors `specs`, all of type `dtype`, to the file `path`, which must not exist.
///
/// `fill(i, first, out)` makes the bytes of tensor `i` from its element `first` on; `out` holds whole elements. Only
/// one step's bytes are in memory. The file is written under another name and moved into place when it is whole.
///
/// # Errors
/// `Argument` if the file exists or the tensors' size overflows, `Checkpoint` if writing fails, and what `fill`
/// returns.
pub fn write_safetensors(
    path: &Path,
    specs: &[TensorSpec],
    dtype: Dtype,
    mut fill: impl FnMut(usize, usize, &mut [u8]) -> Result<()>,
) -> Result<()> {
    if path.exists() {
        return Err(Error::argument(format!("{path:?} exists already: give another path, or remove it")));
    }
    let (header, lengths) = header(specs, dtype)?;
    let place = format!("{path:?}");
    let mut parts = path.as_os_str().to_owned();
    parts.push(".part");
    let parts = Path::new(&parts);
    let write = || -> Result<()> {
        let failed = |error: std::io::Error| failure(&place, "written", &error);
        let mut file = File::create(parts).map_err(failed)?;
        file.write_all(&header).map_err(failed)?;
        let mut buffer = vec![0; STEP_BYTES];
        for (i, len) in lengths.into_iter().enumerate() {
            for start in (0..len).step_by(STEP_BYTES) {
                let out = buffer.get_mut(..STEP_BYTES.min(len - start)).unwrap_or(&mut []);
                fill(i, start / dtype.size(), out)?;
                file.write_all(out).map_err(failed)?;
            }
        }
        std::fs::rename(parts, path).map_err(failed)
    };
    write().inspect_err(|_| {
        // The error that ended the writing is the one to tell.
        let _ = std::fs::remove_file(parts);
    })
}

/// The file's first bytes up to the data, and each tensor's length in bytes.
fn header(specs: &[TensorSpec], dtype: Dtype) -> Result<(Vec<u8>, Vec<usize>)> {
    let mut entries = Vec::with_capacity(specs.len());
    let mut lengths = Vec::with_capacity(specs.len());
    let mut end = 0_usize;
    for spec in specs {
        let too_large = || Error::argument(format!("the tensor {:?} is too large for a file", spec.name));
        let len = spec.shape.iter().try_fold(dtype.size(), |len, &dim| len.checked_mul(dim));
        let start = end;
        end = len.and_then(|len| start.checked_add(len)).ok_or_else(too_large)?;
        lengths.push(end - start);
        let info = TensorInfo { dtype: stored(dtype), shape: spec.shape.clone(), data_offsets: (start, end) };
        entries.push((spec.name.clone(), info));
    }
    let refuse = || Error::internal("the header of a safetensors file could not be made");
    let about = std::iter::once(("format".to_owned(), "pt".to_owned())).collect();
    let metadata = Metadata::new(Some(about), entries).map_err(|_| refuse())?;
    let mut json = serde_json::to_vec(&metadata).map_err(|_| refuse())?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    Ok((bytes, lengths))
}

fn stored(dtype: Dtype) -> safetensors::Dtype {
    match dtype {
        Dtype::F32 => safetensors::Dtype::F32,
        Dtype::Bf16 => safetensors::Dtype::BF16,
        Dtype::F16 => safetensors::Dtype::F16,
    }
}
