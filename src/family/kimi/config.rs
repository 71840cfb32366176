//! `vision_config` of Kimi, and the tensors that follow from it. Absent keys have the values of Kimi-K2.5.

use crate::Result;
use crate::checkpoint::{Node, TensorSpec};
use crate::family::parts::Specs;
use crate::family::parts::sizes::{self, MAX_DEPTH, MAX_HEADS, MAX_WIDTH};

/// Most rows and columns of patches: the reach of the rotary angles.
pub const MAX_SIDE_PATCHES: u32 = 512;
/// Longest side of the table of positions.
const MAX_TABLE_SIDE: u32 = 1 << 10;
/// Most frames that attend to each other; the tower averages at most four.
const MAX_FRAMES: u32 = 4;

/// The norm of all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    Layer,
    Rms,
}

/// What lies between tower and language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projector {
    /// A layer norm of each patch, then two layers with biases.
    PreNorm,
    /// Two layers without biases, then an RMS norm of the token.
    PostNorm,
}

/// What the tower is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub depth: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub intermediate: usize,
    /// Width of the language model.
    pub out_hidden: usize,
    pub patch: u32,
    /// Side of the block of patches that becomes one token.
    pub merge: u32,
    /// Rows and columns of the table of positions.
    pub table: (u32, u32),
    /// Frames that one grid may have.
    pub max_frames: u32,
    /// Whether the table is read by triangular instead of cubic weights.
    pub bilinear: bool,
    pub norm: NormKind,
    /// Whether the perceptrons of the blocks have the error function's GELU instead of the approximate one.
    pub exact_gelu: bool,
    pub patch_bias: bool,
    pub attention_bias: bool,
    pub linear_bias: bool,
    pub projector: Projector,
    pub projector_eps: f64,
}

impl VisionConfig {
    /// Reads and checks `vision_config` of a config.json.
    pub fn read(config: Node<'_>) -> Result<Self> {
        let node = config.object("vision_config")?;
        for (key, only) in [
            ("pos_emb_type", "divided_fixed"),
            ("merge_type", "sd2_tpool"),
            ("video_attn_type", "spatial_temporal"),
            ("mlp_type", "mlp2"),
            ("projector_hidden_act", "gelu"),
        ] {
            node.opt_choice(key, &[only])?;
        }
        let size = |published: &str, plain: &str, most: u32| match node.opt_u32(published, 1..=most)? {
            Some(size) => Ok(size),
            None if node.get(plain).is_some() => node.u32(plain, 1..=most),
            None => node.u32(published, 1..=most),
        };
        let hidden = size("vt_hidden_size", "hidden_size", MAX_WIDTH)?;
        let heads = size("vt_num_attention_heads", "num_attention_heads", MAX_HEADS)?;
        let attention = node.u32_or("qkv_hidden_size", hidden, 1..=MAX_WIDTH)?;
        let merged = node.u32_or("mm_hidden_size", hidden, 1..=MAX_WIDTH)?;
        if merged != hidden {
            return Err(node.fault(format!(
                "has mm_hidden_size {merged}, but the tower gives patches of width {hidden}"
            )));
        }
        let out_hidden = match node.opt_u32("text_hidden_size", 1..=MAX_WIDTH)? {
            Some(size) => size,
            None => config.object("text_config")?.u32("hidden_size", 1..=MAX_WIDTH)?,
        };
        // Of two values of a key, whether it has the second, which K2.5 does not have.
        let later = |key, [first, second]: [&str; 2]| -> Result<bool> {
            Ok(node.opt_choice(key, &[first, second])? == Some(second))
        };
        Ok(Self {
            depth: size("vt_num_hidden_layers", "num_hidden_layers", MAX_DEPTH)? as usize,
            hidden: hidden as usize,
            heads: heads as usize,
            head_dim: sizes::head_dim(node, attention, heads, 4)?,
            intermediate: size("vt_intermediate_size", "intermediate_size", MAX_WIDTH)? as usize,
            out_hidden: out_hidden as usize,
            patch: node.u32_or("patch_size", 14, 1..=256)?,
            merge: merge(node)?,
            table: (
                node.u32_or("init_pos_emb_height", 64, 1..=MAX_TABLE_SIDE)?,
                node.u32_or("init_pos_emb_width", 64, 1..=MAX_TABLE_SIDE)?,
            ),
            max_frames: node.u32_or("init_pos_emb_time", 4, 1..=MAX_FRAMES)?,
            bilinear: later("pos_emb_interpolation_mode", ["bicubic", "bilinear"])?,
            norm: if later("norm_type", ["layernorm", "rmsnorm"])? { NormKind::Rms } else { NormKind::Layer },
            exact_gelu: later("activation_func", ["gelu_pytorch_tanh", "gelu"])?,
            patch_bias: node.bool_or("patch_embed_proj_bias", true)?,
            attention_bias: node.bool_or("attn_bias", true)?,
            linear_bias: node.bool_or("linear_bias", true)?,
            projector: if later("mm_projector_type", ["patchmerger", "patchmergerv2"])? {
                Projector::PostNorm
            } else {
                Projector::PreNorm
            },
            projector_eps: node.f64_or("projector_ln_eps", 1e-5, 1e-12..=1.0)?,
        })
    }

    /// Samples of one patch.
    pub fn patch_columns(&self) -> usize {
        3 * (self.patch * self.patch) as usize
    }

    /// Patches of one frame that become one token.
    pub fn merged_patches(&self) -> usize {
        (self.merge * self.merge) as usize
    }

    /// Every tensor of tower and projector; the projector's two layers are called `linears`.
    pub fn tensors(&self, linears: [&str; 2]) -> Vec<TensorSpec> {
        let (w, i, a, p) = (self.hidden, self.intermediate, self.heads * self.head_dim, self.patch as usize);
        let mut specs = Specs::default();
        specs.weight("vision_tower.patch_embed.proj", vec![w, 3, p, p], self.patch_bias);
        let table = [self.table.0 as usize, self.table.1 as usize, w];
        specs.tensor("vision_tower.patch_embed.pos_emb.weight", table);
        let norm_bias = self.norm == NormKind::Layer;
        for block in 0..self.depth {
            let name = |part: &str| format!("vision_tower.encoder.blocks.{block}.{part}");
            specs.weight(&name("norm0"), vec![w], norm_bias);
            specs.linear(&name("wqkv"), 3 * a, w, self.attention_bias);
            specs.linear(&name("wo"), w, a, self.attention_bias);
            specs.weight(&name("norm1"), vec![w], norm_bias);
            specs.linear(&name("mlp.fc0"), i, w, self.linear_bias);
            specs.linear(&name("mlp.fc1"), w, i, self.linear_bias);
        }
        specs.weight("vision_tower.encoder.final_layernorm", vec![w], norm_bias);
        let bias = self.projector == Projector::PreNorm;
        match self.projector {
            Projector::PreNorm => specs.layer_norm("mm_projector.pre_norm", w),
            Projector::PostNorm => specs.rms_norm("mm_projector.post_norm", self.out_hidden),
        }
        let merged = w * self.merged_patches();
        let mut specs = specs.into_vec();
        for (layer, stored, out) in [("0", linears[0], merged), ("2", linears[1], self.out_hidden)] {
            let mut tensor = |kind: &str, shape: Vec<usize>| {
                let spec = TensorSpec::new(format!("mm_projector.proj.{layer}.{kind}"), shape);
                specs.push(spec.stored_as(vec![format!("mm_projector.{stored}.{kind}")]));
            };
            tensor("weight", vec![out, merged]);
            if bias {
                tensor("bias", vec![out]);
            }
        }
        specs
    }
}

/// Side of the block of patches that becomes one token.
fn merge(node: Node<'_>) -> Result<u32> {
    if node.get("merge_kernel_size").is_none() {
        return Ok(2);
    }
    match node.u32s("merge_kernel_size", 2..=2, 1..=16)?[..] {
        [rows, columns] if rows == columns => Ok(rows),
        _ => Err(node.need("merge_kernel_size")?.wrong("two equal numbers")),
    }
}

/// Whether a tensor of the checkpoint belongs to the language model.
pub fn of_text(name: &str) -> bool {
    !["vision_tower.", "mm_projector."].iter().any(|start| name.starts_with(start))
}
