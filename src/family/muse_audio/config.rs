//! The audio configuration of Muse Spark, and the tensors that follow from it.

use crate::Result;
use crate::checkpoint::{Node, TensorSpec};
use crate::family::parts::Specs;
use crate::family::parts::sizes::{MAX_DEPTH, MAX_WIDTH};

/// Most stages.
const MAX_STAGES: u32 = 16;
/// Most samples of a token.
const MAX_TOKEN_SAMPLES: u32 = 1 << 16;
/// Taps of a convolution.
const TAPS: std::ops::RangeInclusive<u32> = 2..=64;

/// What the tower is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioConfig {
    pub stages: Vec<Stage>,
    /// Rows that a convolution sees, its own the last.
    pub taps: usize,
    pub norm_eps: f64,
    pub out_hidden: usize,
    /// Epsilon of the norm that closes the tower: the language model's.
    pub out_eps: f64,
}

/// Blocks of one width.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Rows of the stage before that become one.
    pub patch: usize,
    pub hidden: usize,
    /// Inner width of the perceptrons.
    pub intermediate: usize,
    pub depth: usize,
}

impl AudioConfig {
    /// Reads and checks config.json.
    pub fn read(config: Node<'_>) -> Result<Self> {
        let node = config.object("audio_config")?;
        node.opt_choice("hidden_act", &["gelu"])?;
        let count = node.u32_or("num_hidden_layers", 4, 1..=MAX_STAGES)? as usize;
        let list = |key, range| node.u32s(key, count..=count, range);
        let patches = list("patch_sizes", 1..=MAX_TOKEN_SAMPLES)?;
        let widths = list("hidden_sizes", 1..=MAX_WIDTH)?;
        let depths = list("depths", 0..=MAX_DEPTH)?;
        let ratio = node.f64_or("mlp_ratio", 4.0, 1.0 / 64.0..=64.0)?;
        let samples = patches.iter().try_fold(1u32, |product, &patch| product.checked_mul(patch));
        if samples.is_none_or(|samples| samples > MAX_TOKEN_SAMPLES) {
            return Err(node.fault(format!(
                "has patch_sizes {patches:?}: their product, the samples of a token, may be at most {MAX_TOKEN_SAMPLES}"
            )));
        }
        let mut stages = Vec::with_capacity(count);
        for ((patch, hidden), depth) in patches.into_iter().zip(widths).zip(depths) {
            let intermediate = (f64::from(hidden) * ratio) as usize;
            if intermediate == 0 {
                return Err(
                    node.fault(format!("has mlp_ratio {ratio:?}, which leaves nothing of {hidden} columns"))
                );
            }
            stages.push(Stage {
                patch: patch as usize,
                hidden: hidden as usize,
                intermediate,
                depth: depth as usize,
            });
        }
        let text = config.object("text_config")?;
        let out_hidden = text.u32("hidden_size", 1..=MAX_WIDTH)?;
        node.u32("out_hidden_size", out_hidden..=out_hidden)?;
        let eps = 1e-12..=1.0;
        Ok(Self {
            stages,
            taps: node.u32_or("conv_kernel_size", 7, TAPS)? as usize,
            norm_eps: node.f64_or("rms_norm_eps", 1e-6, eps.clone())?,
            out_hidden: out_hidden as usize,
            out_eps: text.f64_or("rms_norm_eps", 1e-5, eps)?,
        })
    }

    /// Samples of one token.
    pub fn token_samples(&self) -> usize {
        self.stages.iter().map(|stage| stage.patch).product()
    }

    /// Every tensor of the tower.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut specs = Specs::default();
        let mut columns = 1;
        for (index, stage) in self.stages.iter().enumerate() {
            let (w, name) = (stage.hidden, format!("layers.{index}"));
            specs.linear(&format!("{name}.patch_embedder.proj"), w, stage.patch * columns, true);
            specs.rms_norm(&format!("{name}.patch_embedder.norm"), w);
            for block in 0..stage.depth {
                let name = format!("{name}.conv_blocks.{block}");
                specs.weight(&format!("{name}.conv"), vec![w, 1, self.taps], true);
                specs.rms_norm(&format!("{name}.norm"), w);
                specs.linear(&format!("{name}.mlp.fc1"), stage.intermediate, w, true);
                specs.linear(&format!("{name}.mlp.fc2"), w, stage.intermediate, true);
            }
            columns = w;
        }
        specs.rms_norm("norm", columns);
        specs.linear("proj", self.out_hidden, columns, true);
        specs.rms_norm("post_proj_norm", self.out_hidden);
        specs.into_vec()
    }
}
