//! What the vision transformers of all generations have in common: sizes, and the layout of their grids.

use crate::Result;
use crate::checkpoint::Node;
use crate::family::parts::sizes::{self, MAX_DEPTH, MAX_HEADS, MAX_WIDTH};
use crate::family::parts::{self, Specs, rotary};
#[cfg(feature = "torch")]
use crate::family::{
    Grid, Loader,
    parts::{SelfAttention, TowerLayout},
};
#[cfg(feature = "torch")]
use crate::torch::{
    Device,
    ops::{Rotary, RotaryPairs, Rounding, Segments},
};

/// Epsilon of every norm.
#[cfg(feature = "torch")]
pub const NORM_EPS: f64 = 1e-6;

/// Sizes that every `vision_config` of the line has.
#[derive(Clone, Debug, PartialEq)]
pub struct Vit {
    /// Number of blocks.
    pub depth: usize,
    /// Width of the tower.
    pub hidden: usize,
    pub heads: usize,
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Frames of a patch.
    pub frames: u32,
    /// Side of the block of patches that becomes one token.
    pub merge: u32,
    rope_theta: f64,
}

impl Vit {
    /// Reads and checks them; `width` is the key of the tower's width.
    pub fn read(vision: Node<'_>, width: &str) -> Result<Self> {
        // Older files say in_chans, and transformers goes by in_channels alone.
        for key in ["in_channels", "in_chans"] {
            vision.u32_or(key, 3, 3..=3)?;
        }
        let this = Self {
            depth: vision.u32("depth", 1..=MAX_DEPTH)? as usize,
            hidden: vision.u32(width, 1..=MAX_WIDTH)? as usize,
            heads: vision.u32("num_heads", 1..=MAX_HEADS)? as usize,
            patch: vision.u32("patch_size", 1..=256)?,
            frames: vision.u32("temporal_patch_size", 1..=16)?,
            merge: vision.u32("spatial_merge_size", 1..=16)?,
            rope_theta: rotary::theta(vision)?,
        };
        sizes::head_dim(vision, this.hidden as u32, this.heads as u32, 4)?;
        Ok(this)
    }

    /// Width of one head.
    #[cfg(feature = "torch")]
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Samples of one patch: three channels, all frames.
    pub fn patch_columns(&self) -> usize {
        3 * self.frames as usize * (self.patch * self.patch) as usize
    }

    /// Patches that become one token.
    pub fn merged_patches(&self) -> usize {
        (self.merge * self.merge) as usize
    }

    /// Width of the patches of one token side by side.
    pub fn merged(&self) -> usize {
        self.hidden * self.merged_patches()
    }

    /// Rows of the embeddings of `grid`.
    pub fn tokens(&self, grid: crate::family::Grid) -> Result<usize> {
        parts::patch_grid::merged_tokens(grid, self.merge)
    }

    /// Adds the tensors of the patch embedding and of every block's attention.
    pub fn tensors(&self, specs: &mut Specs, patch_bias: bool) {
        let (w, p) = (self.hidden, self.patch as usize);
        specs.weight("patch_embed.proj", vec![w, 3, self.frames as usize, p, p], patch_bias);
        for block in 0..self.depth {
            specs.linear(&format!("blocks.{block}.attn.qkv"), 3 * w, w, true);
            specs.linear(&format!("blocks.{block}.attn.proj"), w, w, true);
        }
    }
}

#[cfg(feature = "torch")]
impl Vit {
    /// The attention of block `index`.
    pub fn attention(&self, index: usize, loader: &Loader<'_>) -> Result<SelfAttention> {
        Ok(SelfAttention {
            qkv: loader.linear(&format!("blocks.{index}.attn.qkv"), true)?,
            qk_norm: None,
            proj: loader.linear(&format!("blocks.{index}.attn.proj"), true)?,
            heads: self.heads,
            dim: self.head_dim(),
            rounding: Rounding::Fused,
        })
    }

    /// The angles by which patches turn, in block order.
    pub fn angles(&self, grids: &[Grid]) -> rotary::Angles {
        rotary::axial(grids, self.merge, self.head_dim(), self.rope_theta)
    }

    /// The turns of patches in block order, and one segment of attention for each frame.
    pub fn layout(&self, grids: &[Grid], device: Device) -> Result<(Rotary, Segments)> {
        let rotary = TowerLayout::rotary(&self.angles(grids), RotaryPairs::Halves, device)?;
        Ok((rotary, TowerLayout::frame_segments(grids)?))
    }
}
