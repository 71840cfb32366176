//! The two published spellings of the tower's tensors: that of the release, and that of ModelOpt's exports, which
//! follows the modules of transformers and has q, k and v apart.

use super::config::VisionConfig;
use crate::checkpoint::TensorSpec;
use crate::family::WeightNames;
use crate::family::parts::Specs;

/// Under these the release and the export keep what is seen; all else is the language model's or hears.
const SCOPES: [&str; 3] = ["vision_model.", "vision_projector.", "mlp1."];
/// Known and not used: the normaliser, which preprocessing applies, the embedder of videos, and an index of the rows
/// that this model drops.
const UNUSED: [&str; 5] = [
    "vision_model.radio_model.input_conditioner.norm_mean",
    "vision_model.radio_model.input_conditioner.norm_std",
    "vision_model.radio_model.model.patch_generator.video_embedder.weight",
    "vision_model.embeddings.video_patch_projection.weight",
    "vision_model.summary_idxs",
];

/// Both spellings of the tensors of `config`; the tower knows them by the release's names.
pub fn spellings(config: &VisionConfig) -> Vec<WeightNames> {
    let named = |specs| WeightNames { prefixes: &[""], specs, ignored };
    let release = specs(config);
    let mut export: Vec<TensorSpec> = release.iter().cloned().map(exported).collect();
    for block in 0..config.depth {
        for scale in [1, 2] {
            let name = layer_scale(block, scale);
            export.push(TensorSpec::new(name, [config.hidden]).optional());
        }
    }
    vec![named(release), named(export)]
}

fn ignored(name: &str) -> bool {
    UNUSED.contains(&name) || !SCOPES.iter().any(|scope| name.starts_with(scope))
}

/// The release's name of part `part` of the tower.
pub fn radio(part: &str) -> String {
    format!("vision_model.radio_model.model.{part}")
}

/// The export's name of a scale that must be all ones; the release has none.
pub fn layer_scale(block: usize, scale: usize) -> String {
    format!("vision_model.encoder.layer.{block}.layer_scale{scale}.lambda1")
}

fn specs(config: &VisionConfig) -> Vec<TensorSpec> {
    let (w, i) = (config.hidden, config.intermediate);
    let mut specs = Specs::default();
    specs.linear(&radio("patch_generator.embedder"), w, config.patch_columns(), false);
    let entries = (config.table_side * config.table_side) as usize;
    specs.tensor(radio("patch_generator.pos_embed"), [1, entries, w]);
    if config.prefix > 0 {
        specs.tensor(radio("patch_generator.cls_token.token"), [config.prefix, w]);
    }
    for block in 0..config.depth {
        let name = |part: &str| radio(&format!("blocks.{block}.{part}"));
        specs.layer_norm(&name("norm1"), w);
        specs.linear(&name("attn.qkv"), 3 * w, w, config.biases);
        specs.linear(&name("attn.proj"), w, w, true);
        specs.layer_norm(&name("norm2"), w);
        specs.linear(&name("mlp.fc1"), i, w, true);
        specs.linear(&name("mlp.fc2"), w, i, true);
    }
    if config.final_norm {
        specs.layer_norm("vision_projector.vision_final_layernorm", w);
    }
    specs.rms_norm("mlp1.0", config.merged());
    specs.linear("mlp1.1", config.projection, config.merged(), false);
    specs.linear("mlp1.3", config.out_hidden, config.projection, false);
    specs.into_vec()
}

/// The same tensor under the export's names.
fn exported(spec: TensorSpec) -> TensorSpec {
    let names = |names: Vec<String>| spec.clone().stored_as(names);
    let renamed = [
        (radio("patch_generator.embedder.weight"), "vision_model.embeddings.patch_projection.weight"),
        (radio("patch_generator.pos_embed"), "vision_model.embeddings.position_embedding"),
        (radio("patch_generator.cls_token.token"), "vision_model.embeddings.cls_register_token"),
        ("mlp1.0.weight".to_owned(), "vision_projector.mlp1.norm.weight"),
        ("mlp1.1.weight".to_owned(), "vision_projector.mlp1.linear1.weight"),
        ("mlp1.3.weight".to_owned(), "vision_projector.mlp1.linear2.weight"),
    ];
    if let Some((_, name)) = renamed.iter().find(|(release, _)| *release == spec.name) {
        return names(vec![(*name).to_owned()]);
    }
    let Some(layer) = spec.name.strip_prefix(&radio("blocks.")) else { return spec };
    let layer = format!("vision_model.encoder.layer.{layer}");
    match layer.split_once(".attn.qkv.") {
        Some((layer, kind)) => {
            let part = |part: &str| format!("{layer}.attention.attention.{part}.{kind}");
            names(["query", "key", "value"].map(part).to_vec())
        }
        None => names(vec![layer.replace(".attn.proj.", ".attention.output.dense.")]),
    }
}
