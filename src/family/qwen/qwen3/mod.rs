//! Qwen3-VL and Qwen3.5, dense and mixture of experts: layer norms, tanh GELU, full attention, a learned table of
//! positions read bilinearly with aligned corners. In Qwen3-VL also deepstack: mergers behind a few inner blocks,
//! whose tokens the language model adds to the hidden states of its first layers.

#[cfg(feature = "torch")]
mod tower;

use super::Generation;
use super::vit::Vit;
use crate::Result;
use crate::checkpoint::{Node, TensorSpec};
use crate::family::parts::Specs;
use crate::family::parts::sizes::{MAX_DEPTH, MAX_WIDTH};
use crate::family::{Deepstack, Options};

/// Longest side of the table of positions.
const MAX_TABLE_SIDE: u32 = 1 << 10;

/// The hyperparameters of one checkpoint.
#[derive(Clone, Debug)]
pub struct Qwen3 {
    vit: Vit,
    intermediate: usize,
    out_hidden: usize,
    /// Side of the square table of positions.
    table_side: u32,
    /// Blocks whose output goes through a merger of its own, ascending; none in Qwen3.5.
    levels: Vec<usize>,
    deepstack: Deepstack,
}

impl Qwen3 {
    /// Reads and checks `vision_config` of Qwen3-VL.
    pub fn read_vl(vision: Node<'_>, options: Options) -> Result<Self> {
        let known = ["qwen3_vl", "qwen3_vl_moe", "qwen3_vl_vision", "qwen3_vl_moe_vision"];
        vision.opt_choice("model_type", &known)?;
        let last = vision.u32("depth", 1..=MAX_DEPTH)? - 1;
        let levels = vision.u32s("deepstack_visual_indexes", 0..=MAX_DEPTH as usize, 0..=last)?;
        if !levels.is_sorted_by(|a, b| a < b) {
            return Err(vision.fault(format!("has deepstack_visual_indexes {levels:?}: they must ascend")));
        }
        let levels = levels.into_iter().map(|block| block as usize).collect();
        Self::read(vision, levels, options.deepstack.unwrap_or_default())
    }

    /// Reads and checks `vision_config` of Qwen3.5.
    pub fn read_35(vision: Node<'_>, _options: Options) -> Result<Self> {
        let known = ["qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision"];
        vision.opt_choice("model_type", &known)?;
        if vision.get("deepstack_visual_indexes").is_some() {
            vision.items("deepstack_visual_indexes", 0..=0)?;
        }
        Self::read(vision, Vec::new(), Deepstack::default())
    }

    fn read(vision: Node<'_>, levels: Vec<usize>, deepstack: Deepstack) -> Result<Self> {
        vision.need("hidden_act")?;
        vision.opt_choice("hidden_act", &["gelu_pytorch_tanh"])?;
        let positions = vision.u32("num_position_embeddings", 1..=MAX_TABLE_SIDE * MAX_TABLE_SIDE)?;
        let table_side = positions.isqrt();
        if table_side * table_side != positions {
            return Err(
                vision.fault(format!("has num_position_embeddings {positions}, which is not a square"))
            );
        }
        Ok(Self {
            vit: Vit::read(vision, "hidden_size")?,
            intermediate: vision.u32("intermediate_size", 1..=MAX_WIDTH)? as usize,
            out_hidden: vision.u32("out_hidden_size", 1..=MAX_WIDTH)? as usize,
            table_side,
            levels,
            deepstack,
        })
    }
}

impl Generation for Qwen3 {
    fn vit(&self) -> &Vit {
        &self.vit
    }

    fn columns(&self) -> usize {
        match self.deepstack {
            Deepstack::Separate => self.out_hidden,
            Deepstack::Concatenated => self.out_hidden * (1 + self.levels.len()),
        }
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let mut specs = Specs::default();
        let (w, i, m) = (self.vit.hidden, self.intermediate, self.vit.merged());
        self.vit.tensors(&mut specs, true);
        specs.tensor("pos_embed.weight", [(self.table_side * self.table_side) as usize, w]);
        for block in 0..self.vit.depth {
            specs.layer_norm(&format!("blocks.{block}.norm1"), w);
            specs.layer_norm(&format!("blocks.{block}.norm2"), w);
            specs.linear(&format!("blocks.{block}.mlp.linear_fc1"), i, w, true);
            specs.linear(&format!("blocks.{block}.mlp.linear_fc2"), w, i, true);
        }
        let mut merger = |name: &str, norm_width: usize| {
            specs.layer_norm(&format!("{name}.norm"), norm_width);
            specs.linear(&format!("{name}.linear_fc1"), m, m, true);
            specs.linear(&format!("{name}.linear_fc2"), self.out_hidden, m, true);
        };
        merger("merger", w);
        for level in 0..self.levels.len() {
            merger(&format!("deepstack_merger_list.{level}"), m);
        }
        specs.into_vec()
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &crate::family::Loader<'_>) -> Result<Box<dyn crate::family::Tower>> {
        Ok(Box::new(tower::Tower::load(self, loader)?))
    }
}
