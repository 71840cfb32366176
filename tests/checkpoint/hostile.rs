//! Damaged and malicious headers and indices.

use mm_libtorch_encoder::checkpoint::TensorSpec;
use mm_libtorch_encoder::checkpoint::write::write_safetensors;
use mm_libtorch_encoder::{Dtype, ErrorKind};

use crate::folder::{Folder, file, header, sentence, spec, zeros};

/// The sentence with which a file of these bytes is refused.
fn refused(bytes: &[u8]) -> String {
    let folder = Folder::new();
    folder.write("model.safetensors", bytes);
    folder.refusal(&[])
}

fn refused_header(header: &str, data: usize) -> String {
    refused(&file(header, &vec![0; data]))
}

#[test]
fn shorter_than_a_length() {
    let text = refused(b"1234567");
    assert_eq!(text, "model.safetensors: is 7 bytes long, too short for a safetensors file");
}

#[test]
fn header_beyond_the_limit() {
    let text = refused(&u64::MAX.to_le_bytes());
    assert!(
        text.contains("announces a header of 18446744073709551615 bytes, above the limit of 100000000"),
        "{text}"
    );
}

#[test]
fn header_beyond_the_file() {
    let text = refused(&[1000_u64.to_le_bytes().as_slice(), b"{}"].concat());
    assert!(text.contains("is 10 bytes long, but its header alone takes 1008"), "{text}");
}

#[test]
fn header_is_not_json() {
    assert!(
        refused_header("nothing", 0).starts_with("model.safetensors: header: is not valid JSON at line 1")
    );
}

#[test]
fn header_is_not_an_object() {
    refused_header("[]", 0);
    refused_header("3", 0);
    refused_header("", 0);
}

#[test]
fn header_is_not_utf8() {
    let mut bytes = file("{\"ab\":{}}", &[]);
    bytes[10] = 0xff;
    assert!(refused(&bytes).contains("header: is not UTF-8 text"));
}

#[test]
fn entries_of_wrong_form() {
    for entry in [
        "3",
        "null",
        "{}",
        r#"{"dtype":"F32","shape":[1]}"#,
        r#"{"dtype":"F32","data_offsets":[0,4]}"#,
        r#"{"shape":[1],"data_offsets":[0,4]}"#,
        r#"{"dtype":7,"shape":[1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0]}"#,
        r#"{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}"#,
    ] {
        let text = refused_header(&format!("{{\"x\":{entry}}}"), 4);
        let begin = "model.safetensors: header: the entry of \"x\" is not an element type, a shape";
        assert!(text.starts_with(begin), "{entry}: {text}");
    }
}

#[test]
fn one_name_twice() {
    let entry = |start| format!(r#""x":{{"dtype":"I8","shape":[1],"data_offsets":[{start},{}]}}"#, start + 1);
    let text = refused_header(&format!("{{{},{}}}", entry(0), entry(1)), 2);
    assert_eq!(text, "model.safetensors: holds the tensor \"x\" twice");
}

fn two(a: [u64; 2], b: [u64; 2], data: usize) -> String {
    let entry = |name, offsets: [u64; 2]| {
        format!(r#""{name}":{{"dtype":"I8","shape":[8],"data_offsets":{offsets:?}}}"#)
    };
    refused_header(&format!("{{{},{}}}", entry("a", a), entry("b", b)), data)
}

#[test]
fn overlap() {
    assert_eq!(two([0, 8], [7, 15], 15), "model.safetensors: places \"b\" over another tensor");
    assert_eq!(two([0, 8], [0, 8], 8), "model.safetensors: places \"b\" over another tensor");
}

#[test]
fn holes() {
    assert_eq!(two([0, 8], [9, 17], 17), "model.safetensors: leaves 1 bytes unused before \"b\"");
    assert_eq!(two([1, 9], [9, 17], 17), "model.safetensors: leaves 1 bytes unused before \"a\"");
}

#[test]
fn data_cut_short() {
    let text = two([0, 8], [8, 16], 15);
    assert!(text.contains("but its tensors reach to") && text.contains("the file is cut short"), "{text}");
}

#[test]
fn data_left_over() {
    assert_eq!(two([0, 8], [8, 16], 17), "model.safetensors: holds 1 bytes after its last tensor");
}

#[test]
fn offsets_beyond_any_file() {
    let text = two([0, 8], [u64::MAX - 1, u64::MAX], 16);
    assert_eq!(text, "model.safetensors: places \"b\" beyond any file");
    let text = two([0, u64::MAX], [8, 16], 16);
    assert_eq!(text, "model.safetensors: places \"a\" beyond any file");
}

#[test]
fn shapes_whose_product_overflows() {
    let folder = Folder::new();
    let huge = 1 << 40;
    folder.write("model.safetensors", &zeros(&[("visual.x", "F32", &[huge, huge], 4)]));
    let text = folder.refusal(&[spec("x", &[huge as usize, huge as usize])]);
    assert!(text.contains("1 damaged: \"visual.x\" has 4 bytes, which its shape"), "{text}");
}

#[test]
fn an_entry_may_hold_more_and_metadata_anything() {
    let folder = Folder::new();
    let header = r#"{"__metadata__":{"format":"pt"},"visual.x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"new":{}}}  "#;
    folder.write("model.safetensors", &file(header, &[0; 4]));
    folder.select(&[spec("x", &[1])]).unwrap();
}

fn refused_index(text: &str) -> String {
    let folder = Folder::new();
    folder.write("model.safetensors.index.json", text.as_bytes());
    folder.refusal(&[])
}

#[test]
fn shards_outside_of_the_folder() {
    for name in [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "..",
        ".",
        "",
        ".x.safetensors",
        "a\\b.safetensors",
        "x\0.safetensors",
        "pytorch_model.bin",
        &format!("{}.safetensors", "x".repeat(250)),
    ] {
        let text = refused_index(&serde_json::json!({"weight_map": {"a": name}}).to_string());
        assert!(text.starts_with("model.safetensors.index.json: names the shard "), "{name}: {text}");
    }
}

#[test]
fn malformed_indices() {
    let of = |text: &str| refused_index(text).split_off("model.safetensors.index.json: ".len());
    assert_eq!(of("{}"), "has no \"weight_map\"");
    assert!(of("[]").starts_with("is not valid JSON"));
    assert!(of("{\"weight_map\": 3}").starts_with("is not valid JSON"));
    assert_eq!(of("{\"weight_map\": {\"a\": 3}}"), "weight_map.\"a\" must be a file name");
    assert_eq!(of("{\"weight_map\": {}, \"weight_map\": {}}"), "holds the key \"weight_map\" twice");
    let twice = of("{\"weight_map\": {\"a\": \"1.safetensors\", \"a\": \"2.safetensors\"}}");
    assert_eq!(twice, "holds the tensor \"a\" twice");
    let many: serde_json::Map<_, _> =
        (0..10_001).map(|i| (format!("t{i}"), format!("{i}.safetensors").into())).collect();
    assert_eq!(
        of(&serde_json::json!({"weight_map": many}).to_string()),
        "names more than 10000 shards, the limit"
    );
}

#[test]
fn index_beyond_the_limit() {
    let folder = Folder::new();
    let index = std::fs::File::create(folder.path().join("model.safetensors.index.json")).unwrap();
    index.set_len(1 << 40).unwrap();
    assert!(folder.refusal(&[]).contains("above the limit of 268435456 bytes"));
}

/// A few bits that look random and are the same in every run.
struct Bits(u64);

impl Bits {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }
}

fn small_tower() -> Vec<TensorSpec> {
    (0..8).map(|i| TensorSpec::new(format!("blocks.{i}.weight"), vec![i + 1, 2])).collect()
}

/// A valid file of the small tower with distinct bytes, and where its header ends.
fn small_file() -> (Vec<u8>, usize) {
    let folder = Folder::empty();
    let path = folder.path().join("model.safetensors");
    let specs: Vec<_> =
        small_tower().into_iter().map(|s| TensorSpec::new(format!("visual.{}", s.name), s.shape)).collect();
    let mut next = 0_u8;
    write_safetensors(&path, &specs, Dtype::Bf16, |_, _, out| {
        out.fill_with(|| {
            next = next.wrapping_add(1);
            next
        });
        Ok(())
    })
    .unwrap();
    let bytes = std::fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (bytes, header)
}

#[test]
fn mutated_headers_are_refused_or_read_as_the_reference_reads_them() {
    const ALPHABET: &[u8] = b"0123456789-+.eE[]{}:,\"\\ aF\0\xff";
    let (valid, header) = small_file();
    let folder = Folder::new();
    let specs = small_tower();
    let mut bits = Bits(0x5eed);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..20_000 {
        let mut bytes = valid.clone();
        for _ in 0..=bits.below(3) {
            // Half of the rounds aim at the length and half replace a byte by one that JSON gives a meaning.
            let at = if round % 8 == 0 { bits.below(8) } else { bits.below(header) };
            bytes[at] = if round % 2 == 0 {
                bytes[at] ^ 1 << bits.below(8)
            } else {
                ALPHABET[bits.below(ALPHABET.len())]
            };
        }
        if round % 16 == 0 {
            bytes.truncate(bits.below(bytes.len()));
        }
        folder.write("model.safetensors", &bytes);
        match folder.select(&specs) {
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::Checkpoint);
                sentence::<()>(Err(error));
            }
            Ok(selection) => {
                accepted += 1;
                let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap_or_else(|error| {
                    panic!("round {round}: accepted what the reference refuses: {error}")
                });
                for spec in &specs {
                    let tensor = selection.tensor(&spec.name).unwrap();
                    let name = format!("visual.{}", spec.name);
                    assert_eq!(
                        tensor.bytes(),
                        reference.tensor(&name).unwrap().data(),
                        "round {round}: {name}"
                    );
                }
            }
        }
    }
    assert!(accepted > 50 && refused > 10_000, "{accepted} accepted, {refused} refused");
}

#[test]
fn mutated_indices_and_configurations_never_panic() {
    let (valid, _) = small_file();
    let folder = Folder::new();
    let specs = small_tower();
    folder.write("v.safetensors", &valid);
    let places: Vec<_> = specs.iter().map(|spec| format!("visual.{}", spec.name)).collect();
    folder.index(&places.iter().map(|name| (&**name, "v.safetensors")).collect::<Vec<_>>());
    let index = std::fs::read(folder.path().join("model.safetensors.index.json")).unwrap();
    folder.select(&specs).unwrap();
    let mut bits = Bits(0xfeed);
    for _ in 0..5_000 {
        let mut bytes = index.clone();
        let at = bits.below(bytes.len());
        bytes[at] = bits.below(256) as u8;
        folder.write("model.safetensors.index.json", &bytes);
        folder.write("config.json", &bytes);
        match mm_libtorch_encoder::checkpoint::Checkpoint::open(folder.path()) {
            Ok(checkpoint) => {
                drop(checkpoint.weights().and_then(|w| w.select(&["visual."], &specs, &|_| false)))
            }
            Err(error) => drop(sentence::<()>(Err(error))),
        }
    }
}

#[test]
fn headers_of_many_tensors_are_read_quickly() {
    let names: Vec<String> =
        (0..100_000).map(|i| format!("model.layers.{i}.experts.down_proj.weight")).collect();
    let mut tensors: Vec<(&str, &str, &[u64], u64)> =
        names.iter().map(|name| (&**name, "I8", &[1][..], 1)).collect();
    tensors.push(("visual.x", "F32", &[1], 4));
    let folder = Folder::new();
    folder.write("model.safetensors", &file(&header(&tensors), &vec![0; 100_004]));
    let began = std::time::Instant::now();
    folder.select(&[spec("x", &[1])]).unwrap();
    assert!(began.elapsed() < std::time::Duration::from_secs(5));
}
