//! Resized rows to a tower's values.

#[cfg(target_arch = "x86_64")]
mod avx512;

use super::Normalize;
use super::element::Element;
use super::execution::Level;
use super::patchify::{CHANNELS, Content};

/// Values of 8-bit levels, rounded to the tower's type.
pub struct Table<T> {
    /// `values[channel][level]`
    values: Box<[[T; 256]; CHANNELS]>,
    path: Path,
}

/// What looks values up.
enum Path {
    Native,
    /// Values of two bytes; only where the machine has AVX-512 with VBMI.
    #[cfg(target_arch = "x86_64")]
    Two(avx512::Tables<2>),
    /// Values of four bytes; only where the machine has AVX-512 with VBMI.
    #[cfg(target_arch = "x86_64")]
    Four(avx512::Tables<4>),
}

impl<T: Element> Table<T> {
    /// The table of `normalize`, looked up with instructions of `level`.
    pub fn new(normalize: &Normalize, level: Level) -> Self {
        let values = Box::new(normalize.table.map(|channel| channel.map(T::round)));
        let path = match (level.min(Level::best()), size_of::<T>()) {
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, 2) => Path::Two(avx512::Tables::new(&values)),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, 4) => Path::Four(avx512::Tables::new(&values)),
            _ => Path::Native,
        };
        Self { values, path }
    }

    /// Values of one row of RGB levels.
    pub fn convert(&self, row: &[u8], content: Content<T>) {
        match &self.path {
            Path::Native => each(row, content, |channel, level| self.values[channel][usize::from(level)]),
            // SAFETY: `new` takes this path only where the instructions were detected.
            #[cfg(target_arch = "x86_64")]
            Path::Two(tables) => unsafe { tables.convert(row, content) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Path::Four(tables) => unsafe { tables.convert(row, content) },
        }
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
