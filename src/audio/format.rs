//! Names the container from its first bytes; a file name or a media type is never asked.

use crate::image::bytes::Bytes;
use crate::{Error, Result};

/// First bytes of containers that are known and not decoded.
const UNSUPPORTED: [(&[u8], &str); 16] = [
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"FORM", "aiff"),
    (b"caff", "caf"),
    (b"RIFX", "rifx"),
    (b"RF64", "rf64"),
    (b"BW64", "bw64"),
    (b"riff\x2e\x91\xcf\x11", "wave64"),
    (b".snd", "au"),
    (b"#!AMR", "amr"),
    (b"wvpk", "wavpack"),
    (b"MAC ", "monkey's audio"),
    (b"MThd", "midi"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "wma"),
    (b"\x1aE\xdf\xa3", "matroska or webm"),
];

/// The name of a known container of sound, decoded or not.
pub(crate) fn name(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(b"RIFF") && bytes.span(8, 4) == Some(b"WAVE") {
        return Some("wav");
    }
    if bytes.span(4, 4) == Some(b"ftyp") && bytes.span(8, 3) == Some(b"M4A") {
        return Some("m4a");
    }
    match bytes {
        // Frames without a container: a sync word, then layer 1 to 3 of MPEG audio, or AAC's ADTS.
        [0xff, second, ..] if second & 0xf6 == 0xf0 => Some("aac"),
        [0xff, second, third, ..]
            if second & 0xe0 == 0xe0 && second & 0x18 != 0x08 && second & 0x06 != 0 && third >> 4 != 15 =>
        {
            Some("mp3")
        }
        _ => UNSUPPORTED.iter().find(|(start, _)| bytes.starts_with(start)).map(|(_, name)| *name),
    }
}

/// An error that names what `bytes` are, unless they are decoded here.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Err(Error::media("the item has no bytes: send an encoded sound"));
    }
    match name(bytes).or_else(|| crate::image::format_name(bytes)) {
        Some("wav") => Ok(()),
        Some(name) => Err(Error::media(format!("unsupported format: {name}; sound is read from wav"))),
        None => Err(Error::media("the first bytes are not those of any known format of sound")),
    }
}
