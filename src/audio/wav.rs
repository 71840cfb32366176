//! WAV: PCM of 8, 16, 24 and 32 bits and floating point of 32 and 64.
//!
//! Written here and not taken from a crate: a header is read without its samples, what is accepted is known to the
//! byte, and the well-kept readers lack floating point of 64 bits or bring many decoders along.

use super::Header;
use crate::image::bytes::Bytes;
use crate::{Error, Result};

/// First of the sizes that programs write which do not know the length when they start: the samples go on to the end.
const STREAMED: u32 = 0x7fff_0000;
/// Bytes of the fields of a format chunk that all codecs have.
const FORMAT_BYTES: usize = 16;
/// Where an extensible format chunk has the codec's number, the first two bytes of a GUID that ends like this.
const CODEC_AT: usize = 24;
const CODEC_GUID: &[u8] = b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71";

const PCM: u16 = 1;
const FLOAT: u16 = 3;
const EXTENSIBLE: u16 = 0xfffe;
/// Other codecs by their number.
const CODECS: [(u16, &str); 9] = [
    (2, "adpcm"),
    (6, "a-law"),
    (7, "mu-law"),
    (0x11, "ima adpcm"),
    (0x31, "gsm"),
    (0x50, "mpeg"),
    (0x55, "mp3"),
    (0xff, "aac"),
    (0x161, "wma"),
];

/// How one sample is stored, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    U8,
    I16,
    I24,
    I32,
    F32,
    F64,
}

impl Encoding {
    fn of(codec: u16, bits: u16) -> Result<Self> {
        match (codec, bits) {
            (PCM, 8) => Ok(Self::U8),
            (PCM, 16) => Ok(Self::I16),
            (PCM, 24) => Ok(Self::I24),
            (PCM, 32) => Ok(Self::I32),
            (FLOAT, 32) => Ok(Self::F32),
            (FLOAT, 64) => Ok(Self::F64),
            (PCM, bits) => Err(wrong(format_args!("of {bits} bits a sample: integers have 8, 16, 24 or 32"))),
            (FLOAT, bits) => Err(wrong(format_args!("of {bits} bits a sample: floating point has 32 or 64"))),
            (codec, _) => {
                let known = CODECS.iter().find(|(number, _)| *number == codec).map(|(_, name)| *name);
                let name = known.map_or_else(|| format!("codec {codec}"), ToOwned::to_owned);
                Err(Error::media(format!(
                    "unsupported format: wav with {name}; PCM and floating point are read"
                )))
            }
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::I16 => 2,
            Self::I24 => 3,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::media(format!("wav sound {what}"))
}

/// A file whose structure has been checked.
pub(super) struct Wav<'a> {
    pub header: Header,
    encoding: Encoding,
    /// Whole frames.
    samples: &'a [u8],
}

impl<'a> Wav<'a> {
    /// Finds format and samples in `bytes`, which start with a WAV's first twelve.
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut format = None;
        let mut at = 12;
        loop {
            let (Some(id), Some(size)) = (bytes.span(at, 4), bytes.u32_le(at + 4)) else {
                return Err(wrong(if format.is_some() {
                    "has no data chunk: there are no samples in it"
                } else {
                    "has no fmt chunk: nothing says how its samples are stored"
                }));
            };
            let body = at + 8;
            let rest = bytes.get(body..).unwrap_or_default();
            if id == b"data" {
                let format = format.ok_or_else(|| wrong("has its samples ahead of the fmt chunk"))?;
                return Self::of(format, if size >= STREAMED { rest } else { part(rest, size)? });
            }
            let chunk = part(rest, size)?;
            if id == b"fmt " && format.is_none() {
                format = Some(Format::read(chunk)?);
            }
            // Chunks stand at even places.
            at = body + chunk.len() + chunk.len() % 2;
        }
    }

    fn of(format: Format, data: &'a [u8]) -> Result<Self> {
        let Format { encoding, rate, channels } = format;
        let frame = encoding.bytes() * usize::from(channels);
        let frames = data.len() / frame;
        let samples = data.get(..frames * frame).unwrap_or_default();
        let header = Header { format: "wav", rate, channels, frames: frames as u64 };
        Ok(Self { header, encoding, samples })
    }

    /// The mean of all channels.
    pub fn mono(&self) -> Result<Vec<f32>> {
        match self.encoding {
            Encoding::U8 => self.mixed(|[level]: [u8; 1]| (f64::from(level) - 128.0) / 128.0),
            Encoding::I16 => self.mixed(|bytes| f64::from(i16::from_le_bytes(bytes)) / 32_768.0),
            Encoding::I24 => self.mixed(|[low, middle, high]: [u8; 3]| {
                f64::from(i32::from_le_bytes([0, low, middle, high])) / 2_147_483_648.0
            }),
            Encoding::I32 => self.mixed(|bytes| f64::from(i32::from_le_bytes(bytes)) / 2_147_483_648.0),
            Encoding::F32 => self.mixed(|bytes| f64::from(f32::from_le_bytes(bytes))),
            Encoding::F64 => self.mixed(f64::from_le_bytes),
        }
    }

    /// In float64, rounded once, as engines do that read with libsndfile.
    fn mixed<const BYTES: usize>(&self, value: impl Fn([u8; BYTES]) -> f64) -> Result<Vec<f32>> {
        let channels = usize::from(self.header.channels);
        let (samples, _) = self.samples.as_chunks::<BYTES>();
        let mut out = Vec::new();
        out.try_reserve_exact(samples.len() / channels)
            .map_err(|_| Error::out_of_memory("no memory for the samples of a sound"))?;
        let mean =
            |frame: &[[u8; BYTES]]| frame.iter().map(|&sample| value(sample)).sum::<f64>() / channels as f64;
        out.extend(samples.chunks_exact(channels).map(|frame| mean(frame) as f32));
        Ok(out)
    }
}

/// The first `size` bytes of `rest`.
fn part(rest: &[u8], size: u32) -> Result<&[u8]> {
    rest.get(..size as usize).ok_or_else(|| wrong("is cut short: the file ends before its chunks do"))
}

/// What the format chunk says.
#[derive(Clone, Copy)]
struct Format {
    encoding: Encoding,
    rate: u32,
    /// At least 1.
    channels: u16,
}

impl Format {
    fn read(chunk: &[u8]) -> Result<Self> {
        let short = || wrong(format_args!("has a fmt chunk of {} bytes, which is too short", chunk.len()));
        if chunk.len() < FORMAT_BYTES {
            return Err(short());
        }
        let field = |at| chunk.u16_le(at).ok_or_else(short);
        let mut codec = field(0)?;
        if codec == EXTENSIBLE {
            codec = field(CODEC_AT)?;
            if chunk.span(CODEC_AT + 2, CODEC_GUID.len()) != Some(CODEC_GUID) {
                return Err(Error::media("unsupported format: wav with a codec of its own"));
            }
        }
        let (channels, block, bits) = (field(2)?, field(12)?, field(14)?);
        let encoding = Encoding::of(codec, bits)?;
        if channels == 0 || usize::from(block) != encoding.bytes() * usize::from(channels) {
            return Err(wrong(format_args!(
                "says that {channels} channels of {bits} bits take {block} bytes: they do not"
            )));
        }
        Ok(Self { encoding, rate: chunk.u32_le(4).ok_or_else(short)?, channels })
    }
}
