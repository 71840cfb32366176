//! Names the container from its first bytes; a file name or a media type is never asked.

use super::bytes::Bytes;
use crate::{Error, Result};

/// A container that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
    WebP,
    Gif,
    Bmp,
    Ppm,
    Ico,
    Tiff,
}

impl Format {
    /// Lower-case name, as in [`super::Header::format`].
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::WebP => "webp",
            Self::Gif => "gif",
            Self::Bmp => "bmp",
            Self::Ppm => "ppm",
            Self::Ico => "ico",
            Self::Tiff => "tiff",
        }
    }
}

/// First bytes of containers that are known and not decoded.
const UNSUPPORTED: [(&[u8], &str); 24] = [
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "jpeg xl"),
    (b"\xff\x0a", "jpeg xl"),
    (b"\x00\x00\x00\x0cjP  ", "jpeg 2000"),
    (b"\xff\x4f\xff\x51", "jpeg 2000"),
    (b"8BPS", "psd"),
    (b"%PDF", "pdf"),
    (b"%!PS", "postscript"),
    (b"\xc5\xd0\xd3\xc6", "postscript"),
    (b"qoif", "qoi"),
    (b"DDS ", "dds"),
    (b"icns", "icns"),
    (b"farbfeld", "farbfeld"),
    (b"v/1\x01", "openexr"),
    (b"#?RADIANCE", "radiance hdr"),
    (b"#?RGBE", "radiance hdr"),
    (b"FLIF", "flif"),
    (b"BPG\xfb", "bpg"),
    (b"\x01\xda", "sgi"),
    (b"\x59\xa6\x6a\x95", "sun raster"),
    (b"SIMPLE", "fits"),
    (b"/* XPM */", "xpm"),
    (b"<svg", "svg"),
    (b"\x1aE\xdf\xa3", "matroska video"),
    (b"\x00\x00\x01\xba", "mpeg video"),
];

/// Major brands of the ISO base media container, by the codec inside.
const BRANDS: [(&[u8], &str); 12] = [
    (b"avif", "avif"),
    (b"avis", "avif"),
    (b"heic", "heic"),
    (b"heix", "heic"),
    (b"heim", "heic"),
    (b"heis", "heic"),
    (b"hevc", "heic"),
    (b"hevx", "heic"),
    (b"mif1", "heic"),
    (b"msf1", "heic"),
    (b"crx ", "canon raw"),
    (b"qt  ", "quicktime video"),
];

/// The container of `bytes`, or an error that names what they are instead.
pub(super) fn sniff(bytes: &[u8]) -> Result<Format> {
    if bytes.is_empty() {
        return Err(Error::media("the item has no bytes: send an encoded image"));
    }
    if bytes.starts_with(b"\xff\xd8\xff") {
        return Ok(Format::Jpeg);
    }
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(Format::Png);
    }
    if bytes.starts_with(b"RIFF") && bytes.span(8, 4) == Some(b"WEBP") {
        return Ok(Format::WebP);
    }
    if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        return Ok(Format::Gif);
    }
    if matches!(
        bytes.span(0, 4),
        Some(b"II\x2a\0" | b"MM\0\x2a" | b"II\x2b\0" | b"MM\0\x2b" | b"II\0\x2a" | b"MM\x2a\0")
    ) {
        return Ok(Format::Tiff);
    }
    if let [b'P', b'1'..=b'6', ..] = bytes {
        return Ok(Format::Ppm);
    }
    if bytes.starts_with(b"\0\0\x01\0") {
        return Ok(Format::Ico);
    }
    // A bitmap without its file header starts with the size of its second one.
    if bytes.starts_with(b"BM") || matches!(bytes.u32_le(0), Some(12 | 40 | 52 | 56 | 64 | 108 | 124)) {
        return Ok(Format::Bmp);
    }
    Err(match unsupported(bytes).or_else(|| crate::audio::format_name(bytes)) {
        Some(name) => Error::media(format!("unsupported format: {name}")),
        None => Error::media("the first bytes are not those of any known image format"),
    })
}

/// The name of a known container of images, decoded or not.
pub(crate) fn name(bytes: &[u8]) -> Option<&'static str> {
    sniff(bytes).map(Format::name).ok().or_else(|| unsupported(bytes))
}

fn unsupported(bytes: &[u8]) -> Option<&'static str> {
    if bytes.span(4, 4) == Some(b"ftyp") {
        let major = bytes.span(8, 4)?;
        // A still picture may name its codec among the compatible brands only.
        let compatible = bytes.get(16..bytes.u32_be(0)?.min(256) as usize).unwrap_or_default();
        let avif = compatible.chunks_exact(4).any(|b| b == b"avif" || b == b"avis");
        return Some(match BRANDS.iter().find(|(brand, _)| *brand == major) {
            Some((b"mif1" | b"msf1", _)) if avif => "avif",
            Some((_, name)) => name,
            None => "mp4 video",
        });
    }
    UNSUPPORTED.iter().find(|(start, _)| bytes.starts_with(start)).map(|(_, name)| *name)
}
