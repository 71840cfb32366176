//! Qwen2.5-VL: RMS norms, gated SiLU, attention in windows except in a few blocks, no learned positions.

#[cfg(feature = "torch")]
mod tower;

use super::Generation;
use super::vit::Vit;
use crate::Result;
use crate::checkpoint::{Node, TensorSpec};
use crate::family::Options;
use crate::family::parts::Specs;
use crate::family::parts::sizes::{MAX_DEPTH, MAX_WIDTH};

/// Widest attention window that a configuration may ask for, in pixels.
const MAX_WINDOW: u32 = 1 << 16;

/// The hyperparameters of one checkpoint.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "torch"), allow(dead_code))]
pub struct Qwen25 {
    vit: Vit,
    intermediate: usize,
    out_hidden: usize,
    /// Side of a window in merged tokens.
    window: u32,
    /// Whether each block's attention sees the whole frame instead of a window.
    full: Vec<bool>,
}

impl Qwen25 {
    /// Reads and checks `vision_config`.
    pub fn read(vision: Node<'_>, _options: Options) -> Result<Self> {
        vision.opt_choice("model_type", &["qwen2_5_vl", "qwen2_5_vl_vision"])?;
        vision.opt_choice("hidden_act", &["silu"])?;
        let vit = Vit::read(vision, "hidden_size")?;
        let pixels = vision.u32("window_size", 1..=MAX_WINDOW)?;
        let window = pixels / vit.merge / vit.patch;
        if window == 0 {
            return Err(vision.fault(format!(
                "has window_size {pixels}, less than one block of {0}x{0} patches of {1} pixels",
                vit.merge, vit.patch
            )));
        }
        let last = vit.depth as u32 - 1;
        let full = vision.u32s("fullatt_block_indexes", 0..=MAX_DEPTH as usize, 0..=last)?;
        Ok(Self {
            intermediate: vision.u32("intermediate_size", 1..=MAX_WIDTH)? as usize,
            out_hidden: vision.u32("out_hidden_size", 1..=MAX_WIDTH)? as usize,
            window,
            full: (0..=last).map(|block| full.contains(&block)).collect(),
            vit,
        })
    }
}

impl Generation for Qwen25 {
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
            specs.rms_norm(&format!("blocks.{block}.norm1"), w);
            specs.rms_norm(&format!("blocks.{block}.norm2"), w);
            specs.linear(&format!("blocks.{block}.mlp.gate_proj"), i, w, true);
            specs.linear(&format!("blocks.{block}.mlp.up_proj"), i, w, true);
            specs.linear(&format!("blocks.{block}.mlp.down_proj"), w, i, true);
        }
        specs.rms_norm("merger.ln_q", w);
        specs.linear("merger.mlp.0", m, m, true);
        specs.linear("merger.mlp.2", self.out_hidden, m, true);
        specs.into_vec()
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &crate::family::Loader<'_>) -> Result<Box<dyn crate::family::Tower>> {
        Ok(Box::new(tower::Tower::load(self, loader)?))
    }
}
