//! Model families: what a checkpoint's tower wants to see, and how it runs.
//!
//! A family answers questions and never runs a request: the encoder owns order, limits and failure.

pub mod deepseek41;
mod demo;
mod detect;
pub mod glm53;
pub mod inkling;
pub mod kimi;
#[cfg(feature = "torch")]
mod load;
pub mod muse;
pub mod muse_audio;
pub mod nemotron35;
mod options;
pub mod parts;
pub mod qwen;
mod registry;

pub use demo::make_checkpoint;
#[cfg(feature = "torch")]
pub use load::Loader;
pub use options::{Attention, Backend, Choice, Deepstack, Options};
pub use registry::{Entry, REGISTRY, VARIANTS, find, open};

use std::borrow::Cow;

use crate::audio::Sound;
use crate::checkpoint::TensorSpec;
use crate::image::{DecodePolicy, Image};
use crate::pixels::{self, Canvas, Expansion, Patches, PixelValues, Recipe};
use crate::{Dtype, Result};

/// Rows and columns of patches of one media item, for each frame. A sound is a row of frames of one patch each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Frames (temporal patches); 1 for a still image.
    pub frames: u32,
    /// Patch rows.
    pub height: u32,
    /// Patch columns.
    pub width: u32,
}

impl Grid {
    /// The grid of a still image.
    pub fn still(height: u32, width: u32) -> Self {
        Self { frames: 1, height, width }
    }

    /// Patches of one frame.
    pub fn frame_patches(self) -> usize {
        self.height as usize * self.width as usize
    }

    /// Patches of all frames; for a grid that was planned or has passed [`Grid::checked_patches`].
    pub fn patches(self) -> usize {
        self.frames as usize * self.frame_patches()
    }

    /// Patches of all frames; none where they are too many to count.
    pub fn checked_patches(self) -> Option<usize> {
        self.frame_patches().checked_mul(self.frames as usize)
    }
}

/// What becomes of an image of a given size, known without its pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Patch grid, in patches before merging.
    pub grid: Grid,
    /// Rows of the embeddings.
    pub tokens: usize,
    /// Resized size and padding.
    pub canvas: Canvas,
}

/// How a tower's tensors are found in a checkpoint: one spelling of all their names.
pub struct WeightNames {
    /// Accepted spellings of what stands before a name, in order of preference.
    pub prefixes: &'static [&'static str],
    /// The tensors wanted, without prefix.
    pub specs: Vec<TensorSpec>,
    /// Names under a prefix that are known and not used.
    pub ignored: fn(&str) -> bool,
}

/// A kind of media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modality {
    /// Still images.
    Image,
    /// Sound.
    Audio,
}

impl Modality {
    /// "image" or "audio".
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
        }
    }
}

/// What a family reads, and how it is prepared.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// Still images.
    Image(&'a dyn ImageProcessor),
    /// Sound.
    Audio(&'a dyn AudioProcessor),
}

impl Input<'_> {
    /// The kind of media.
    pub fn modality(self) -> Modality {
        match self {
            Self::Image(_) => Modality::Image,
            Self::Audio(_) => Modality::Audio,
        }
    }
}

/// How images become a tower's input.
pub trait ImageProcessor: Send + Sync {
    /// What the reference's decoder does with orientation, transparency and the like.
    fn decode_policy(&self) -> DecodePolicy {
        DecodePolicy::default()
    }

    /// Grid, tokens and canvas of an image of `width` x `height` pixels.
    fn plan(&self, width: u32, height: u32) -> Result<Plan>;

    /// All that turns an image with this canvas into the tower's input matrix.
    fn recipe(&self, canvas: Canvas, dtype: Dtype) -> Recipe;

    /// The RGB image that is resized, and its recipe: the decoded image itself unless the reference changes it first.
    fn ready<'a>(&self, image: &'a Image, dtype: Dtype) -> Result<(Cow<'a, Image>, Recipe)> {
        let canvas = self.plan(image.width, image.height)?.canvas;
        Ok((Cow::Borrowed(image), self.recipe(canvas, dtype)))
    }

    /// Pixels to the tower's input matrix.
    fn preprocess(&self, image: &Image, dtype: Dtype) -> Result<PixelValues> {
        let (image, recipe) = self.ready(image, dtype)?;
        pixels::prepare(&image, &recipe)
    }

    /// How a device may make the input matrix of 8-bit levels; none where values are no function of them.
    fn expansion(&self, dtype: Dtype) -> Option<Expansion> {
        Expansion::of(&self.recipe(Canvas::EMPTY, dtype))
    }

    /// Pixels to what the input matrix is made of: to levels where the image has the `expansion`, else to the matrix.
    fn patches(&self, image: &Image, dtype: Dtype, expansion: Option<&Expansion>) -> Result<Patches> {
        let (image, recipe) = self.ready(image, dtype)?;
        Ok(match expansion {
            Some(_) if Expansion::of(&recipe).as_ref() == expansion => {
                Patches::Levels(pixels::prepare_levels(&image, &recipe)?)
            }
            _ => Patches::Values(pixels::prepare(&image, &recipe)?),
        })
    }
}

/// How sound becomes a tower's input.
pub trait AudioProcessor: Send + Sync {
    /// Samples a second that the tower hears.
    fn sample_rate(&self) -> u32;

    /// The grid of `samples` at [`AudioProcessor::sample_rate`]: one frame a token.
    fn plan(&self, samples: u64) -> Result<Grid>;

    /// Samples, at any rate, to the tower's input matrix.
    fn preprocess(&self, sound: Sound, dtype: Dtype) -> Result<PixelValues>;
}

/// One model family with the configuration of one checkpoint.
pub trait Family: Send + Sync {
    /// The name in the public API, such as "glm53".
    fn name(&self) -> &'static str;

    /// The preprocessing.
    fn input(&self) -> Input<'_>;

    /// Columns of the tower's input matrix: samples of a patch.
    fn input_columns(&self) -> usize;

    /// Columns of the embeddings.
    fn embedding_columns(&self) -> usize;

    /// Checks that the tower can run `grid` and gives the rows of its embeddings.
    fn tokens(&self, grid: Grid) -> Result<usize>;

    /// Where the rows of the embeddings of `grid` stand over its patches; none where they are no raster.
    fn token_grid(&self, grid: Grid) -> Result<Option<parts::TokenGrid>> {
        Ok(parts::TokenGrid::merged(grid, self.tokens(grid)?))
    }

    /// The tensors of the tower in a checkpoint, in every published spelling, the usual one first.
    ///
    /// A checkpoint must have one spelling in full. All give tensors of the same names and shapes, whatever the
    /// checkpoint calls their parts: see [`TensorSpec::stored_as`].
    fn weight_names(&self) -> Vec<WeightNames>;

    /// Reads the weights and builds the tower.
    #[cfg(feature = "torch")]
    fn load(&self, loader: &Loader<'_>) -> Result<Box<dyn Tower>>;
}

/// A tower with its weights, read-only: many threads may run it at once.
#[cfg(feature = "torch")]
pub trait Tower: Send + Sync {
    /// `pixels` [sum of patches, input columns] in the tower's dtype, patches of all `grids` in order.
    fn forward(&self, pixels: &crate::torch::Tensor, grids: &[Grid]) -> Result<Outputs>;
}

/// What a tower computes.
#[cfg(feature = "torch")]
pub struct Outputs {
    /// [sum of tokens, embedding columns].
    pub embeddings: crate::torch::Tensor,
    /// Further tensors [..., sum of tokens, columns] by name, such as deepstack levels.
    pub extra: Vec<(&'static str, crate::torch::Tensor)>,
}

#[cfg(feature = "torch")]
impl From<crate::torch::Tensor> for Outputs {
    fn from(embeddings: crate::torch::Tensor) -> Self {
        Self { embeddings, extra: Vec::new() }
    }
}
