//! The two passes of an 8-bit resize: which come, in which order, on which path.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::Avx512;
use super::check_intermediate;
use super::fixed::Axis;
use super::native;
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::packed::{Kernel, Packed, Weights};
use crate::Result;
use crate::pixels::execution::Level;
use crate::pixels::view::View;
use crate::pixels::{Filter, PassOrder};

/// Passes along the rows (horizontal) and columns (vertical); `None` where a side keeps its length.
#[derive(Clone, Debug)]
pub struct Passes {
    horizontal: Option<Axis>,
    vertical: Option<Axis>,
    vertical_first: bool,
    path: Path,
}

/// What computes the passes.
#[derive(Clone, Debug)]
enum Path {
    Native,
    /// Only where the machine has AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2(Packed),
    /// Only where the machine has AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512(Packed),
    /// Everywhere on this architecture.
    #[cfg(target_arch = "aarch64")]
    Neon(Packed),
}

impl PassOrder {
    /// Whether the vertical pass runs first on the way from `source` to `target`, both (width, height).
    pub fn vertical_first(self, source: (usize, usize), target: (usize, usize)) -> bool {
        let shrinks = target.1 < source.1;
        match self {
            Self::HorizontalFirst => false,
            Self::Pillow12_2 => shrinks && source.1 > 100 * source.0,
            Self::Pillow13 => {
                let rows = source.1 as i64 - target.1 as i64;
                let columns = source.0 as i64 - target.0 as i64;
                shrinks && rows > 2 * columns
            }
        }
    }
}

impl Passes {
    /// Pillow's passes from `source` to `target`, both (width, height).
    pub fn pillow(
        source: (usize, usize),
        target: (usize, usize),
        filter: Filter,
        order: PassOrder,
    ) -> Result<Self> {
        Self::new(source, target, order.vertical_first(source, target), |input, output| {
            Axis::pillow(input, output, filter)
        })
    }

    /// torchvision's passes.
    pub fn torchvision(source: (usize, usize), target: (usize, usize), filter: Filter) -> Result<Self> {
        Self::new(source, target, false, |input, output| Axis::torchvision(input, output, filter))
    }

    fn new(
        source: (usize, usize),
        target: (usize, usize),
        vertical_first: bool,
        axis: impl Fn(usize, usize) -> Result<Axis>,
    ) -> Result<Self> {
        match vertical_first {
            true => check_intermediate(source.0, target.1)?,
            false => check_intermediate(target.0, source.1)?,
        }
        let axis = |input, output| (input != output).then(|| axis(input, output)).transpose();
        Ok(Self {
            horizontal: axis(source.0, target.0)?,
            vertical: axis(source.1, target.1)?,
            vertical_first,
            path: Path::Native,
        })
    }

    /// The same passes with instructions of `level`, or plain ones if the weights do not suit them.
    pub fn with_level(mut self, level: Level) -> Self {
        self.path = match level.min(Level::best()) {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => self.packed::<Avx512>().map_or(Path::Native, Path::Avx512),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => self.packed::<Avx2>().map_or(Path::Native, Path::Avx2),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => self.packed::<Neon>().map_or(Path::Native, Path::Neon),
            _ => Path::Native,
        };
        self
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn packed<K: Kernel>(&self) -> Option<Packed> {
        let split = |axis: &Option<Axis>| match axis {
            Some(axis) => Weights::new::<K>(axis).map(Some),
            None => Some(None),
        };
        let (horizontal, vertical) = (split(&self.horizontal)?, split(&self.vertical)?);
        Some(Packed { horizontal, vertical, vertical_first: self.vertical_first })
    }

    /// Hands each output row of `band` to `sink`, in order.
    pub fn rows(&self, view: &View, band: Range<usize>, sink: &mut dyn FnMut(&[u8])) {
        match &self.path {
            Path::Native => native::rows(self, view, band, sink),
            // SAFETY: `with_level` takes this path only where the instructions were detected.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(packed) => unsafe { packed.rows::<Avx2>(view, band, sink) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(packed) => unsafe { packed.rows::<Avx512>(view, band, sink) },
            // SAFETY: every machine of this architecture has NEON.
            #[cfg(target_arch = "aarch64")]
            Path::Neon(packed) => unsafe { packed.rows::<Neon>(view, band, sink) },
        }
    }

    /// The horizontal pass.
    pub fn horizontal(&self) -> Option<&Axis> {
        self.horizontal.as_ref()
    }

    /// The vertical pass.
    pub fn vertical(&self) -> Option<&Axis> {
        self.vertical.as_ref()
    }

    /// Whether the vertical pass comes first.
    pub fn vertical_first(&self) -> bool {
        self.vertical_first
    }
}
