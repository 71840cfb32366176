//! The eight orientations: found in EXIF and XMP blocks, applied to pixels.

use super::Image;
use super::buffer::zeroed;
use super::ifd::Ifd;
use crate::Result;

const ORIENTATION: u16 = 274;
/// Edge of the square tiles in which axes are swapped, so that both sides stay in cache.
const TILE: usize = 32;

/// How stored pixels are turned for display; the eight values of the EXIF tag, 1 being "as stored".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Orientation {
    mirror_x: bool,
    mirror_y: bool,
    /// Axes are swapped after mirroring the stored pixels.
    swap: bool,
}

impl Orientation {
    fn from_tag(value: u64) -> Self {
        let (mirror_x, mirror_y, swap) = match value {
            2 => (true, false, false),
            3 => (true, true, false),
            4 => (false, true, false),
            5 => (false, false, true),
            6 => (false, true, true),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { mirror_x, mirror_y, swap }
    }

    /// From metadata as the container holds it; malformed blocks count as absent.
    ///
    /// `exif` is a TIFF stream, with or without its `Exif\0\0` prefix. `xmp` is asked only where EXIF has no
    /// orientation, as Pillow does.
    pub(super) fn find(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> Self {
        let tagged = exif.and_then(|block| {
            let mut block = block;
            for _ in 0..2 {
                block = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
            }
            Self::in_ifd(&Ifd::first(block)?)
        });
        let value = tagged.or_else(|| in_xmp(xmp?));
        value.map(Self::from_tag).unwrap_or_default()
    }

    /// From the directory of a TIFF file, else from its XMP block.
    pub(super) fn of_directory(ifd: &Ifd, xmp: Option<&[u8]>) -> Self {
        Self::in_ifd(ifd).or_else(|| in_xmp(xmp?)).map(Self::from_tag).unwrap_or_default()
    }

    fn in_ifd(ifd: &Ifd) -> Option<u64> {
        // Any value, even one without meaning, counts as present.
        ifd.bytes(ORIENTATION).map(|_| ifd.integer(ORIENTATION).unwrap_or(1))
    }

    /// The size after turning.
    pub(super) fn size(self, width: u32, height: u32) -> (u32, u32) {
        if self.swap { (height, width) } else { (width, height) }
    }

    /// Bytes that [`Self::apply`] allocates beside an image of `bytes`.
    pub(super) fn memory(self, bytes: u64) -> u64 {
        if self.swap { bytes } else { 0 }
    }

    /// Turns the pixels.
    pub(super) fn apply(self, mut image: Image) -> Result<Image> {
        match image.channels {
            4 => self.turn::<4>(&mut image)?,
            _ => self.turn::<3>(&mut image)?,
        }
        Ok(image)
    }

    fn turn<const N: usize>(self, image: &mut Image) -> Result<()> {
        let (width, height) = (image.width as usize, image.height as usize);
        if !self.swap {
            let (pixels, _) = image.samples.as_chunks_mut::<N>();
            match (self.mirror_x, self.mirror_y) {
                (true, true) => pixels.reverse(),
                (true, false) => pixels.chunks_exact_mut(width).for_each(<[_]>::reverse),
                (false, true) => {
                    let (top, bottom) = pixels.split_at_mut(height / 2 * width);
                    let rows = bottom.chunks_exact_mut(width).rev();
                    top.chunks_exact_mut(width).zip(rows).for_each(|(a, b)| a.swap_with_slice(b));
                }
                (false, false) => {}
            }
            return Ok(());
        }
        let mut turned = zeroed(image.samples.len())?;
        let (source, _) = image.samples.as_chunks::<N>();
        let (target, _) = turned.as_chunks_mut::<N>();
        for top in (0..width).step_by(TILE) {
            for left in (0..height).step_by(TILE) {
                for y in top..(top + TILE).min(width) {
                    let column = if self.mirror_x { width - 1 - y } else { y };
                    for x in left..(left + TILE).min(height) {
                        let row = if self.mirror_y { height - 1 - x } else { x };
                        target[y * height + x] = source[row * width + column];
                    }
                }
            }
        }
        image.samples = turned;
        (image.width, image.height) = (image.height, image.width);
        Ok(())
    }
}

/// The digit of `tiff:Orientation="6"` or `<tiff:Orientation>6<`.
fn in_xmp(xmp: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"tiff:Orientation";
    let mut rest = xmp;
    while let Some(at) = rest.windows(NAME.len()).position(|w| w == NAME) {
        rest = rest.get(at + NAME.len()..)?;
        let digit = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">")).and_then(<[u8]>::first);
        if let Some(digit @ b'0'..=b'9') = digit {
            return Some(u64::from(digit - b'0'));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(value: u64) -> Vec<u8> {
        // 3 columns, 2 rows: 0 1 2 / 3 4 5.
        let samples = (0..6).flat_map(|v| [v, v, v]).collect();
        let image = Image { width: 3, height: 2, channels: 3, mode: Default::default(), samples };
        let image = Orientation::from_tag(value).apply(image).expect("small");
        image.samples.iter().step_by(3).copied().collect()
    }

    #[test]
    fn each_value_as_the_exif_standard_draws_it() {
        let drawn: [[u8; 6]; 8] = [
            [0, 1, 2, 3, 4, 5],
            [2, 1, 0, 5, 4, 3],
            [5, 4, 3, 2, 1, 0],
            [3, 4, 5, 0, 1, 2],
            [0, 3, 1, 4, 2, 5],
            [3, 0, 4, 1, 5, 2],
            [5, 2, 4, 1, 3, 0],
            [2, 5, 1, 4, 0, 3],
        ];
        for (value, expected) in (1..).zip(drawn) {
            assert_eq!(turned(value), expected, "orientation {value}");
        }
        assert_eq!(turned(0), drawn[0]);
        assert_eq!(turned(9), drawn[0]);
    }

    #[test]
    fn xmp_is_asked_where_exif_is_silent() {
        let xmp = b"<x tiff:Orientation tiff:Orientation=\"6\"/>";
        assert_eq!(Orientation::find(None, Some(xmp)), Orientation::from_tag(6));
        assert_eq!(Orientation::find(Some(b"garbage"), None), Orientation::default());
    }
}
