//! Pillow's conversions between straight and premultiplied alpha, around a resize of four channels.

/// `color * alpha / 255`, rounded as Pillow rounds.
fn scale(color: u8, alpha: u8) -> u8 {
    let product = u32::from(color) * u32::from(alpha) + 128;
    (((product >> 8) + product) >> 8) as u8
}

/// RGBA samples with the colours multiplied by alpha.
pub fn premultiply(samples: &[u8]) -> Vec<u8> {
    let pixels = samples.as_chunks::<4>().0;
    pixels.iter().flat_map(|&[r, g, b, a]| [scale(r, a), scale(g, a), scale(b, a), a]).collect()
}

/// Divides the colours of RGBA samples by alpha, in place.
pub fn unpremultiply(samples: &mut [u8]) {
    for [r, g, b, a] in samples.as_chunks_mut::<4>().0 {
        if !matches!(*a, 0 | 255) {
            for color in [r, g, b] {
                *color = (255 * u32::from(*color) / u32::from(*a)).min(255) as u8;
            }
        }
    }
}
