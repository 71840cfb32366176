//! Demonstration checkpoints: a published layout filled with seeded random weights.

use std::path::Path;

use half::{bf16, f16};

use super::TensorSpec;
use super::file::failure;
use super::write::write_safetensors;
use crate::{Dtype, Error, Result};

/// Elements made at a time.
const STEP: usize = 4096;

/// Mean and standard deviation of a tensor's values, by its name without prefix and its shape.
pub type Scale<'a> = &'a dyn Fn(&str, &[usize]) -> (f32, f32);

/// Writes a checkpoint into the folder `root`, which is made or must be empty: each of `files` (name, text), and
/// `model.safetensors` with the tensors `specs` under `prefix`, of type `dtype`.
///
/// Values are normal with the mean and deviation that `scale` gives. They depend on `seed` and the tensor's name
/// alone and are the same on every machine. Memory does not grow with the size of the tower.
///
/// # Errors
/// `Argument` if `root` holds anything, `Checkpoint` if writing fails.
pub fn write_demo(
    root: &Path,
    files: &[(&str, &str)],
    prefix: &str,
    specs: &[TensorSpec],
    seed: u64,
    dtype: Dtype,
    scale: Scale,
) -> Result<()> {
    let place = format!("{root:?}");
    let failed = |error: std::io::Error| failure(&place, "written", &error);
    std::fs::create_dir_all(root).map_err(failed)?;
    if std::fs::read_dir(root).map_err(failed)?.next().is_some() {
        return Err(Error::argument(format!("{place} is not empty: give a new folder")));
    }
    for (name, text) in files {
        std::fs::write(root.join(name), text).map_err(|error| failure(name, "written", &error))?;
    }
    let parts: Vec<_> = specs.iter().flat_map(TensorSpec::parts).collect();
    let named: Vec<_> = parts
        .iter()
        .map(|part| TensorSpec::new(format!("{prefix}{}", part.name), part.shape.clone()))
        .collect();
    let streams: Vec<_> =
        parts.iter().map(|part| Stream::new(seed, &part.name, scale(&part.name, &part.shape))).collect();
    let mut values = [0.0; STEP];
    write_safetensors(&root.join("model.safetensors"), &named, dtype, |tensor, first, out| {
        let stream = streams.get(tensor).ok_or_else(|| Error::internal("a tensor without values"))?;
        for (step, bytes) in out.chunks_mut(STEP * dtype.size()).enumerate() {
            let values = values.get_mut(..bytes.len() / dtype.size()).unwrap_or(&mut []);
            stream.fill(first + step * STEP, values);
            store(dtype, values, bytes);
        }
        Ok(())
    })
}

/// Means and deviations under which a tower of any depth keeps its activations in range, and under which no weight
/// is idle: linear weights N(0, 0.8 / sqrt(inputs)), biases N(0, 0.03), norm weights N(1, 0.1), norm biases
/// N(0, 0.05), tables of positions and tokens and bare vectors N(0, 0.3).
pub fn default_scale(name: &str, shape: &[usize]) -> (f32, f32) {
    let (module, last) = name.rsplit_once('.').unwrap_or(("", name));
    let module = module.rsplit_once('.').map_or(module, |(_, module)| module);
    let norm = module.contains("norm") || module.starts_with("ln");
    match (last, shape) {
        ("bias", _) if norm => (0.0, 0.05),
        ("bias", _) => (0.0, 0.03),
        ("weight", [_]) => (1.0, 0.1),
        _ if ["pos_emb", "position_embedding", "token"].iter().any(|part| name.contains(part)) => (0.0, 0.3),
        (_, [_, inputs @ ..]) if !inputs.is_empty() => {
            (0.0, 0.8 / (inputs.iter().map(|&dim| dim as f32).product::<f32>()).sqrt())
        }
        _ => (0.0, 0.3),
    }
}

/// The values of one tensor. Element `i` is a function of key and `i`, so that steps need no state between them.
struct Stream {
    key: u64,
    mean: f32,
    deviation: f32,
}

impl Stream {
    fn new(seed: u64, name: &str, (mean, deviation): (f32, f32)) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(&seed.to_le_bytes());
        hash.update(name.as_bytes());
        let mut key = [0; 8];
        hash.finalize_xof().fill(&mut key);
        Self { key: u64::from_le_bytes(key), mean, deviation }
    }

    fn fill(&self, first: usize, values: &mut [f32]) {
        for (i, value) in values.iter_mut().enumerate() {
            *value = self.mean + self.deviation * normal(self.key, (first + i) as u64);
        }
    }
}

/// A value of nearly normal distribution, mean 0 and variance 1: the sum of twelve uniform numbers of 16 bits.
///
/// Integer sums are the same on every machine, which logarithms and cosines of a mathematical library are not. The
/// sum differs from the normal curve in its tails alone: no value is beyond 6.
fn normal(key: u64, counter: u64) -> f32 {
    const LANES: u64 = 0x0000_ffff_0000_ffff;
    /// The mean of twelve numbers from 0 to 65535.
    const MEAN: i64 = 6 * 65535;
    let mut pairs = 0;
    for part in 0..3 {
        let bits = mix(key.wrapping_add(counter.wrapping_mul(3).wrapping_add(part).wrapping_mul(GOLDEN)));
        pairs += (bits & LANES) + ((bits >> 16) & LANES);
    }
    let sum = (pairs & 0xffff_ffff) + (pairs >> 32);
    (sum as i64 - MEAN) as f32 / 65536.0
}

/// The odd number nearest to 2^64 over the golden ratio: steps by it are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's mixing of a counter into bits that pass for random.
fn mix(counter: u64) -> u64 {
    let x = (counter ^ (counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Stores `values` as `dtype`, rounded to nearest, ties to even, in little-endian order.
fn store(dtype: Dtype, values: &[f32], bytes: &mut [u8]) {
    match dtype {
        Dtype::F32 => {
            for (bytes, value) in bytes.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        Dtype::Bf16 => {
            for (bytes, value) in bytes.chunks_exact_mut(2).zip(values) {
                bytes.copy_from_slice(&bf16::from_f32(*value).to_le_bytes());
            }
        }
        Dtype::F16 => {
            for (bytes, value) in bytes.chunks_exact_mut(2).zip(values) {
                bytes.copy_from_slice(&f16::from_f32(*value).to_le_bytes());
            }
        }
    }
}
