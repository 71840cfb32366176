//! Tables from 8-bit levels to a tower's values, in the arithmetic of each reference.

use super::Normalize;

impl Normalize {
    /// A table from any function of (channel, level). Padded samples get level 0's value, and unrounded levels
    /// (see [`Normalize::affine`]) stay as they are until [`Normalize::with_affine`] says otherwise.
    pub fn from_fn(value: impl Fn(usize, u8) -> f32) -> Self {
        let mut table = Box::new([[0.0; 256]; 3]);
        for (channel, values) in table.iter_mut().enumerate() {
            for (level, entry) in (0..=255).zip(values.iter_mut()) {
                *entry = value(channel, level);
            }
        }
        let fill = [0, 1, 2].map(|channel: usize| table[channel][0]);
        Self { table, fill, affine: (1.0, [0.0; 3], [1.0; 3]) }
    }

    /// transformers' Pillow backend: the level is rescaled in float64, rounded to float32, then
    /// `(x - mean) / std` in float32.
    pub fn pil(rescale_factor: f64, mean: [f64; 3], std: [f64; 3]) -> Self {
        let (mean, std) = (mean.map(|m| m as f32), std.map(|s| s as f32));
        Self::from_fn(|c, level| ((f64::from(level) * rescale_factor) as f32 - mean[c]) / std[c]).with_affine(
            (1.0 / rescale_factor) as f32,
            mean,
            std,
        )
    }

    /// transformers' torchvision backend: mean and std are multiplied by `1 / rescale_factor`, then
    /// `(level - mean) / std`, all in float32.
    pub fn torchvision(rescale_factor: f64, mean: [f64; 3], std: [f64; 3]) -> Self {
        let scale = (1.0 / rescale_factor) as f32;
        let (mean, std) = (mean.map(|m| m as f32 * scale), std.map(|s| s as f32 * scale));
        Self::from_fn(|c, level| (f32::from(level) - mean[c]) / std[c]).with_affine(1.0, mean, std)
    }

    /// `(level / 255 - mean) / std`, each step in float32.
    pub fn divided(mean: [f64; 3], std: [f64; 3]) -> Self {
        let (mean, std) = (mean.map(|m| m as f32), std.map(|s| s as f32));
        Self::from_fn(|c, level| (f32::from(level) / 255.0 - mean[c]) / std[c]).with_affine(255.0, mean, std)
    }

    /// `(level * (1 / 255) - mean) / std`, each step in float32, with `1 / 255` rounded to float32.
    pub fn multiplied(mean: [f64; 3], std: [f64; 3]) -> Self {
        let (mean, std) = (mean.map(|m| m as f32), std.map(|s| s as f32));
        Self::from_fn(|c, level| (f32::from(level) * (1.0 / 255.0) - mean[c]) / std[c])
            .with_affine(255.0, mean, std)
    }

    /// `level / 255`, minus mean, times `1 / std`: each step in float64, rounded to float32 after each.
    pub fn double(mean: [f64; 3], std: [f64; 3]) -> Self {
        let value = |c: usize, level: u8| {
            let x = (f64::from(level) / 255.0) as f32;
            let x = (f64::from(x) - mean[c]) as f32;
            (f64::from(x) * (1.0 / std[c])) as f32
        };
        Self::from_fn(value).with_affine(255.0, mean.map(|m| m as f32), std.map(|s| s as f32))
    }

    /// With every value rounded to bfloat16, whatever type is written in the end.
    pub fn rounded_to_bf16(mut self) -> Self {
        let round = |value: &mut f32| *value = half::bf16::from_f32(*value).to_f32();
        self.table.as_flattened_mut().iter_mut().chain(&mut self.fill).for_each(round);
        self
    }

    /// With padded samples of `level`.
    pub fn with_fill_level(mut self, level: u8) -> Self {
        self.fill = [0, 1, 2].map(|channel: usize| self.table[channel][usize::from(level)]);
        self
    }

    /// With padded samples of these values, one a channel.
    pub fn with_fill(mut self, fill: [f32; 3]) -> Self {
        self.fill = fill;
        self
    }

    /// With `(v / scale - mean) / std` for unrounded levels `v`.
    pub fn with_affine(mut self, scale: f32, mean: [f32; 3], std: [f32; 3]) -> Self {
        self.affine = (scale, mean, std);
        self
    }
}
