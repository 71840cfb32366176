//! Resize, normalise and lay out patches: 8-bit pixels to the tower's input in one pass.

mod element;
mod execution;
mod layout;
mod levels;
mod names;
mod normalize;
mod output;
mod patchify;
mod prepare;
mod resize;
mod sizes;
mod stream;
mod values;
mod view;
mod work;

use crate::image::Image;
use crate::{Dtype, Result};

pub use execution::{Execution, Level, MAX_BANDS};
pub use layout::{MAX_FRAMES, MAX_PATCH};
pub use levels::{Expansion, Levels, Patches, TABLE_COLUMNS};
pub use prepare::{MAX_BYTES, prepare_levels_view, prepare_view};
pub use resize::{resize, resize_f32, resize_view, resize_view_f32};
pub use sizes::{MAX_ASPECT, SmartRule, scaled_dimensions, smart_resize};
pub use view::{MAX_PIXELS, MAX_SIDE, View};

/// Resampling filter, in Pillow's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filter {
    /// Nearest neighbour.
    Nearest,
    /// Box (area average).
    Box,
    /// Triangle.
    Bilinear,
    /// Hamming-windowed sinc of support 1.
    Hamming,
    /// Cubic, a = -0.5.
    Bicubic,
    /// Lanczos, three lobes.
    Lanczos,
}

/// Which of Pillow's two resize passes runs first; it changed between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassOrder {
    /// Pillow up to 12.1: columns (the horizontal pass) first, always.
    HorizontalFirst,
    /// Pillow 12.2 and 12.3: rows first if `h > 100 w` and the height shrinks.
    Pillow12_2,
    /// Pillow 13.0: rows first if the height shrinks and `h - H > 2 (w - W)`.
    Pillow13,
}

/// The arithmetic whose bits are reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// Pillow's 8-bit fixed point, 22 bits of precision.
    Pillow(PassOrder),
    /// torchvision's uint8 path on the CPU: int16 weights, precision chosen per axis.
    TorchvisionU8,
    /// ATen's antialiased float32 interpolation; nothing is rounded or clamped.
    AtenF32,
}

/// Where the resized content sits on the padded canvas, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canvas {
    /// Full height, a multiple of the patch side.
    pub height: u32,
    /// Full width, a multiple of the patch side.
    pub width: u32,
    /// Height of the resized content.
    pub content_height: u32,
    /// Width of the resized content.
    pub content_width: u32,
    /// Rows above the content.
    pub top: u32,
    /// Columns left of the content.
    pub left: u32,
}

impl Canvas {
    /// No pixel at all.
    pub const EMPTY: Self =
        Self { height: 0, width: 0, content_height: 0, content_width: 0, top: 0, left: 0 };
}

/// From an 8-bit level to the tower's value, per channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    /// `table[channel][level]`, for 8-bit levels.
    pub table: Box<[[f32; 256]; 3]>,
    /// Value of padded samples, per channel.
    pub fill: [f32; 3],
    /// `(scale, mean, std)` for unrounded levels `v`: `(v / scale - mean) / std`. Used with [`Arithmetic::AtenF32`] only.
    pub affine: (f32, [f32; 3], [f32; 3]),
}

/// Order of patches in the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PatchOrder {
    /// Row by row.
    Raster,
    /// Blocks of `merge x merge` patches in raster order, raster order inside a block.
    Blocks(u32),
}

/// Order of the samples inside one row of the patch matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampleOrder {
    /// `[channel][frame][y][x]`
    ChannelFrame,
    /// `[frame][channel][y][x]`
    FrameChannel,
    /// `[frame][y][x][channel]`
    ChannelsLast,
}

/// Layout of the patch matrix `[patches, 3 * frames * patch * patch]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PatchLayout {
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Copies of the still image (temporal patch size).
    pub frames: u32,
    /// Order of the rows.
    pub order: PatchOrder,
    /// Order within a row.
    pub samples: SampleOrder,
}

/// All that turns a decoded image into a tower's input.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Sizes and placement.
    pub canvas: Canvas,
    /// Resampling filter.
    pub filter: Filter,
    /// Resampling arithmetic.
    pub arithmetic: Arithmetic,
    /// Levels to values.
    pub normalize: Normalize,
    /// Patch matrix layout.
    pub layout: PatchLayout,
    /// Element type written.
    pub dtype: Dtype,
}

/// Elements of a patch matrix.
#[derive(Clone, Debug, PartialEq)]
pub enum Samples {
    /// float32.
    F32(Vec<f32>),
    /// bfloat16.
    Bf16(Vec<half::bf16>),
    /// float16.
    F16(Vec<half::f16>),
}

/// A patch matrix, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct PixelValues {
    /// Number of patches.
    pub rows: usize,
    /// Samples of one patch.
    pub columns: usize,
    /// `rows * columns` elements.
    pub samples: Samples,
}

/// Resizes `image` (RGB), places it on the canvas, normalises and lays out patches.
///
/// Content of zero height or width gives a canvas of padding alone.
pub fn prepare(image: &Image, recipe: &Recipe) -> Result<PixelValues> {
    prepare_view(&image.try_into()?, recipe, Execution::default())
}

/// [`prepare`] up to the levels: resized and laid out, not normalised, one copy of each patch.
///
/// The [`Expansion`] of the recipe makes the values of them.
pub fn prepare_levels(image: &Image, recipe: &Recipe) -> Result<Levels> {
    prepare_levels_view(&image.try_into()?, recipe, Execution::default())
}
