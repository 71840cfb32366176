//! Checkpoint folders: what is read, what is refused, and what is never touched.

use mm_libtorch_encoder::Dtype;
use mm_libtorch_encoder::checkpoint::demo::{default_scale, write_demo};
use mm_libtorch_encoder::checkpoint::{Checkpoint, TensorSpec};

#[test]
fn demo_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("demo");
    let specs = [
        TensorSpec::new("blocks.0.attn.qkv.weight", [384, 128]),
        TensorSpec::new("blocks.0.norm1.weight", [128]),
        TensorSpec::new("blocks.0.norm1.bias", [128]),
        TensorSpec::new("pos_embed.weight", [2304, 128]),
    ];
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let root = root.join(dtype.name());
        let files = [("config.json", "{\"model_type\": \"x\"}".to_owned())];
        write_demo(&root, &files, "model.visual.", &specs, 7, dtype, &default_scale).unwrap();
        let checkpoint = Checkpoint::open(&root).unwrap();
        assert_eq!(checkpoint.config().str("model_type").unwrap(), "x");
        let weights = checkpoint.weights().unwrap();
        let selection = weights.select(&["visual.", "model.visual."], &specs, &|_| false).unwrap();
        let tensor = selection.tensor("pos_embed.weight").unwrap();
        assert_eq!((tensor.dtype, tensor.shape), (dtype, &[2304, 128][..]));
        assert_eq!(tensor.bytes().len(), 2304 * 128 * dtype.size());
        let mut direct = vec![0; tensor.bytes().len()];
        selection.read_into("pos_embed.weight", &mut direct).unwrap();
        assert_eq!(direct, tensor.bytes());
        selection.check_finite().unwrap();
    }
}
