//! Qwen2-VL: layer norms, QuickGELU, full attention, no learned positions.

#[cfg(feature = "torch")]
mod tower;

use super::Generation;
use super::vit::Vit;
use crate::Result;
use crate::checkpoint::{Node, TensorSpec};
use crate::family::Options;
use crate::family::parts::Specs;
use crate::family::parts::sizes::MAX_WIDTH;

/// The hyperparameters of one checkpoint.
#[derive(Clone, Debug)]
pub struct Qwen2 {
    vit: Vit,
    intermediate: usize,
    out_hidden: usize,
}

impl Qwen2 {
    /// Reads and checks `vision_config`.
    pub fn read(vision: Node<'_>, _options: Options) -> Result<Self> {
        vision.opt_choice("model_type", &["qwen2_vl", "qwen2_vl_vision"])?;
        vision.opt_choice("hidden_act", &["quick_gelu"])?;
        // Unlike in later generations, hidden_size is the width of the output.
        let vit = Vit::read(vision, "embed_dim")?;
        let ratio = vision.f64("mlp_ratio", 0.01..=64.0)?;
        Ok(Self {
            intermediate: ((vit.hidden as f64 * ratio) as usize).max(1),
            out_hidden: vision.u32("hidden_size", 1..=MAX_WIDTH)? as usize,
            vit,
        })
    }
}

impl Generation for Qwen2 {
    fn vit(&self) -> &Vit {
        &self.vit
    }

    fn columns(&self) -> usize {
        self.out_hidden
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let mut specs = Specs::default();
        let (w, i, m) = (self.vit.hidden, self.intermediate, self.vit.merged());
        self.vit.tensors(&mut specs, false);
        for block in 0..self.vit.depth {
            specs.layer_norm(&format!("blocks.{block}.norm1"), w);
            specs.layer_norm(&format!("blocks.{block}.norm2"), w);
            specs.linear(&format!("blocks.{block}.mlp.fc1"), i, w, true);
            specs.linear(&format!("blocks.{block}.mlp.fc2"), w, i, true);
        }
        specs.layer_norm("merger.ln_q", w);
        specs.linear("merger.mlp.0", m, m, true);
        specs.linear("merger.mlp.2", self.out_hidden, m, true);
        specs.into_vec()
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &crate::family::Loader<'_>) -> Result<Box<dyn crate::family::Tower>> {
        Ok(Box::new(tower::Tower::load(self, loader)?))
    }
}
