//! How a call uses the machine. Results never depend on it.

use std::sync::LazyLock;

use crate::{Error, Result};

/// Most bands one image is cut into.
pub const MAX_BANDS: usize = 64;

/// Instruction set of the inner loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust.
    Native,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, VBMI and VNNI (Ice Lake, Zen 4 and newer).
    Avx512,
    /// 64-bit Arm with NEON, which is all of them.
    Neon,
}

static BEST: LazyLock<Level> = LazyLock::new(detect);

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    macro_rules! has {
        ($($feature:tt),*) => { $(std::arch::is_x86_feature_detected!($feature))&&* };
    }
    if !has!("avx2", "fma", "f16c") {
        Level::Native
    } else if has!("avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512vnni") {
        Level::Avx512
    } else {
        Level::Avx2
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    if cfg!(target_arch = "aarch64") { Level::Neon } else { Level::Native }
}

/// The levels of this architecture, narrowest first.
const LEVELS: &[Level] = if cfg!(target_arch = "aarch64") {
    &[Level::Native, Level::Neon]
} else {
    &[Level::Native, Level::Avx2, Level::Avx512]
};

impl Level {
    /// The widest level of this machine.
    pub fn best() -> Self {
        *BEST
    }

    /// All levels this machine can run, narrowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        LEVELS.iter().copied().filter(|level| *level <= Self::best())
    }

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// Parses a name; refuses a level that this machine cannot run.
    pub fn parse(name: &str) -> Result<Self> {
        Self::available().find(|level| level.name() == name).ok_or_else(|| {
            let names = Self::available().map(Self::name).collect::<Vec<_>>().join(", ");
            Error::argument(format!("instruction level {name:?} is not available: this machine has {names}"))
        })
    }
}

/// Instruction set and parallelism of one call.
#[derive(Clone, Copy, Debug)]
pub struct Execution {
    level: Level,
    bands: usize,
}

impl Default for Execution {
    /// The widest instructions, on the calling thread alone.
    fn default() -> Self {
        Self { level: Level::best(), bands: 1 }
    }
}

impl Execution {
    /// With instructions of `level`, or of the best level if that is narrower.
    pub fn with_level(self, level: Level) -> Self {
        Self { level: level.min(Level::best()), ..self }
    }

    /// Cuts each image into up to `bands` bands of rows that run on the current rayon pool (feature `parallel`;
    /// one after the other without it).
    pub fn with_bands(self, bands: usize) -> Self {
        Self { bands: bands.clamp(1, MAX_BANDS), ..self }
    }

    /// Instruction set of the inner loops. Never wider than [`Level::best`].
    pub fn level(&self) -> Level {
        self.level
    }

    /// Most bands an image is cut into.
    pub fn bands(&self) -> usize {
        self.bands
    }
}

/// Runs `jobs`, on the current rayon pool if there is more than one.
pub(crate) fn run_all<J: FnOnce() + Send>(jobs: Vec<J>) {
    #[cfg(feature = "parallel")]
    if jobs.len() > 1 {
        rayon::scope(|scope| jobs.into_iter().for_each(|job| scope.spawn(move |_| job())));
        return;
    }
    jobs.into_iter().for_each(|job| job());
}
