//! Bindings of `crate::audio` on NumPy arrays.

use numpy::PyArray1;
use pyo3::prelude::*;

use super::image::content;
use crate::audio::{self, MAX_RATE, Sound};
use crate::{Error, Result};

/// (float32 samples of all channels' mean, samples a second), resampled if `sample_rate` is given.
#[pyfunction]
#[pyo3(signature = (data, sample_rate=None))]
fn decode_audio<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    sample_rate: Option<u32>,
) -> PyResult<(Bound<'py, PyArray1<f32>>, u32)> {
    let content = content(data)?;
    let bytes = content.as_ref();
    let Sound { rate, samples } = py.detach(|| -> Result<Sound> {
        let sound = audio::decode(bytes)?;
        match sample_rate {
            None => Ok(sound),
            Some(rate) if (1..=MAX_RATE).contains(&rate) => {
                Ok(Sound { rate, samples: audio::resample(&sound.samples, sound.rate, rate)? })
            }
            Some(rate) => {
                Err(Error::argument(format!("sample_rate is {rate}: it is from 1 to {MAX_RATE} Hz")))
            }
        }
    })?;
    Ok((PyArray1::from_vec(py, samples), rate))
}

/// Adds the function of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decode_audio, module)?)
}
