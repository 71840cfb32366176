//! Configuration files and the values in them.

use std::os::unix::ffi::OsStrExt;

use mm_libtorch_encoder::checkpoint::Checkpoint;

use crate::folder::{Folder, sentence};

fn refused(config: &[u8]) -> String {
    let folder = Folder::empty();
    folder.write("config.json", config);
    sentence(Checkpoint::open(folder.path()))
}

fn opened(config: &str) -> (Folder, Checkpoint) {
    let folder = Folder::empty();
    folder.write("config.json", config.as_bytes());
    let checkpoint = folder.open();
    (folder, checkpoint)
}

#[test]
fn folder_is_missing() {
    let text = sentence(Checkpoint::open("/no/such/folder".as_ref()));
    assert_eq!(text, "checkpoint \"/no/such/folder\" is not a folder that can be read");
}

#[test]
fn config_is_missing() {
    let text = sentence(Checkpoint::open(Folder::empty().path()));
    assert!(text.ends_with("has no config.json: give the folder that holds it"), "{text}");
}

#[test]
fn config_is_empty() {
    assert_eq!(
        refused(b""),
        "config.json: ends in the middle of a JSON value: the file is cut short or empty"
    );
}

#[test]
fn config_is_cut_short() {
    let text = refused(b"{\"vision_config\": {\"depth\": 2");
    assert_eq!(text, "config.json: ends in the middle of a JSON value: the file is cut short or empty");
}

#[test]
fn config_is_text() {
    assert_eq!(refused(b"hello there"), "config.json: is not valid JSON at line 1, column 1, near \"hello\"");
}

#[test]
fn config_goes_on_after_its_object() {
    assert_eq!(refused(b"{}\n[]"), "config.json: is not valid JSON at line 2, column 1");
}

#[test]
fn config_is_a_list() {
    assert_eq!(refused(b"[1, 2, 3]"), "config.json: must be an object, got a list of 3");
}

#[test]
fn config_is_not_utf8() {
    assert_eq!(refused(b"{\"a\": \"\xff\"}"), "config.json: is not UTF-8 text: byte 7 is wrong");
}

#[test]
fn config_is_too_long() {
    let folder = Folder::empty();
    let file = std::fs::File::create(folder.path().join("config.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    let text = sentence(Checkpoint::open(folder.path()));
    assert_eq!(text, "config.json: is 1099511627776 bytes long or longer, above the limit of 8388608 bytes");
}

#[test]
fn config_is_a_folder() {
    let folder = Folder::empty();
    std::fs::create_dir(folder.path().join("config.json")).unwrap();
    assert_eq!(sentence(Checkpoint::open(folder.path())), "config.json: is not a regular file");
}

#[test]
fn config_is_a_device() {
    let folder = Folder::empty();
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("config.json")).unwrap();
    assert_eq!(sentence(Checkpoint::open(folder.path())), "config.json: is not a regular file");
}

#[test]
fn config_is_a_pipe() {
    let folder = Folder::empty();
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("config.json")).status().unwrap();
    assert!(made.success());
    assert_eq!(sentence(Checkpoint::open(folder.path())), "config.json: is not a regular file");
}

#[test]
fn config_holds_nan() {
    let text = refused(b"{\"rope\": {\n  \"theta\": NaN}}");
    assert_eq!(text, "config.json: holds NaN at line 2, column 12, which is not JSON: write a finite number");
}

#[test]
fn config_holds_infinity() {
    assert!(refused(b"{\"eps\": Infinity}").contains("holds Infinity at line 1"));
    assert!(refused(b"{\"eps\": -Infinity}").contains("holds -Infinity at line 1"));
}

#[test]
fn config_holds_a_number_beyond_double_precision() {
    let text = refused(b"{\"eps\": 1e999}");
    assert!(text.starts_with("config.json: is not valid JSON at line 1") && text.contains("1e999"), "{text}");
}

#[test]
fn config_holds_a_key_twice() {
    let text = refused(b"{\"vision_config\": {\"depth\": 2, \"depth\": 3}}");
    assert_eq!(text, "config.json: holds the key \"depth\" twice in one object");
}

#[test]
fn config_nests_too_deep() {
    let nested = |levels: usize| format!("{{\"a\": {}{}}}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(refused(nested(100_000).as_bytes()), "config.json: nests values deeper than 64 levels");
    opened(&nested(63));
}

#[test]
fn path_is_not_utf8() {
    let folder = Folder::empty();
    let root = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    std::fs::create_dir(&root).unwrap();
    assert!(sentence(Checkpoint::open(&root)).contains("caf\\xE9"));
    std::fs::write(root.join("config.json"), "{\"depth\": 3}").unwrap();
    let checkpoint = Checkpoint::open(&root).unwrap();
    assert_eq!(checkpoint.root(), root);
    assert_eq!(checkpoint.config().u32("depth", 1..=8).unwrap(), 3);
    assert!(sentence(checkpoint.weights()).contains("caf\\xE9"));
}

#[test]
fn integers_have_form_and_range() {
    let (_folder, checkpoint) = opened(
        r#"{"vision_config": {"depth": "x", "a": 14.0, "b": true, "c": -1, "d": 300, "e": 18446744073709551616,
            "f": 1e2, "g": null, "h": {}, "ok": 256}}"#,
    );
    let vision = checkpoint.config().object("vision_config").unwrap();
    let refused = |key| sentence(vision.u32(key, 1..=256));
    let must = "must be an integer from 1 to 256, got";
    assert_eq!(refused("depth"), format!("config.json: vision_config.depth {must} \"x\""));
    assert_eq!(refused("a"), format!("config.json: vision_config.a {must} 14.0"));
    assert_eq!(refused("b"), format!("config.json: vision_config.b {must} true"));
    assert_eq!(refused("c"), format!("config.json: vision_config.c {must} -1"));
    assert_eq!(refused("d"), format!("config.json: vision_config.d {must} 300"));
    assert!(refused("e").starts_with(&format!("config.json: vision_config.e {must} 1.844674407370955")));
    assert_eq!(refused("f"), format!("config.json: vision_config.f {must} 100.0"));
    assert_eq!(refused("g"), "config.json: vision_config.g is missing");
    assert_eq!(refused("h"), format!("config.json: vision_config.h {must} an object"));
    assert_eq!(refused("no"), "config.json: vision_config.no is missing");
    assert_eq!(vision.u32("ok", 1..=256).unwrap(), 256);
    assert_eq!(vision.u32_or("g", 7, 1..=8).unwrap(), 7);
    assert_eq!(vision.opt_u32("no", 1..=8).unwrap(), None);
    assert!(vision.u32_or("d", 7, 1..=8).is_err());
}

#[test]
fn other_forms() {
    let (_folder, checkpoint) = opened(
        r#"{"eps": 1e-6, "theta": 10000, "bias": false, "act": "silu", "mean": [0.5, 0.25, 1], "two": [1, 2],
            "odd": [1, "x"], "it's": 1}"#,
    );
    let config = checkpoint.config();
    assert_eq!(config.f64("eps", 0.0..=1.0).unwrap(), 1e-6);
    assert_eq!(config.f64("theta", 0.0..=1e9).unwrap(), 1e4);
    assert_eq!(config.f64_or("no", 0.5, 0.0..=1.0).unwrap(), 0.5);
    assert_eq!(
        sentence(config.f64("theta", 1e-12..=1.5)),
        "config.json: theta must be a number from 1e-12 to 1.5, got 10000"
    );
    assert!(!config.bool_or("bias", true).unwrap());
    assert!(config.bool_or("no", true).unwrap());
    assert_eq!(sentence(config.bool_or("eps", true)), "config.json: eps must be true or false, got 1e-6");
    assert_eq!(config.str("act").unwrap(), "silu");
    assert_eq!(config.str_or("no", "gelu").unwrap(), "gelu");
    assert_eq!(config.opt_str("no").unwrap(), None);
    assert_eq!(sentence(config.str("eps")), "config.json: eps must be a string, got 1e-6");
    assert_eq!(sentence(config.str("no")), "config.json: no is missing");
    assert_eq!(config.floats::<3>("mean", 0.0..=1.0).unwrap(), [0.5, 0.25, 1.0]);
    assert_eq!(
        sentence(config.floats::<3>("two", 0.0..=1.0)),
        "config.json: two must be a list of 3, got a list of 2"
    );
    assert_eq!(
        sentence(config.floats::<2>("odd", 0.0..=1.0)),
        "config.json: odd[1] must be a number from 0.0 to 1.0, got \"x\""
    );
    assert_eq!(config.u32s("two", 0..=4, 0..=9).unwrap(), [1, 2]);
    assert_eq!(
        sentence(config.u32s("mean", 0..=2, 0..=9)),
        "config.json: mean must be a list of 0 to 2 items, got a list of 3"
    );
    assert_eq!(sentence(config.object("two")), "config.json: two must be an object, got a list of 2");
    assert_eq!(sentence(config.str("it's")), "config.json: [\"it's\"] must be a string, got 1");
    assert_eq!(
        config.need("act").unwrap().wrong("\"gelu\"").to_string(),
        "config.json: act must be \"gelu\", got \"silu\""
    );
    let long = format!("{{\"a\": \"{}\"}}", "\u{e9}".repeat(1 << 20));
    let (_folder, checkpoint) = opened(&long);
    assert!(sentence(checkpoint.config().u32("a", 0..=1)).len() < 400);
}

/// The value of `size` that transformers' order of lookup arrives at.
fn size(files: &[(&str, &str)]) -> mm_libtorch_encoder::Result<Option<u32>> {
    let folder = Folder::new();
    for (name, text) in files {
        folder.write(name, text.as_bytes());
    }
    let checkpoint = folder.open();
    checkpoint.image_processor()?.map(|node| node.u32("size", 0..=99)).transpose()
}

const NESTED: (&str, &str) = ("processor_config.json", r#"{"size": 1, "image_processor": {"size": 2}}"#);
const FLAT: (&str, &str) = ("preprocessor_config.json", r#"{"size": 3}"#);

#[test]
fn processor_files() {
    assert_eq!(size(&[]).unwrap(), None);
    assert_eq!(size(&[NESTED]).unwrap(), Some(2));
    assert_eq!(size(&[FLAT]).unwrap(), Some(3));
    assert_eq!(size(&[NESTED, FLAT]).unwrap(), Some(2));
    let without = ("processor_config.json", r#"{"size": 1}"#);
    assert_eq!(size(&[without]).unwrap(), None);
    assert_eq!(size(&[without, FLAT]).unwrap(), Some(3));
    let null = ("processor_config.json", r#"{"image_processor": null}"#);
    assert_eq!(size(&[null, FLAT]).unwrap(), Some(3));
}

#[test]
fn processor_files_are_refused_when_asked_for() {
    let nested = ("processor_config.json", r#"{"image_processor": [1]}"#);
    assert_eq!(
        sentence(size(&[nested, FLAT])),
        "processor_config.json: image_processor must be an object, got a list of 1"
    );
    let broken = ("processor_config.json", "{");
    assert!(sentence(size(&[broken, FLAT])).starts_with("processor_config.json: ends in the middle"));
    let broken = ("preprocessor_config.json", "[]");
    assert!(sentence(size(&[broken])).starts_with("preprocessor_config.json: must be an object"));
    assert_eq!(size(&[NESTED, broken]).unwrap(), Some(2));
    assert_eq!(
        sentence(size(&[("processor_config.json", r#"{"image_processor": {"size": -1}}"#)])),
        "processor_config.json: image_processor.size must be an integer from 0 to 99, got -1"
    );
}
