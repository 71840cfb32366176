//! PNG's chunks, walked and judged as Pillow's reader does.

use std::borrow::Cow;
use std::io::Read;

use flate2::Crc;
use flate2::read::ZlibDecoder;

use super::super::bytes::Bytes;
use super::super::limits::Gate;
use crate::Result;

/// Inflated text or profile; larger ones are left aside.
const MAX_TEXT: u64 = 16 << 20;
/// Signature.
const START: usize = 8;

/// Rectangle of the canvas that the image data cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) width: u32,
    pub(super) height: u32,
}

/// What a tRNS chunk says, by the colour type at the place where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Transparency<'a> {
    /// Alpha of the palette's first entries.
    Palette(&'a [u8]),
    /// The level or colour that is transparent, its 16-bit samples cut to the low byte as Pillow compares them.
    Key([u8; 3]),
}

/// Text as its chunk holds it. It is inflated when it is asked for, so that a file cannot make us inflate many.
#[derive(Clone, Copy, Debug)]
enum Text<'a> {
    Plain(&'a [u8]),
    Deflated(&'a [u8]),
}

impl<'a> Text<'a> {
    fn content(self) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::Plain(text) => Some(Cow::Borrowed(text)),
            Self::Deflated(data) => inflate(data).map(Cow::Owned),
        }
    }
}

/// Everything the chunks say beside the pixels.
#[derive(Clone, Debug)]
pub(super) struct Head<'a> {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) depth: u8,
    /// 0 grey, 2 RGB, 3 palette, 4 grey with alpha, 6 RGB with alpha.
    pub(super) kind: u8,
    pub(super) interlaced: bool,
    pub(super) region: Region,
    pub(super) palette: Option<&'a [u8]>,
    pub(super) transparency: Option<Transparency<'a>>,
    exif: Option<&'a [u8]>,
    /// EXIF as hexadecimal text, which older tools write; asked only where `exif` is absent.
    raw_exif: Option<Text<'a>>,
    xmp: Option<Text<'a>>,
    /// The compressed colour profile.
    profile: Option<&'a [u8]>,
    /// The content of the first chunk of image data.
    pub(super) data: (usize, usize),
    /// Frames, where a valid animation is announced.
    frames: Option<u32>,
    /// The image data are the first of those frames.
    framed: bool,
    sequence: Option<u32>,
}

enum Step {
    Next,
    Data,
    End,
}

/// One chunk: its name, where its content starts, and how long it says it is.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub(super) name: [u8; 4],
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Chunk {
    /// The chunk whose length field lies at `at`; `None` past the end or for a name that is no name.
    pub(super) fn at(bytes: &[u8], at: usize) -> Option<Self> {
        let len = bytes.u32_be(at)? as usize;
        let name: [u8; 4] = bytes.span(at + 4, 4)?.try_into().ok()?;
        let letters = name.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'_');
        letters.then_some(Self { name, start: at + 8, len })
    }

    /// Where the next chunk's length field lies.
    pub(super) fn end(&self) -> usize {
        self.start.saturating_add(self.len).saturating_add(4)
    }
}

impl<'a> Head<'a> {
    /// Reads all chunks before and behind the image data.
    pub(super) fn read(bytes: &'a [u8], gate: &Gate) -> Result<Self> {
        let mut head = Self {
            width: 0,
            height: 0,
            depth: 0,
            kind: 0,
            interlaced: false,
            region: Region { x: 0, y: 0, width: 0, height: 0 },
            palette: None,
            transparency: None,
            exif: None,
            raw_exif: None,
            xmp: None,
            profile: None,
            data: (0, 0),
            frames: None,
            framed: false,
            sequence: None,
        };
        let mut bbox = None;
        let mut at = START;
        loop {
            let chunk = Chunk::at(bytes, at)
                .ok_or_else(|| gate.error("is cut short or damaged before its pixels"))?;
            match head.visit(bytes, chunk, &mut bbox, gate)? {
                Step::Data => break,
                Step::End => return Err(gate.error("has no image data")),
                Step::Next => {}
            }
            let sum = bytes.u32_be(chunk.start + chunk.len).ok_or_else(|| gate.truncated())?;
            let mut crc = Crc::new();
            crc.update(&bytes[chunk.start - 4..chunk.start + chunk.len]);
            if crc.sum() != sum {
                return Err(gate.error("is damaged: a chunk before its pixels has a wrong checksum"));
            }
            at = chunk.end();
        }
        let full = Region { x: 0, y: 0, width: head.width, height: head.height };
        head.framed = bbox.is_some();
        head.region = bbox.unwrap_or(full);
        head.trail(bytes, gate)?;
        Ok(head)
    }

    /// The chunks behind the image data. Pillow reads them without their checksums, after the pixels.
    fn trail(&mut self, bytes: &'a [u8], gate: &Gate) -> Result<()> {
        let data = self.data;
        let mut at = data.0.saturating_add(data.1).saturating_add(4);
        // What follows cannot move the pixels of the first frame any more.
        let mut bbox = None;
        // Image data go on over further chunks; those are the decoder's.
        let mut leading = true;
        while let Some(chunk) = Chunk::at(bytes, at) {
            at = chunk.end();
            leading &= matches!(&chunk.name, b"IDAT" | b"DDAT");
            if leading {
                continue;
            }
            if &chunk.name == b"IEND" || (&chunk.name == b"fcTL" && self.animated()) {
                break;
            }
            bytes.span(chunk.start, chunk.len).ok_or_else(|| gate.truncated())?;
            if !matches!(&chunk.name, b"IHDR" | b"PLTE" | b"IDAT") {
                self.visit(bytes, chunk, &mut bbox, gate)?;
                self.data = data;
            }
        }
        Ok(())
    }

    /// The EXIF block.
    pub(super) fn exif(&self) -> Option<Cow<'a, [u8]>> {
        let raw = || unhex(&self.raw_exif?.content()?).map(Cow::Owned);
        self.exif.map(Cow::Borrowed).or_else(raw)
    }

    /// The XMP block.
    pub(super) fn xmp(&self) -> Option<Cow<'a, [u8]>> {
        self.xmp?.content()
    }

    /// The colour profile.
    pub(super) fn profile(&self) -> Option<Vec<u8>> {
        self.profile.and_then(inflate)
    }

    /// Whether frames follow the first picture.
    fn animated(&self) -> bool {
        self.frames.is_some_and(|n| n > 1 || !self.framed)
    }

    fn visit(
        &mut self,
        bytes: &'a [u8],
        chunk: Chunk,
        bbox: &mut Option<Region>,
        gate: &Gate,
    ) -> Result<Step> {
        match &chunk.name {
            b"IEND" => return Ok(Step::End),
            // Before a usable header, Pillow takes image data for an unknown chunk.
            b"IDAT" if self.depth != 0 => {
                self.data = (chunk.start, chunk.len);
                return Ok(Step::Data);
            }
            b"fdAT" if self.depth != 0 => {
                let sequence = bytes.u32_be(chunk.start).filter(|_| chunk.len >= 4);
                if sequence.is_none() || sequence != self.sequence.map(|n| n.wrapping_add(1)) {
                    return Err(gate.error("is damaged: its animation frames are out of order"));
                }
                self.data = (chunk.start + 4, chunk.len - 4);
                return Ok(Step::Data);
            }
            _ => {}
        }
        let content = bytes.span(chunk.start, chunk.len).ok_or_else(|| gate.truncated())?;
        let least = match &chunk.name {
            b"IHDR" => 13,
            b"gAMA" => 4,
            b"cHRM" => 32,
            b"sRGB" => 1,
            b"pHYs" => 9,
            b"acTL" => 8,
            b"fcTL" => 26,
            _ => 0,
        };
        if content.len() < least {
            return Err(gate.error("is damaged: a chunk is shorter than its kind allows"));
        }
        match &chunk.name {
            b"IHDR" => self.start(content, gate)?,
            b"PLTE" if self.kind == 3 && self.depth != 0 => self.palette = Some(content),
            b"tRNS" => self.transparency(content, gate)?,
            b"acTL" => {
                let frames = content.u32_be(0).unwrap_or(0);
                self.frames =
                    (self.frames.is_none() && (1..=0x8000_0000).contains(&frames)).then_some(frames);
            }
            b"fcTL" => *bbox = Some(self.frame(content, gate)?),
            b"eXIf" => self.exif = Some(content),
            b"tEXt" | b"zTXt" | b"iTXt" => self.text(&chunk.name, content, gate)?,
            b"iCCP" => {
                let name = content.iter().position(|b| *b == 0).map_or(0, |at| at + 1);
                if content.get(name) != Some(&0) {
                    return Err(gate.error("is damaged: its colour profile has an unknown compression"));
                }
                self.profile = content.get(name + 1..);
            }
            _ => {}
        }
        Ok(Step::Next)
    }

    fn start(&mut self, content: &[u8], gate: &Gate) -> Result<()> {
        let field = |at| content.u32_be(at).unwrap_or(0);
        (self.width, self.height) = (field(0), field(4));
        let byte = |at| content.u8_at(at).unwrap_or(0);
        if matches!((byte(8), byte(9)), (1 | 2 | 4 | 8, 0 | 3) | (16, 0) | (8 | 16, 2 | 4 | 6)) {
            (self.depth, self.kind) = (byte(8), byte(9));
        }
        self.interlaced |= byte(12) != 0;
        if byte(11) != 0 {
            return Err(gate.error("is damaged: its filter method is unknown"));
        }
        Ok(())
    }

    fn transparency(&mut self, content: &'a [u8], gate: &Gate) -> Result<()> {
        if self.depth == 0 {
            return Ok(());
        }
        let low = |at: usize| content.u16_be(at).map(|v| v as u8);
        let key = match self.kind {
            3 => {
                self.transparency = Some(Transparency::Palette(content));
                return Ok(());
            }
            0 => content.u16_be(0).map(|v| match self.depth {
                1 => [if v == 0 { 0 } else { 255 }; 3],
                _ => [v as u8; 3],
            }),
            2 => low(0).zip(low(2)).zip(low(4)).map(|((r, g), b)| [r, g, b]),
            _ => return Ok(()),
        };
        let key = key.ok_or_else(|| gate.error("is damaged: its transparent colour is cut short"))?;
        self.transparency = Some(Transparency::Key(key));
        Ok(())
    }

    fn frame(&mut self, content: &[u8], gate: &Gate) -> Result<Region> {
        let field = |at| content.u32_be(at).unwrap_or(u32::MAX);
        let expected = self.sequence.map_or(Some(0), |n| n.checked_add(1));
        if expected != Some(field(0)) {
            return Err(gate.error("is damaged: its animation frames are out of order"));
        }
        self.sequence = expected;
        let region = Region { x: field(12), y: field(16), width: field(4), height: field(8) };
        let inside = |start: u32, len: u32, end: u32| start.checked_add(len).is_some_and(|last| last <= end);
        if !inside(region.x, region.width, self.width) || !inside(region.y, region.height, self.height) {
            return Err(gate.error("is damaged: an animation frame lies outside its canvas"));
        }
        Ok(region)
    }

    fn text(&mut self, name: &[u8; 4], content: &'a [u8], gate: &Gate) -> Result<()> {
        let Some(end) = content.iter().position(|b| *b == 0) else { return Ok(()) };
        let (key, value) = (&content[..end], &content[end + 1..]);
        match name {
            b"tEXt" if key == b"exif" => self.exif = Some(value),
            b"tEXt" if key == b"Raw profile type exif" => self.raw_exif = Some(Text::Plain(value)),
            b"zTXt" => {
                if value.first().is_some_and(|method| *method != 0) {
                    return Err(gate.error("is damaged: a text has an unknown compression"));
                }
                if key == b"Raw profile type exif" {
                    self.raw_exif = value.get(1..).map(Text::Deflated);
                }
            }
            b"iTXt" if key == b"XML:com.adobe.xmp" => self.xmp = international(value),
            _ => {}
        }
        Ok(())
    }
}

/// The text of an iTXt chunk behind its keyword.
fn international(value: &[u8]) -> Option<Text<'_>> {
    let (compressed, method, rest) = (*value.first()?, *value.get(1)?, value.get(2..)?);
    let language = rest.iter().position(|b| *b == 0)?;
    let rest = rest.get(language + 1..)?;
    let keyword = rest.iter().position(|b| *b == 0)?;
    let text = rest.get(keyword + 1..)?;
    match (compressed, method) {
        (0, _) => Some(Text::Plain(text)),
        (_, 0) => Some(Text::Deflated(text)),
        _ => None,
    }
}

fn inflate(data: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    ZlibDecoder::new(data).take(MAX_TEXT).read_to_end(&mut text).ok()?;
    Some(text)
}

/// The bytes of `\nexif\n    1234\n0a0b...`: three lines of preamble, then hexadecimal digits.
fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.splitn(4, |b| *b == b'\n').nth(3)?;
    let digits: Vec<u8> = digits.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
    let (pairs, odd) = digits.as_chunks::<2>();
    if !odd.is_empty() {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16);
    pairs.iter().map(|[high, low]| Some((value(*high)? << 4 | value(*low)?) as u8)).collect()
}
