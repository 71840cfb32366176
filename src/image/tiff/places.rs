//! Where strips and tiles lie, in the file and on the picture.

use super::super::ifd::Ifd;
use super::super::limits::Gate;
use super::layout::{Layout, tag};
use crate::Result;

/// Uncompressed strips may be drawn over one another; together they cover the picture at most so often.
const MAX_COVER: u64 = 8;

/// Largest tile in pixels, unless the picture itself is of that size: a tile is decoded whole, whatever the picture
/// takes of it.
const MAX_TILE_PIXELS: u64 = 1 << 24;
/// A picture of more pixels may have tiles of so many times its own.
const MAX_TILE_EXCESS: u64 = 2;

/// Size and number of the chunks of a picture.
pub(super) struct Grid {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) tiled: bool,
    pub(super) across: u32,
    pub(super) down: u32,
}

impl Grid {
    pub(super) fn read(ifd: &Ifd, layout: &Layout, gate: &Gate) -> Result<Self> {
        let side = |tag| ifd.integer(tag).and_then(|v| u32::try_from(v).ok());
        let tiled = ifd.bytes(tag::STRIP_OFFSETS).is_none() && ifd.bytes(tag::TILE_OFFSETS).is_some();
        let (width, height) = if tiled {
            side(tag::TILE_WIDTH).zip(side(tag::TILE_HEIGHT)).unwrap_or((0, 0))
        } else {
            (layout.width, side(tag::ROWS_PER_STRIP).unwrap_or(layout.height))
        };
        if width == 0 || height == 0 {
            return Err(gate.error("has strips or tiles without pixels"));
        }
        let area = |width: u32, height: u32| u64::from(width) * u64::from(height);
        let most = MAX_TILE_PIXELS.max(area(layout.width, layout.height).saturating_mul(MAX_TILE_EXCESS));
        if tiled && area(width, height) > most {
            return Err(gate.error(format_args!(
                "has tiles of {width}x{height} pixels for a picture of {}x{}: at most {most} pixels a tile are read",
                layout.width, layout.height
            )));
        }
        let (across, down) = (layout.width.div_ceil(width), layout.height.div_ceil(height));
        Ok(Self { width, height, tiled, across, down })
    }

    /// Bytes of the largest chunk as stored.
    pub(super) fn chunk_bytes(&self, layout: &Layout) -> u64 {
        let height = if self.tiled { self.height } else { self.height.min(layout.height) };
        layout.row_bytes(self.width).saturating_mul(u64::from(height))
    }
}

/// The place of one uncompressed strip or tile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) width: u32,
    pub(super) height: u32,
    /// Which sample, for planes.
    pub(super) plane: usize,
    /// Bytes from row to row.
    pub(super) stride: u64,
}

/// The places of uncompressed chunks in the order in which Pillow draws them: that of the file. A picture with too
/// few of them stays black in the rest, one with too many is drawn over.
pub(super) fn raw(offsets: &[u64], layout: &Layout, grid: &Grid, gate: &Gate) -> Result<Vec<Place>> {
    let offsets = match offsets {
        // Every one covers the picture.
        [.., last] if grid.width == layout.width && grid.height == layout.height && !layout.planar => {
            std::slice::from_ref(last)
        }
        all => all,
    };
    let (mut x, mut y, mut plane) = (0u32, 0u32, 0usize);
    let mut places: Vec<Place> = Vec::new();
    for offset in offsets {
        let right = x.saturating_add(grid.width);
        let bottom = y.saturating_add(grid.height);
        let (width, height) = (right.min(layout.width) - x, bottom.min(layout.height) - y);
        let bits = layout.bits as u64 * layout.stored as u64;
        // A tile beyond the right edge has longer rows than the picture takes of it.
        let stored = if right > layout.width { grid.width } else { width };
        let stride = if right > layout.width {
            u64::from(stored) * bits / 8
        } else {
            (u64::from(stored) * bits).div_ceil(8)
        };
        if stride < (u64::from(width) * bits).div_ceil(8) {
            return Err(gate.error("has tiles whose rows do not end on a byte"));
        }
        places.push(Place { offset: *offset, x, y, width, height, plane, stride });
        x = right;
        if x >= layout.width {
            (x, y) = (0, bottom);
            if y >= layout.height {
                y = 0;
                plane += 1;
            }
        }
    }
    places.sort_by_key(|place| place.offset);
    // Of neighbours that differ in their offset only, the last one is drawn.
    let mut kept: Vec<Place> = Vec::with_capacity(places.len());
    for place in places {
        let plane = if layout.planar { place.plane } else { 0 };
        let place = Place { plane, ..place };
        match kept.last_mut() {
            Some(last) if Place { offset: place.offset, ..*last } == place => *last = place,
            _ => kept.push(place),
        }
    }
    let area = |place: &Place| u64::from(place.width) * u64::from(place.height);
    let drawn = kept.iter().fold(0u64, |sum, place| sum.saturating_add(area(place)));
    if drawn > MAX_COVER * u64::from(layout.width) * u64::from(layout.height) {
        return Err(gate.error(format_args!("draws its strips over one another more than {MAX_COVER} times")));
    }
    Ok(kept)
}
