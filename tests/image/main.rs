//! Decoding from Rust, without Python or Torch: limits, policies, and hostile bytes.
//!
//! The pixels are compared with Pillow's in the Python tests beside this file.

use mm_libtorch_encoder::ErrorKind;
use mm_libtorch_encoder::image::{Alpha, DecodePolicy, Limits, Sixteen, decode, header};

const PNG: &[u8] = include_bytes!("../plain_build/gradient.png");
const JPEG: &[u8] = include_bytes!("../plain_build/gradient.jpg");

/// A grey pixmap that names its levels.
fn greymap(width: u32, height: u32, top: u32) -> Vec<u8> {
    let mut file = format!("P5 {width} {height} {top}\n").into_bytes();
    for i in 0..width * height {
        let level = i % (top + 1);
        if top > 255 {
            file.push((level >> 8) as u8);
        }
        file.push(level as u8);
    }
    file
}

/// 24 bits, rows upward: blue, green, red.
fn bitmap(width: u32, height: u32) -> Vec<u8> {
    let stride = (width * 3).next_multiple_of(4);
    let mut file = b"BM".to_vec();
    for word in [54 + stride * height, 0, 54, 40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend((0..stride * height).map(|i| i as u8));
    file
}

fn seeds() -> Vec<Vec<u8>> {
    vec![PNG.to_vec(), JPEG.to_vec(), greymap(19, 7, 255), greymap(5, 4, 1000), bitmap(13, 6)]
}

#[test]
fn header_and_pixels_agree() {
    for file in seeds() {
        let (policy, limits) = (DecodePolicy::default(), Limits::default());
        let head = header(&file, &policy, &limits).expect("valid");
        let image = decode(&file, &policy, &limits).expect("valid");
        assert_eq!((head.width, head.height), (image.width, image.height), "{}", head.format);
        assert_eq!(image.samples.len(), image.width as usize * image.height as usize * 3);
    }
}

#[test]
fn levels_are_where_they_belong() {
    let image = decode(&greymap(4, 2, 255), &DecodePolicy::default(), &Limits::default()).expect("valid");
    assert_eq!(image.samples[..12], [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
    let image = decode(&bitmap(1, 2), &DecodePolicy::default(), &Limits::default()).expect("valid");
    assert_eq!(image.samples, [6, 5, 4, 2, 1, 0]);
    let scale = DecodePolicy { sixteen: Sixteen::Scale, ..DecodePolicy::default() };
    let image = decode(&greymap(1001, 1, 1000), &scale, &Limits::default()).expect("valid");
    assert_eq!(image.samples.last(), Some(&255));
}

#[test]
fn each_limit_is_named() {
    let file = greymap(20, 10, 255);
    let all = Limits::default();
    let cases = [
        (Limits { bytes: 50, ..all }, "limit of 50 bytes"),
        (Limits { pixels: 199, ..all }, "200 pixels, over the limit of 199"),
        (Limits { side: 19, ..all }, "a side over the limit of 19"),
        (Limits { memory: 600, ..all }, "over the limit of 600"),
    ];
    for (limits, sentence) in cases {
        let error = decode(&file, &DecodePolicy::default(), &limits).expect_err("over a limit");
        assert_eq!(error.kind(), ErrorKind::Media);
        assert!(error.to_string().contains(sentence), "{error}");
    }
    let exact = Limits { bytes: file.len() as u64, pixels: 200, side: 20, ..all };
    assert!(decode(&file, &DecodePolicy::default(), &exact).is_ok());
}

#[test]
fn policies_have_identities() {
    let over = |colour| DecodePolicy { alpha: Alpha::Over(colour), ..DecodePolicy::default() };
    assert_ne!(over([0, 0, 0]).identity(), over([0, 0, 1]).identity());
    assert_eq!(DecodePolicy::preset("sglang").expect("known"), DecodePolicy::default());
    assert_eq!(DecodePolicy::preset("x").expect_err("unknown").kind(), ErrorKind::Argument);
}

#[test]
fn hostile_bytes_end_in_an_image_or_an_error_of_the_item() {
    let limits = Limits { pixels: 1 << 16, ..Limits::default() };
    let policies = ["pillow", "hf", "vllm"].map(|name| DecodePolicy::preset(name).expect("known"));
    let mut state = 0x9E37_79B9u32;
    let mut random = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below.max(1)
    };
    let (mut images, mut errors) = (0, 0);
    for seed in seeds() {
        for round in 0..400 {
            let mut file = seed.clone();
            for _ in 0..=random(4) {
                let span = if random(2) == 0 { file.len() } else { file.len().min(64) };
                let at = random(span);
                match random(4) {
                    0 => file[at] ^= 1 << random(8),
                    1 => file[at] = random(256) as u8,
                    2 => file.truncate(at.max(1)),
                    _ => drop(file.splice(at..at, (0..random(9)).map(|i| i as u8 * 31))),
                }
            }
            match decode(&file, &policies[round % policies.len()], &limits) {
                Ok(image) => {
                    assert_eq!(image.samples.len(), (image.width * image.height) as usize * 3);
                    images += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Media, "{error}");
                    errors += 1;
                }
            }
        }
    }
    assert!(images > 100 && errors > 100, "{images} images, {errors} errors");
}
