//! The markers before the first scan, read as Pillow reads them: what it refuses there, libjpeg never sees.

use std::borrow::Cow;

use super::super::bytes::Bytes;
use super::super::limits::Gate;
use crate::Result;

const EXIF: &[u8] = b"Exif\0\0";
const PROFILE: &[u8] = b"ICC_PROFILE\0";
const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";

/// What the markers say.
pub(super) struct Markers<'a> {
    pub(super) width: u32,
    pub(super) height: u32,
    /// 1, 3 or 4.
    pub(super) components: u32,
    /// All EXIF segments joined.
    pub(super) exif: Option<Cow<'a, [u8]>>,
    pub(super) xmp: Option<&'a [u8]>,
    /// Parts of a colour profile, each behind its number and their count.
    profile: Vec<&'a [u8]>,
}

impl<'a> Markers<'a> {
    /// Reads up to the first scan.
    pub(super) fn read(bytes: &'a [u8], gate: &Gate) -> Result<Self> {
        let mut found =
            Self { width: 0, height: 0, components: 0, exif: None, xmp: None, profile: Vec::new() };
        // The 0xFF of the first marker is the third byte of the file.
        let mut at = 2;
        let mut started = false;
        while let Some(first) = bytes.u8_at(at) {
            if first != 0xFF {
                at += 1;
                continue;
            }
            let Some(code) = bytes.u8_at(at + 1) else { break };
            match code {
                // Padding before a marker, or a zero in its place: the next byte is read as if it followed 0xFF.
                0xFF => at += 1,
                0 => at += 2,
                0xC0..=0xC7 | 0xC9..=0xCF | 0xDA..=0xFE if !matches!(code, 0xF0..=0xFD) => {
                    let (segment, next) = segment(bytes, at + 2).ok_or_else(|| gate.truncated())?;
                    match code {
                        0xC4 | 0xCC | 0xDA | 0xDC | 0xDD | 0xDF | 0xFE => {}
                        0xDB => tables(segment).ok_or_else(|| gate.damaged("quantisation table"))?,
                        0xE0..=0xEF => found.application(code, segment, gate)?,
                        _ => found.frame(segment, gate)?,
                    }
                    if code == 0xDA {
                        started = true;
                        break;
                    }
                    at = next;
                }
                0xC8 | 0xD0..=0xD9 | 0xF0..=0xFD => at += 2,
                _ => return Err(gate.damaged("sequence of markers")),
            }
        }
        if found.components == 0 {
            return Err(gate.error("has no frame header: the file is cut short or damaged"));
        }
        if !started {
            return Err(gate.truncated());
        }
        Ok(found)
    }

    /// The colour profile, its parts in order.
    pub(super) fn profile(&self) -> Option<Vec<u8>> {
        let mut parts = self.profile.clone();
        parts.sort_by_key(|part| part.first());
        let count = usize::from(*parts.first()?.get(1)?);
        let whole = parts.iter().flat_map(|part| part.get(2..).unwrap_or_default()).copied().collect();
        (count == parts.len()).then_some(whole)
    }

    fn frame(&mut self, segment: &[u8], gate: &Gate) -> Result<()> {
        let fields = || Some((segment.u8_at(0)?, segment.u16_be(1)?, segment.u16_be(3)?, segment.u8_at(5)?));
        let (bits, height, width, components) = fields().ok_or_else(|| gate.damaged("frame header"))?;
        if bits != 8 {
            return Err(
                gate.error(format_args!("has samples of {bits} bits: only 8 are decoded, save it with 8"))
            );
        }
        if !matches!(components, 1 | 3 | 4) {
            return Err(gate.error(format_args!("has {components} components: only 1, 3 and 4 are decoded")));
        }
        (self.width, self.height, self.components) = (width.into(), height.into(), components.into());
        Ok(())
    }

    fn application(&mut self, code: u8, segment: &'a [u8], gate: &Gate) -> Result<()> {
        match code {
            0xE0 if segment.starts_with(b"JFIF") && segment.len() < 7 => Err(gate.damaged("JFIF segment")),
            0xEE if segment.starts_with(b"Adobe") && segment.len() < 7 => Err(gate.damaged("Adobe segment")),
            0xE1 if segment.starts_with(EXIF) => {
                match &mut self.exif {
                    Some(block) => block.to_mut().extend_from_slice(&segment[EXIF.len()..]),
                    none => *none = Some(Cow::Borrowed(segment)),
                }
                Ok(())
            }
            0xE2 if segment.starts_with(PROFILE) => {
                self.profile.extend(segment.get(PROFILE.len()..));
                Ok(())
            }
            0xE1 if segment.starts_with(XMP) => {
                self.xmp = segment.get(XMP.len()..);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The content of the segment whose length lies at `at`, and where the next marker is looked for.
fn segment(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let len = usize::from(bytes.u16_be(at)?).saturating_sub(2);
    Some((bytes.span(at + 2, len)?, at + 2 + len))
}

/// Whether a segment of quantisation tables holds whole tables.
fn tables(mut segment: &[u8]) -> Option<()> {
    while let Some(kind) = segment.first() {
        let len = if kind >> 4 == 0 { 65 } else { 129 };
        segment = segment.get(len..)?;
    }
    Some(())
}
