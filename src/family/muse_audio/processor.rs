//! Muse's feature extractor: the waveform itself, filled up with silence to whole tokens.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::audio::{self, MAX_SECONDS, Sound};
use crate::checkpoint::Node;
use crate::family::{AudioProcessor, Grid};
use crate::pixels::{PixelValues, Samples};
use crate::{Dtype, Error, Result};

/// Rates in hertz that a tower may hear.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=192_000;

/// The feature extractor of one checkpoint.
pub struct Processor {
    rate: u32,
    token_samples: usize,
}

impl Processor {
    /// Reads the feature extractor's object, if there is one; its tokens must be the tower's.
    pub fn read(node: Option<Node<'_>>, token_samples: usize) -> Result<Self> {
        let Some(node) = node else { return Ok(Self { rate: 24_000, token_samples }) };
        let tower = token_samples as u32;
        let samples = node.u32_or("samples_per_token", tower, 1..=u32::MAX)?;
        if samples != tower {
            return Err(node.fault(format!(
                "has samples_per_token {samples}, but the tower of config.json has {tower}"
            )));
        }
        node.u32_or("feature_size", 1, 1..=1)?;
        node.f64_or("padding_value", 0.0, 0.0..=0.0)?;
        Ok(Self { rate: node.u32_or("sampling_rate", 24_000, RATES)?, token_samples })
    }
}

impl AudioProcessor for Processor {
    fn sample_rate(&self) -> u32 {
        self.rate
    }

    fn plan(&self, samples: u64) -> Result<Grid> {
        let tokens = samples.div_ceil(self.token_samples as u64);
        if samples == 0 || samples > MAX_SECONDS * u64::from(self.rate) {
            return Err(Error::media(format!(
                "a sound of {samples} samples at {} Hz: it has at least one, and lasts at most {MAX_SECONDS} seconds",
                self.rate
            )));
        }
        // Far below the limit: seconds and rate are bounded.
        Ok(Grid { frames: tokens as u32, height: 1, width: 1 })
    }

    fn preprocess(&self, sound: Sound, dtype: Dtype) -> Result<PixelValues> {
        let mut samples = match sound.rate == self.rate {
            true => sound.samples,
            false => audio::resample(&sound.samples, sound.rate, self.rate)?,
        };
        let rows = self.plan(samples.len() as u64)?.patches();
        samples.resize(rows * self.token_samples, 0.0);
        let samples = match dtype {
            Dtype::F32 => Samples::F32(samples),
            Dtype::Bf16 => {
                let mut rounded = vec![bf16::ZERO; samples.len()];
                rounded.convert_from_f32_slice(&samples);
                Samples::Bf16(rounded)
            }
            Dtype::F16 => {
                let mut rounded = vec![f16::ZERO; samples.len()];
                rounded.convert_from_f32_slice(&samples);
                if !rounded.iter().all(|sample| sample.is_finite()) {
                    return Err(Error::media(format!(
                        "wav sound holds samples beyond {}, which a tower in float16 cannot take: full scale is 1; send \
                         quieter ones, or use bfloat16 or float32",
                        f16::MAX
                    )));
                }
                Samples::F16(rounded)
            }
        };
        Ok(PixelValues { rows, columns: self.token_samples, samples })
    }
}
