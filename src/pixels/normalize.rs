//! Levels to values, in the arithmetic of a reference.

use super::Normalize;

impl Normalize {
    /// transformers on Pillow: `float32(level * rescale)`, then minus mean and divided by deviation in float32.
    pub fn pillow(rescale: f64, mean: [f32; 3], std: [f32; 3]) -> Self {
        Self::from_levels(|level, c| ((f64::from(level) * rescale) as f32 - mean[c]) / std[c], mean, std)
    }

    /// transformers on torchvision: mean and deviation scaled to levels in float32 first.
    pub fn torchvision(rescale: f64, mean: [f32; 3], std: [f32; 3]) -> Self {
        let scale = (1.0 / rescale) as f32;
        Self::from_levels(|level, c| (f32::from(level) - mean[c] * scale) / (std[c] * scale), mean, std)
    }

    fn from_levels(value: impl Fn(u8, usize) -> f32, mean: [f32; 3], std: [f32; 3]) -> Self {
        let mut table = Box::new([[0.0; 256]; 3]);
        for (channel, values) in table.iter_mut().enumerate() {
            for level in 0..=255u8 {
                values[usize::from(level)] = value(level, channel);
            }
        }
        let fill = [0, 1, 2].map(|channel: usize| table[channel][0]);
        Self { table, fill, affine: (255.0, mean, std) }
    }
}
