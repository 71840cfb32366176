//! Encoded bytes to samples of one channel: sniff, check limits from the header, decode, mix down, resample.

mod format;
mod resample;
mod wav;

pub(crate) use format::name as format_name;
pub use resample::{resample, resampled_length};

use crate::{Error, Result};

/// 256 MiB: five minutes of eight channels in 24 bits at 96 kHz are a fifth less.
pub const MAX_BYTES: usize = 256 << 20;
/// Longest sound in seconds.
pub const MAX_SECONDS: u64 = 300;
/// Highest sampling rate in hertz.
pub const MAX_RATE: u32 = 768_000;
/// Largest sample, where full scale is 1: 2^100. Below it, resampling and towers in float32 or bfloat16 stay finite, as
/// their references do; above it, sums soon do not.
pub const MAX_LEVEL: f32 = 1_267_650_600_228_229_401_496_703_205_376.0;

/// Samples of one channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Sound {
    /// Samples a second.
    pub rate: u32,
    /// Values up to [`MAX_LEVEL`], full scale -1 to 1.
    pub samples: Vec<f32>,
}

/// What the header says, before any sample is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Lower-case name of the container: "wav".
    pub format: &'static str,
    /// Samples a second.
    pub rate: u32,
    /// Channels, which are averaged.
    pub channels: u16,
    /// Samples of each channel.
    pub frames: u64,
}

/// Reads rate and length, checking limits. Decodes no sample.
///
/// # Errors
/// [`ErrorKind::Media`](crate::ErrorKind::Media): the bytes are no sound that can be decoded, empty, or over a limit.
pub fn header(bytes: &[u8]) -> Result<Header> {
    Ok(read(bytes)?.header)
}

/// Decodes one sound and averages its channels. The length is checked before memory is allocated.
///
/// # Errors
/// [`ErrorKind::Media`](crate::ErrorKind::Media): the bytes are no sound that can be decoded, damaged, or over a limit;
/// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory): the host has no memory for the samples.
pub fn decode(bytes: &[u8]) -> Result<Sound> {
    let wav = read(bytes)?;
    let samples = wav.mono()?;
    if samples.iter().all(|sample| sample.abs() <= MAX_LEVEL) {
        return Ok(Sound { rate: wav.header.rate, samples });
    }
    Err(Error::media(
        "wav sound holds NaN, infinity or a value beyond 2^100: send finite samples, of which 1 is full scale",
    ))
}

fn read(bytes: &[u8]) -> Result<wav::Wav<'_>> {
    format::check(bytes)?;
    if bytes.len() > MAX_BYTES {
        return Err(Error::media(format!(
            "wav sound of {} bytes is over the limit of {MAX_BYTES} bytes: send a smaller file",
            bytes.len()
        )));
    }
    let wav = wav::Wav::read(bytes)?;
    let Header { rate, frames, .. } = wav.header;
    if !(1..=MAX_RATE).contains(&rate) {
        return Err(Error::media(format!("wav sound of {rate} Hz: a rate is from 1 to {MAX_RATE} Hz")));
    }
    if frames == 0 {
        return Err(Error::media("wav sound has no samples: send at least one"));
    }
    if frames > MAX_SECONDS * u64::from(rate) {
        return Err(Error::media(format!(
            "wav sound of {frames} samples at {rate} Hz is over the limit of {MAX_SECONDS} seconds: send a shorter one"
        )));
    }
    Ok(wav)
}
