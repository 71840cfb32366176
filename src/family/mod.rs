//! Model families: what a checkpoint's tower wants to see, and how it runs.
//!
//! A family answers questions and never runs a request: the encoder owns order, limits and failure.

pub mod deepseek41;
mod demo;
mod detect;
pub mod glm53;
pub mod kimi;
#[cfg(feature = "torch")]
mod load;
pub mod nemotron35;
pub mod parts;
pub mod qwen;
mod registry;

pub use demo::make_checkpoint;
#[cfg(feature = "torch")]
pub use load::Loader;
pub use registry::{Entry, REGISTRY, VARIANTS, find, open};

use crate::checkpoint::TensorSpec;
use crate::image::{DecodePolicy, Image};
use crate::pixels::{Canvas, PassOrder, PixelValues};
use crate::{Dtype, Result};

/// Rows and columns of patches of one media item, for each frame.
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

/// The preprocessing whose bits are reproduced, where the reference has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// transformers on torchvision's uint8 resampling: what `AutoImageProcessor` picks where torchvision is installed.
    Torchvision,
    /// transformers on Pillow, with the pass order of a Pillow version.
    Pillow(PassOrder),
}

impl Backend {
    /// Every backend and its name; "pillow" is the newest rule.
    const NAMES: [(Self, &'static str); 4] = [
        (Self::Torchvision, "torchvision"),
        (Self::Pillow(PassOrder::Pillow13), "pillow"),
        (Self::Pillow(PassOrder::Pillow12_2), "pillow-12.2"),
        (Self::Pillow(PassOrder::HorizontalFirst), "pillow-12.1"),
    ];

    /// Parses "torchvision", "pillow" (the newest rule), "pillow-12.2" or "pillow-12.1".
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::NAMES.into_iter().find(|(_, known)| *known == name);
        found.map(|(backend, _)| backend).ok_or_else(|| {
            crate::Error::argument(format!(
                "backend {name:?} is unknown: use torchvision, pillow, pillow-12.2 or pillow-12.1"
            ))
        })
    }

    /// What [`Backend::parse`] reads.
    pub fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(backend, _)| *backend == self).map_or("", |(_, name)| name)
    }
}

/// How a tower with deepstack hands over the tokens of its levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deepstack {
    /// A tensor of its own, "deepstack" [levels, rows, columns]: transformers' form.
    #[default]
    Separate,
    /// Further columns of the embeddings, main columns first, then level by level: SGLang's form.
    Concatenated,
}

impl Deepstack {
    /// Parses "separate" or "concatenated".
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "separate" => Ok(Self::Separate),
            "concatenated" => Ok(Self::Concatenated),
            other => Err(crate::Error::argument(format!(
                "deepstack {other:?} is unknown: use separate or concatenated"
            ))),
        }
    }
}

/// Choices that a caller makes for a family; the defaults are those of its reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Preprocessing arithmetic; none: the family's reference.
    pub backend: Option<Backend>,
    /// The form of deepstack's levels; none: [`Deepstack::Separate`].
    pub deepstack: Option<Deepstack>,
}

impl Options {
    /// A text that is equal for equal choices and stays so between releases, for the identity of results.
    pub fn identity(&self) -> String {
        let backend = self.backend.map_or("default", Backend::name);
        let deepstack = match self.deepstack.unwrap_or_default() {
            Deepstack::Separate => "separate",
            Deepstack::Concatenated => "concatenated",
        };
        format!("options1;backend={backend};deepstack={deepstack}")
    }

    /// An error if a form of deepstack was chosen, for the towers of `who` have none.
    pub fn refuse_deepstack(&self, who: &str) -> Result<()> {
        match self.deepstack {
            None => Ok(()),
            Some(_) => {
                Err(crate::Error::argument(format!("{who} has no deepstack: leave the option deepstack out")))
            }
        }
    }
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

/// One model family with the configuration of one checkpoint.
pub trait Family: Send + Sync {
    /// The name in the public API, such as "glm53".
    fn name(&self) -> &'static str;

    /// What the reference's decoder does with orientation, transparency and the like.
    fn decode_policy(&self) -> DecodePolicy;

    /// Grid, tokens and canvas of an image of `width` x `height` pixels.
    fn plan(&self, width: u32, height: u32) -> Result<Plan>;

    /// Pixels to the tower's input matrix.
    fn preprocess(&self, image: &Image, dtype: Dtype) -> Result<PixelValues>;

    /// Columns of the tower's input matrix.
    fn patch_columns(&self) -> usize;

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
    /// `pixels` [sum of patches, patch columns] in the tower's dtype, patches of all `grids` in order.
    fn forward(&self, pixels: &crate::torch::Tensor, grids: &[Grid]) -> Result<Outputs>;
}

/// What a tower computes.
#[cfg(feature = "torch")]
pub struct Outputs {
    /// [sum of tokens, embedding columns].
    pub embeddings: crate::torch::Tensor,
    /// Further tensors by name, such as deepstack levels.
    pub extra: Vec<(&'static str, crate::torch::Tensor)>,
}

#[cfg(feature = "torch")]
impl From<crate::torch::Tensor> for Outputs {
    fn from(embeddings: crate::torch::Tensor) -> Self {
        Self { embeddings, extra: Vec::new() }
    }
}
