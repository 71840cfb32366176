//! Resized rows to a tower's values.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::Normalize;
use super::element::Element;
use super::execution::Level;
use super::layout::CHANNELS;
use super::patchify::{Channels, Convert};

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
    /// Plain look-ups of planes that NEON splits.
    #[cfg(target_arch = "aarch64")]
    Neon,
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
            #[cfg(target_arch = "aarch64")]
            (Level::Neon, _) => Path::Neon,
            _ => Path::Native,
        };
        Self { values, path }
    }
}

impl<T: Element> Convert<u8, T> for Table<T> {
    fn split(&self, row: &[u8], planes: [&mut [u8]; CHANNELS]) {
        match &self.path {
            // SAFETY: `new` takes these paths only where the instructions were detected.
            #[cfg(target_arch = "x86_64")]
            Path::Two(_) | Path::Four(_) => unsafe { avx512::split(row, planes) },
            // SAFETY: every machine of this architecture has NEON.
            #[cfg(target_arch = "aarch64")]
            Path::Neon => unsafe { neon::split(row, planes) },
            Path::Native => split(row, planes),
        }
    }

    fn split_lines(&self, row: &[u8], patches: &mut [u8], patch: usize, line: usize) -> usize {
        match &self.path {
            // SAFETY: `new` takes these paths only where the instructions were detected.
            #[cfg(target_arch = "x86_64")]
            Path::Two(_) | Path::Four(_) if patch == avx512::PATCH => unsafe {
                avx512::split_lines(row, patches, line)
            },
            _ => 0,
        }
    }

    fn convert(&self, samples: &[u8], channels: Channels, values: &mut [T]) {
        match &self.path {
            // SAFETY: `new` takes this path only where the instructions were detected.
            #[cfg(target_arch = "x86_64")]
            Path::Two(tables) => unsafe { tables.convert(samples, channels, values) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Path::Four(tables) => unsafe { tables.convert(samples, channels, values) },
            _ => each(samples, channels, values, |channel, level| self.values[channel][usize::from(level)]),
        }
    }
}

/// Levels as they are.
pub struct Keep(Level);

impl Keep {
    /// With instructions of `level`.
    pub fn new(level: Level) -> Self {
        Self(level.min(Level::best()))
    }
}

impl Convert<u8, u8> for Keep {
    fn split(&self, row: &[u8], planes: [&mut [u8]; CHANNELS]) {
        match self.0 {
            // SAFETY: `new` takes a level only where its instructions were detected.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { avx512::split(row, planes) },
            // SAFETY: every machine of this architecture has NEON.
            #[cfg(target_arch = "aarch64")]
            Level::Neon => unsafe { neon::split(row, planes) },
            _ => split(row, planes),
        }
    }

    fn split_lines(&self, row: &[u8], patches: &mut [u8], patch: usize, line: usize) -> usize {
        match self.0 {
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if patch == avx512::PATCH => unsafe { avx512::split_lines(row, patches, line) },
            _ => 0,
        }
    }

    fn convert(&self, samples: &[u8], _channels: Channels, values: &mut [u8]) {
        values.copy_from_slice(samples);
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
}

impl<T: Element> Convert<f32, T> for Affine {
    fn split(&self, row: &[f32], planes: [&mut [f32]; CHANNELS]) {
        split(row, planes);
    }

    fn convert(&self, samples: &[f32], channels: Channels, values: &mut [T]) {
        each(samples, channels, values, |channel, v| {
            T::round((v / self.scale - self.mean[channel]) / self.std[channel])
        });
    }
}

fn split<S: Copy>(row: &[S], planes: [&mut [S]; CHANNELS]) {
    let [first, second, third] = planes;
    let planes = first.iter_mut().zip(second).zip(third);
    for (((first, second), third), pixel) in planes.zip(row.as_chunks::<CHANNELS>().0) {
        [*first, *second, *third] = *pixel;
    }
}

#[inline(always)]
fn each<S: Copy, T>(samples: &[S], channels: Channels, values: &mut [T], value: impl Fn(usize, S) -> T) {
    match channels {
        Channels::Plane(channel) => {
            values.iter_mut().zip(samples).for_each(|(to, &sample)| *to = value(channel, sample));
        }
        Channels::Interleaved => {
            let pixels = samples.as_chunks::<CHANNELS>().0;
            for (to, pixel) in values.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(pixels) {
                *to = std::array::from_fn(|channel| value(channel, pixel[channel]));
            }
        }
    }
}
