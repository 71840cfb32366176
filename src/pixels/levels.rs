//! 8-bit levels in the order of patches, not yet normalised: what a device turns into a patch matrix.

use super::element::Element;
use super::execution::Level;
use super::layout::{CHANNELS, places};
use super::output;
use super::patchify::{Channels, Convert, pad};
use super::values::Table;
use super::{Arithmetic, Normalize, PixelValues, Recipe, SampleOrder};
use crate::{Dtype, Error, Result};

/// Values of one channel: those of all levels, then that of padding, which need not be any level's.
pub const TABLE_COLUMNS: usize = 257;

/// Resized levels, one copy of each patch: `[channel][y][x]`, or `[y][x][channel]` where channels come last.
#[derive(Clone, Debug, PartialEq)]
pub struct Levels {
    /// The content within each patch: first line, one past the last, first column and one past the last. All else of
    /// the patch is padding, whatever its levels.
    pub edges: Vec<[u16; 4]>,
    /// `rows * 3 * side * side` levels.
    pub levels: Vec<u8>,
}

impl Levels {
    /// Number of patches.
    pub fn rows(&self) -> usize {
        self.edges.len()
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.edges[..]) + self.levels.len()
    }
}

/// The tower's input in one of its two forms.
#[derive(Clone, Debug, PartialEq)]
pub enum Patches {
    /// The patch matrix itself.
    Values(PixelValues),
    /// Levels, of which an [`Expansion`] makes the matrix.
    Levels(Levels),
}

impl Patches {
    /// The levels, if that is what it is.
    pub fn levels(&self) -> Option<&Levels> {
        match self {
            Self::Values(_) => None,
            Self::Levels(levels) => Some(levels),
        }
    }
}

impl From<PixelValues> for Patches {
    fn from(values: PixelValues) -> Self {
        Self::Values(values)
    }
}

/// How levels become values: the part of a [`Recipe`] that is the same for all images of a tower.
#[derive(Clone, Debug, PartialEq)]
pub struct Expansion {
    /// Levels to values.
    pub normalize: Normalize,
    /// Side of a patch in pixels.
    pub side: u32,
    /// Copies of the still image.
    pub frames: u32,
    /// Order within a row of the matrix.
    pub samples: SampleOrder,
    /// Element type of the matrix.
    pub dtype: Dtype,
}

impl Expansion {
    /// That of a recipe; none where values are no function of 8-bit levels.
    pub fn of(recipe: &Recipe) -> Option<Self> {
        let Recipe { arithmetic, ref normalize, layout, dtype, .. } = *recipe;
        match arithmetic {
            Arithmetic::AtenF32 => None,
            Arithmetic::Pillow(_) | Arithmetic::TorchvisionU8 => Some(Self {
                normalize: normalize.clone(),
                side: layout.patch,
                frames: layout.frames,
                samples: layout.samples,
                dtype,
            }),
        }
    }

    /// Samples of a patch among the levels.
    pub fn level_columns(&self) -> usize {
        CHANNELS * self.area()
    }

    /// Samples of a patch in the matrix.
    pub fn columns(&self) -> usize {
        self.level_columns() * self.frames as usize
    }

    /// Bytes of the levels of so many patches.
    pub fn bytes(&self, patches: usize) -> usize {
        patches.saturating_mul(size_of::<[u16; 4]>() + self.level_columns())
    }

    /// The values `[3, 257]`: see [`TABLE_COLUMNS`].
    pub fn table<T: Element>(&self) -> Vec<T> {
        let Normalize { table, fill, .. } = &self.normalize;
        let channels = table.iter().zip(fill);
        channels
            .flat_map(|(levels, fill)| levels.iter().chain([fill]))
            .map(|&value| T::round(value))
            .collect()
    }

    /// The patch matrix of all `parts`, one under the other.
    pub fn expand(&self, parts: &[&Levels]) -> Result<PixelValues> {
        if parts.iter().any(|part| part.levels.len() != part.rows() * self.level_columns()) {
            return Err(Error::internal("levels of patches of another size"));
        }
        let samples = match self.dtype {
            Dtype::F32 => f32::wrap(self.values(parts)?),
            Dtype::Bf16 => half::bf16::wrap(self.values(parts)?),
            Dtype::F16 => half::f16::wrap(self.values(parts)?),
        };
        Ok(PixelValues { rows: parts.iter().map(|part| part.rows()).sum(), columns: self.columns(), samples })
    }

    fn values<T: Element>(&self, parts: &[&Levels]) -> Result<Vec<T>> {
        let table = Table::<T>::new(&self.normalize, Level::best());
        let fill = self.normalize.fill.map(T::round);
        let places = places(self.samples, self.area(), self.frames as usize);
        let run = self.level_columns() / places.len();
        let side = self.side as usize;
        let lengths: Vec<usize> = parts.iter().map(|part| part.rows() * self.columns()).collect();
        output::build(&lengths, |i, out| {
            let mut values = vec![fill[0]; self.columns()];
            let patches = parts[i].levels.chunks_exact(self.level_columns());
            for (levels, edges) in patches.zip(&parts[i].edges) {
                let [top, bottom, left, right] = edges.map(usize::from);
                for (plane, (levels, places)) in levels.chunks_exact(run).zip(&places).enumerate() {
                    let channels =
                        if run == self.area() { Channels::Plane(plane) } else { Channels::Interleaved };
                    let first = places[0]..places[0] + run;
                    table.convert(levels, channels, &mut values[first.clone()]);
                    pad(&mut values[first.clone()], channels, side, &(top..bottom), &(left..right), &fill);
                    places[1..].iter().for_each(|&place| values.copy_within(first.clone(), place));
                }
                out.append(&values);
            }
        })
    }

    fn area(&self) -> usize {
        self.side as usize * self.side as usize
    }
}
