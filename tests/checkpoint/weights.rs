//! Selecting a tower's tensors: what fits, what does not, and what stays untouched.

use std::fs::File;
use std::os::unix::fs::{FileExt, symlink};
use std::time::{Duration, Instant};

use mm_libtorch_encoder::checkpoint::{Selection, TensorSpec};
use mm_libtorch_encoder::{Dtype, ErrorKind};

use crate::folder::{Folder, file, header, sentence, spec, zeros};

/// The tower of most tests here: `model.visual.a` of four numbers and `model.visual.b.weight` of six.
fn tower() -> [TensorSpec; 2] {
    [spec("a", &[4]), spec("b.weight", &[2, 3])]
}

const A: (&str, &str, &[u64], u64) = ("model.visual.a", "F32", &[4], 16);
const B: (&str, &str, &[u64], u64) = ("model.visual.b.weight", "BF16", &[2, 3], 12);
const TEXT: (&str, &str, &[u64], u64) = ("model.language_model.x", "F8_E4M3", &[8], 8);

fn single(tensors: &[(&str, &str, &[u64], u64)]) -> Folder {
    let folder = Folder::new();
    folder.write("model.safetensors", &zeros(tensors));
    folder
}

#[test]
fn one_file() {
    let folder = Folder::new();
    let data: Vec<u8> = (0..36).collect();
    folder.write("model.safetensors", &file(&header(&[A, TEXT, B]), &data));
    let weights = folder.open().weights().unwrap();
    let names: Vec<_> = weights.names().collect();
    assert_eq!(names, ["model.language_model.x", "model.visual.a", "model.visual.b.weight"]);
    assert!(weights.contains("model.visual.a") && !weights.contains("a"));
    let selection = folder.select(&tower()).unwrap();
    assert_eq!(selection.bytes(), 28);
    let a = selection.tensor("a").unwrap();
    assert_eq!((a.name, a.dtype, a.shape, a.bytes()), ("a", Dtype::F32, &[4][..], &data[..16]));
    let b = selection.tensor("b.weight").unwrap();
    assert_eq!((b.dtype, b.shape, b.bytes()), (Dtype::Bf16, &[2, 3][..], &data[24..]));
    let found: Vec<_> = selection.tensors().map(|info| (info.name, info.dtype)).collect();
    assert_eq!(found, [("a", Dtype::F32), ("b.weight", Dtype::Bf16)]);
    assert_eq!(selection.tensor("c").unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(selection.read_into("a", &mut [0; 15]).unwrap_err().kind(), ErrorKind::Internal);
}

#[test]
fn no_weights() {
    let text = Folder::new().refusal(&[]);
    assert!(text.contains("has neither model.safetensors nor model.safetensors.index.json"), "{text}");
}

#[test]
fn one_file_goes_before_an_index() {
    let folder = single(&[A, B]);
    folder.write("model.safetensors.index.json", b"{");
    folder.select(&tower()).unwrap();
}

#[test]
fn either_prefix() {
    let folder = single(&[("visual.a", "F32", &[4], 16), B]);
    folder.select(&tower()).unwrap();
}

#[test]
fn both_spellings_of_one_tensor() {
    let folder = single(&[("visual.a", "F32", &[4], 16), A, B]);
    let text = folder.refusal(&tower());
    assert_eq!(text, "the weights do not fit the tower: 1 unexpected: \"visual.a\"");
}

#[test]
fn no_prefix_with_names_to_ignore() {
    let folder = single(&[("visual.a", "F16", &[4], 8), ("proj", "F32", &[2], 8), TEXT]);
    let specs = [spec("visual.a", &[4]), spec("proj", &[2])];
    let weights = folder.open().weights().unwrap();
    weights.select(&[""], &specs, &|name| name.starts_with("model.")).unwrap();
    let text = sentence(weights.select(&[""], &specs, &|_| false));
    assert!(text.ends_with("1 unexpected: \"model.language_model.x\""), "{text}");
}

/// q, k and v apart, in two shards, as one tensor of six rows.
#[test]
fn a_tensor_of_parts() {
    let folder = Folder::new();
    let shard = |names: [&str; 2], first: u8| {
        let tensors = names.map(|name| (name, "BF16", &[2, 1][..], 4));
        file(&header(&tensors), &[first, 1, 2, 3, first + 4, 5, 6, 7])
    };
    folder.write("a.safetensors", &shard(["visual.k", "visual.q"], 0));
    folder.write("b.safetensors", &shard(["visual.other", "visual.v"], 100));
    folder.index(&[
        ("visual.q", "a.safetensors"),
        ("visual.k", "a.safetensors"),
        ("visual.v", "b.safetensors"),
        ("visual.other", "b.safetensors"),
    ]);
    let parts = || ["q", "k", "v"].map(str::to_owned).to_vec();
    let specs = [spec("qkv", &[6, 1]).stored_as(parts()), spec("other", &[2, 1])];
    let selection = folder.select(&specs).unwrap();
    let whole = [4, 5, 6, 7, 0, 1, 2, 3, 104, 5, 6, 7];
    assert_eq!(selection.tensor("qkv").unwrap().bytes(), whole);
    assert_eq!((selection.bytes(), selection.info("qkv").unwrap().shape), (16, &[6, 1][..]));
    let mut read = [0; 12];
    selection.read_into("qkv", &mut read).unwrap();
    assert_eq!(read, whole);
    assert!(selection.has("qkv") && !selection.has("q"));
    selection.check_finite().unwrap();
    let weights = folder.open().weights().unwrap();
    assert_eq!(weights.present(&["visual."], &specs), 2);
    assert_eq!(weights.present(&["visual."], &[spec("qkv", &[6, 1]), spec("other", &[2, 1])]), 1);
    let text = folder.refusal(&[spec("qkv", &[9, 1]).stored_as(parts())]);
    assert!(text.contains("\"visual.k\" is [2, 1] instead of [3, 1]"), "{text}");
    let text = folder.refusal(&[spec("qkv", &[4, 1]).stored_as(vec!["q".into(), "w".into()])]);
    assert!(text.contains("1 missing: \"model.visual.w\""), "{text}");
}

#[test]
fn parts_of_different_types() {
    let folder = single(&[("visual.q", "F32", &[1], 4), ("visual.k", "F16", &[1], 2)]);
    let text = folder.refusal(&[spec("qk", &[2]).stored_as(vec!["q".into(), "k".into()])]);
    assert_eq!(text, "the weights do not fit the tower: 1 in parts of different types: \"qk\"");
}

#[test]
fn an_optional_tensor() {
    let specs = [spec("a", &[4]), spec("b.weight", &[2, 3]).optional()];
    let selection = single(&[A]).select(&specs).unwrap();
    assert!(selection.has("a") && !selection.has("b.weight"));
    assert!(single(&[A, B]).select(&specs).unwrap().has("b.weight"));
    let text = single(&[A, ("model.visual.b.weight", "BF16", &[6], 12)]).refusal(&specs);
    assert!(text.contains("is [6] instead of [2, 3]"), "{text}");
}

#[test]
fn everything_wrong_is_one_list() {
    let folder = single(&[
        ("model.visual.a", "F32", &[2, 2], 16),
        ("model.visual.c", "I8", &[4], 4),
        ("model.visual.extra", "F32", &[1], 4),
        ("model.visual.d", "F32", &[3], 8),
    ]);
    let specs = [spec("a", &[4]), spec("b.weight", &[2, 3]), spec("c", &[4]), spec("d", &[3])];
    assert_eq!(
        folder.refusal(&specs),
        "the weights do not fit the tower: 1 quantised or not float32, bfloat16 or float16: \"model.visual.c\" is \
         \"I8\"; 1 missing: \"model.visual.b.weight\"; 1 of another shape: \"model.visual.a\" is [2, 2] instead of \
         [4]; 1 damaged: \"model.visual.d\" has 8 bytes, which its shape and type contradict; 1 unexpected: \
         \"model.visual.extra\""
    );
}

#[test]
fn long_lists_are_cut() {
    let specs: Vec<_> = (0..1000).map(|i| spec(&format!("blocks.{i:04}.weight"), &[4])).collect();
    let text = single(&[A]).refusal(&specs);
    assert!(text.contains("1000 missing: \"model.visual.blocks.0000.weight\", "), "{text}");
    assert!(text.contains("\"model.visual.blocks.0007.weight\", and 992 more; 1 unexpected"), "{text}");
    assert!(text.len() < 1000);
}

#[test]
fn a_dimension_of_one_counts() {
    let text = single(&[A, ("model.visual.b.weight", "F32", &[2, 3, 1], 24)]).refusal(&tower());
    assert!(text.ends_with("\"model.visual.b.weight\" is [2, 3, 1] instead of [2, 3]"), "{text}");
}

#[test]
fn a_scalar_and_an_empty_tensor() {
    let folder = single(&[
        ("model.visual.a", "F32", &[], 4),
        ("model.visual.b", "F32", &[0, 7], 0),
        ("model.visual.c", "F32", &[1], 4),
    ]);
    let selection = folder.select(&[spec("a", &[]), spec("b", &[0, 7]), spec("c", &[1])]).unwrap();
    assert_eq!(selection.tensor("a").unwrap().bytes().len(), 4);
    assert_eq!(selection.tensor("b").unwrap().bytes().len(), 0);
    let text = folder.refusal(&[spec("a", &[1]), spec("b", &[0, 7]), spec("c", &[])]);
    assert!(text.contains("is [] instead of [1]") && text.contains("is [1] instead of []"), "{text}");
}

#[test]
fn element_types_of_quantised_weights() {
    for (dtype, bytes) in
        [("F8_E4M3", 4), ("F8_E5M2", 4), ("I8", 4), ("U8", 4), ("I32", 16), ("F64", 32), ("NF9", 2)]
    {
        let text = single(&[("model.visual.a", dtype, &[4], bytes), B]).refusal(&tower());
        let end = format!("1 quantised or not float32, bfloat16 or float16: \"model.visual.a\" is {dtype:?}");
        assert!(text.ends_with(&end), "{text}");
    }
}

#[test]
fn scales_beside_a_weight_are_seen_whatever_is_ignored() {
    for beside in [
        "b.weight_scale",
        "b.weight_scale_inv",
        "b.weight_scale_2",
        "b.input_scale",
        "b.weight_zero_point",
        "b.qweight",
        "b.qzeros",
        "b.scales",
        "b.g_idx",
        "b.weight_packed",
        "b.weight_shape",
        "b.SCB",
        "b.weight.absmax",
        "b.weight.nested_quant_map",
        "b.weight.quant_state.bitsandbytes__nf4",
    ] {
        let folder = single(&[A, B, (&format!("model.visual.{beside}"), "F32", &[1], 4)]);
        let weights = folder.open().weights().unwrap();
        let text = sentence(weights.select(&["model.visual."], &tower(), &|_| true));
        assert!(text.ends_with(&format!("\"model.visual.{beside}\" stands beside a weight")), "{text}");
    }
    let other = single(&[A, B, ("model.visual.logit_scale", "F32", &[1], 4)]);
    other
        .open()
        .weights()
        .unwrap()
        .select(&["model.visual."], &tower(), &|name| name == "logit_scale")
        .unwrap();
}

#[test]
fn shards_of_other_tensors_may_be_missing() {
    let folder = Folder::new();
    folder.index(&[(A.0, "v.safetensors"), (B.0, "v.safetensors"), (TEXT.0, "gone.safetensors")]);
    folder.write("v.safetensors", &zeros(&[A, B]));
    assert_eq!(folder.select(&tower()).unwrap().bytes(), 28);
}

#[test]
fn a_needed_shard_is_missing() {
    let folder = Folder::new();
    folder.index(&[(A.0, "v.safetensors"), (B.0, "gone.safetensors")]);
    folder.write("v.safetensors", &zeros(&[A]));
    assert_eq!(
        folder.refusal(&tower()),
        "the weights do not fit the tower: 1 unusable shards: gone.safetensors: does not exist, though the index \
         places tensors of the tower in it (1 wanted tensors)"
    );
}

#[test]
fn a_shard_lacks_what_the_index_says() {
    let folder = Folder::new();
    folder.index(&[(A.0, "v.safetensors"), (B.0, "v.safetensors")]);
    folder.write("v.safetensors", &zeros(&[A]));
    let text = folder.refusal(&tower());
    assert!(text.ends_with("1 missing: \"model.visual.b.weight\" (not in v.safetensors)"), "{text}");
}

#[test]
fn a_shard_holds_what_the_index_does_not_know() {
    let folder = Folder::new();
    folder.index(&[(A.0, "v.safetensors")]);
    folder.write("v.safetensors", &zeros(&[A, B, TEXT]));
    let text = folder.refusal(&[spec("a", &[4])]);
    assert!(text.ends_with("1 unexpected: \"model.visual.b.weight\""), "{text}");
}

#[test]
fn links_are_followed_as_the_hugging_face_cache_needs() {
    let folder = Folder::new();
    let blobs = Folder::empty();
    blobs.write("8f3a", &zeros(&[A, B]));
    symlink(blobs.path().join("8f3a"), folder.path().join("v.safetensors")).unwrap();
    folder.index(&[(A.0, "v.safetensors"), (B.0, "v.safetensors")]);
    folder.select(&tower()).unwrap();
}

/// Bytes that this thread has asked the system to read.
fn bytes_read() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// A file of `len` bytes of which only the header takes room on the disk.
fn sparse(folder: &Folder, name: &str, tensors: &[(&str, &str, &[u64], u64)]) -> File {
    let bytes = file(&header(tensors), &[]);
    let data: u64 = tensors.iter().map(|tensor| tensor.3).sum();
    folder.write(name, &bytes);
    let file = File::options().write(true).open(folder.path().join(name)).unwrap();
    file.set_len(bytes.len() as u64 + data).unwrap();
    file
}

#[test]
fn huge_files_cost_only_the_tower() {
    const HUGE: u64 = 4 << 40;
    let folder = Folder::new();
    let experts = ("model.language_model.experts", "BF16", &[HUGE / 2][..], HUGE);
    let others = sparse(&folder, "text.safetensors", &[experts]);
    let before = ("model.language_model.before", "I8", &[HUGE][..], HUGE);
    let tower_bytes = 1 << 20;
    let weight = ("model.visual.w", "BF16", &[1 << 19][..], tower_bytes);
    let after = ("model.language_model.after", "I8", &[HUGE][..], HUGE);
    let mixed = sparse(&folder, "mixed.safetensors", &[before, weight, after]);
    let start = mixed.metadata().unwrap().len() - HUGE - tower_bytes;
    mixed.write_all_at(&[7; 1 << 20], start).unwrap();
    drop((others, mixed));
    folder.index(&[
        (experts.0, "text.safetensors"),
        (before.0, "mixed.safetensors"),
        (weight.0, "mixed.safetensors"),
        (after.0, "mixed.safetensors"),
    ]);
    let (began, read) = (Instant::now(), bytes_read());
    let selection = folder.select(&[spec("w", &[1 << 19])]).unwrap();
    let selected = bytes_read() - read;
    let tensor = selection.tensor("w").unwrap();
    let whole = bytes_read() - read;
    assert!(tensor.bytes().iter().all(|&byte| byte == 7));
    assert!(selected < 4096, "selecting read {selected} bytes");
    assert!(whole < tower_bytes + 4096, "loading read {whole} bytes");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_file_cut_short_while_in_use_is_an_error_and_no_signal() {
    let folder = single(&[A, B]);
    let selection = folder.select(&tower()).unwrap();
    let file = File::options().write(true).open(folder.path().join("model.safetensors")).unwrap();
    file.set_len(10).unwrap();
    let text = sentence(selection.tensor("b.weight"));
    assert_eq!(text, "model.safetensors: cannot be read: it became shorter while it was in use");
    assert!(selection.identity().is_err() && selection.check_finite().is_err());
}

fn with_values(dtype: &str, values: &[u8]) -> Selection {
    let folder = Folder::new();
    let count = values.len() as u64 / if dtype == "F32" { 4 } else { 2 };
    let tensor = ("model.visual.a", dtype, &[count][..], values.len() as u64);
    folder.write("model.safetensors", &file(&header(&[tensor]), values));
    folder.select(&[spec("a", &[count as usize])]).unwrap()
}

#[test]
fn values_that_are_not_finite() {
    for (dtype, bytes) in [
        ("F32", f32::NAN.to_le_bytes().to_vec()),
        ("F32", f32::NEG_INFINITY.to_le_bytes().to_vec()),
        ("BF16", half::bf16::NAN.to_le_bytes().to_vec()),
        ("BF16", half::bf16::INFINITY.to_le_bytes().to_vec()),
        ("F16", half::f16::NAN.to_le_bytes().to_vec()),
        ("F16", half::f16::NEG_INFINITY.to_le_bytes().to_vec()),
    ] {
        let mut values = vec![0; 1 << 20];
        with_values(dtype, &values).check_finite().unwrap();
        let end = values.len() - bytes.len();
        values[end..].copy_from_slice(&bytes);
        let text = sentence(with_values(dtype, &values).check_finite());
        assert!(text.ends_with("1 damaged: \"model.visual.a\" holds NaN or infinity"), "{text}");
    }
    let largest = [f32::MAX.to_le_bytes(), f32::MIN.to_le_bytes()].concat();
    with_values("F32", &largest).check_finite().unwrap();
    let largest = [half::f16::MAX.to_le_bytes(), half::f16::MIN.to_le_bytes()].concat();
    with_values("F16", &largest).check_finite().unwrap();
}

#[test]
fn identity_follows_values_names_shapes_and_types() {
    let values: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    let identity = |dtype, values: &[u8]| with_values(dtype, values).identity().unwrap();
    let one = identity("BF16", &values);
    assert_eq!(one, identity("BF16", &values), "copies agree");
    assert_ne!(one, identity("F16", &values), "the type counts");
    assert_ne!(one, identity("BF16", &values[..1 << 19]), "the shape counts");
    for at in [0, 4095, values.len() - 1, values.len() - 4096] {
        let mut other = values.clone();
        other[at] ^= 1;
        assert_ne!(one, identity("BF16", &other), "byte {at} counts");
    }
    let folder = single(&[A, B]);
    let moved = Folder::new();
    moved.index(&[(A.0, "1.safetensors"), (B.0, "2.safetensors")]);
    moved.write("1.safetensors", &zeros(&[TEXT, A]));
    moved.write("2.safetensors", &zeros(&[B]));
    let identity = |folder: &Folder| folder.select(&tower()).unwrap().identity().unwrap();
    assert_eq!(identity(&folder), identity(&moved), "shards do not count");
}
