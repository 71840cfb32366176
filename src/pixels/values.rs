//! Resized rows to a tower's values.

use super::Normalize;
use super::element::Element;
use super::patchify::{CHANNELS, Content};

/// Values of 8-bit levels, rounded to the tower's type: `values[channel][level]`.
pub struct Table<T> {
    values: Box<[[T; 256]; CHANNELS]>,
}

impl<T: Element> Table<T> {
    /// The table of `normalize`.
    pub fn new(normalize: &Normalize) -> Self {
        Self { values: Box::new(normalize.table.map(|channel| channel.map(T::round))) }
    }

    /// Values of one row of RGB levels.
    pub fn convert(&self, row: &[u8], content: Content<T>) {
        each(row, content, |channel, level| self.values[channel][usize::from(level)]);
    }
}

/// `(v / scale - mean) / std` of unrounded levels `v`, each step in float32, then rounded to the tower's type.
pub struct Affine {
    scale: f32,
    mean: [f32; CHANNELS],
    std: [f32; CHANNELS],
}

impl Affine {
    /// The function of `normalize`.
    pub fn new(normalize: &Normalize) -> Self {
        let (scale, mean, std) = normalize.affine;
        Self { scale, mean, std }
    }

    /// Values of one row of unrounded RGB levels.
    pub fn convert<T: Element>(&self, row: &[f32], content: Content<T>) {
        each(row, content, |channel, v| T::round((v / self.scale - self.mean[channel]) / self.std[channel]));
    }
}

#[inline(always)]
fn each<S: Copy, T>(row: &[S], content: Content<T>, value: impl Fn(usize, S) -> T) {
    let pixels = row.as_chunks::<CHANNELS>().0;
    match content {
        Content::Planes(planes) => {
            for (channel, plane) in planes.into_iter().enumerate() {
                plane.iter_mut().zip(pixels).for_each(|(to, pixel)| *to = value(channel, pixel[channel]));
            }
        }
        Content::Pixels(samples) => {
            for (to, pixel) in samples.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(pixels) {
                *to = std::array::from_fn(|channel| value(channel, pixel[channel]));
            }
        }
    }
}
