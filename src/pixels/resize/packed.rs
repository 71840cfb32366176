//! The two passes on groups of four levels, for instructions that multiply and add four bytes at once.
//!
//! Both passes compute the same thing: lanes of 32 bits that each hold four neighbouring levels along the axis being
//! filtered are multiplied by four weights and summed. The weights are split into parts of 8 or 16 bits so that
//! products are exact; partial sums wrap around in 32 bits, which is exact modulo 2^32, and the whole sum fits
//! (see [`Axis`]), so the result equals `native` bit for bit whatever the order of additions.
//!
//! Rows go through the horizontal pass sixteen at a time, a row a lane. Its result comes out as four levels of
//! neighbouring rows a lane, a sample a lane: what the vertical pass reads.

use std::ops::Range;

use super::fixed::Axis;
use super::ring::Ring;
use super::weights::Window;
use crate::pixels::view::View;
use crate::pixels::work::Work;

/// Rows that go through the horizontal pass together.
pub const ROWS: usize = 16;
/// Levels a lane.
pub const GROUP: usize = 4;
/// Samples that one step of the kernels that work along a row handles; rows of work space are padded to it.
pub const STEP: usize = 64;

/// Four neighbouring levels of one channel for each of [`ROWS`] rows.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct Block(pub [u32; ROWS]);

/// Groups of one output and the place of their weights.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First group.
    pub group: usize,
    /// Number of groups.
    pub groups: usize,
    /// Offset of the first weight word.
    first: usize,
}

/// Weights of an axis, four to a group and split for a kernel.
#[derive(Clone, Debug)]
pub struct Weights {
    spans: Vec<Span>,
    words: Vec<i32>,
    /// Parts a weight.
    #[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "NEON's weights are whole"))]
    pub parts: usize,
    /// Fractional bits of a sum.
    pub shift: u32,
    /// Rounding term.
    pub half: i32,
}

impl Weights {
    /// Splits the weights of `axis` for kernel `K`; `None` if a weight has too many bits.
    pub fn new<K: Kernel>(axis: &Axis) -> Option<Self> {
        let weights = &axis.taps.weights;
        let parts = (1..=K::MAX_PARTS).find(|&parts| weights.iter().all(|&weight| K::fits(weight, parts)))?;
        let parts = parts.max(K::MIN_PARTS);
        let (mut spans, mut words) = (Vec::with_capacity(axis.output()), Vec::new());
        for window in &axis.taps.windows {
            let Window { start, len, .. } = *window;
            let (group, end) = (start / GROUP, (start + len).div_ceil(GROUP));
            spans.push(Span { group, groups: end - group, first: words.len() });
            let mut taps = axis.taps.of(window).iter().copied();
            for first in (group..end).map(|group| group * GROUP) {
                let inside = |k: usize| (start..start + len).contains(&(first + k));
                K::split(
                    [0, 1, 2, 3].map(|k| if inside(k) { taps.next().unwrap_or(0) } else { 0 }),
                    parts,
                    &mut words,
                );
            }
        }
        Some(Self { spans, words, parts, shift: axis.shift, half: axis.half() })
    }

    /// Groups of all outputs.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Weight words of `span`, `per_group` a group.
    pub fn words(&self, span: &Span, per_group: usize) -> &[i32] {
        &self.words[span.first..span.first + span.groups * per_group]
    }

    fn most_groups(&self) -> usize {
        self.spans.iter().map(|span| span.groups).max().unwrap_or(0)
    }
}

/// The inner loops for one instruction set.
///
/// # Safety
/// Each function may be called only on a machine that has the instructions of the implementing type.
pub unsafe trait Kernel {
    /// Fewest and most parts of a weight.
    const MIN_PARTS: usize;
    /// See [`Self::MIN_PARTS`].
    const MAX_PARTS: usize;

    /// Whether `weight` splits into `parts`.
    fn fits(weight: i32, parts: usize) -> bool;

    /// Appends the words of four weights.
    fn split(weights: [i32; GROUP], parts: usize, words: &mut Vec<i32>);

    /// Gathers [`ROWS`] rows of interleaved pixels into `blocks[group * channels + channel]`.
    unsafe fn spread(rows: &[&[u8]; ROWS], channels: usize, blocks: &mut [Block]);

    /// Filters `blocks` along the row. `out` is four rows of groups, each `stride` lanes long, a sample a lane.
    unsafe fn horizontal(
        blocks: &[Block],
        channels: usize,
        weights: &Weights,
        out: &mut [u32],
        stride: usize,
    );

    /// Gathers four rows into groups. `out` is padded to [`STEP`].
    unsafe fn interleave(rows: &[&[u8]; GROUP], out: &mut [u32]);

    /// The inverse of [`Self::interleave`]. All rows are padded to [`STEP`].
    unsafe fn deinterleave(groups: &[u32], rows: &mut [&mut [u8]; GROUP]);

    /// Filters rows of groups into one row; all are padded to [`STEP`]. `words` are those of the groups in `rows`.
    unsafe fn vertical(rows: &[&[u32]], words: &[i32], weights: &Weights, out: &mut [u8]);
}

/// The passes of a resize, split for one kernel.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The horizontal pass.
    pub horizontal: Option<Weights>,
    /// The vertical pass.
    pub vertical: Option<Weights>,
    /// Whether it comes first.
    pub vertical_first: bool,
}

impl Packed {
    /// Hands each output row of `band` to `sink`, in order.
    ///
    /// # Safety
    /// The machine has `K`'s instructions.
    pub unsafe fn rows<K: Kernel>(&self, view: &View, band: Range<usize>, sink: &mut dyn FnMut(&[u8])) {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            match (&self.horizontal, &self.vertical) {
                (Some(columns), Some(rows)) if self.vertical_first => {
                    let mut horizontal = Horizontal::new(columns, view);
                    let mut vertical = Vertical::new(rows, view.width() * view.channels(), GROUP);
                    let mut between = Work::new(0, ROWS * vertical.stride);
                    for start in band.clone().step_by(ROWS) {
                        let count = ROWS.min(band.end - start);
                        for (i, row) in between.chunks_exact_mut(vertical.stride).take(count).enumerate() {
                            vertical.row::<K>(start + i, row, |first, out| interleave::<K>(view, first, out));
                        }
                        let row =
                            |i: usize| &between[i.min(count - 1) * vertical.stride..][..vertical.samples];
                        horizontal.rows::<K>(std::array::from_fn(row), count, sink);
                    }
                }
                (Some(columns), Some(rows)) => {
                    let mut horizontal = Horizontal::new(columns, view);
                    let mut vertical = Vertical::new(rows, horizontal.samples, ROWS);
                    let mut out = Work::new(0, vertical.stride);
                    for y in band {
                        vertical.row::<K>(y, &mut out, |first, groups| {
                            let row = |i: usize| view.row((first + i).min(view.height() - 1));
                            horizontal.groups::<K>(&std::array::from_fn(row), groups);
                        });
                        sink(&out[..vertical.samples]);
                    }
                }
                (Some(columns), None) => {
                    let mut horizontal = Horizontal::new(columns, view);
                    for start in band.clone().step_by(ROWS) {
                        let count = ROWS.min(band.end - start);
                        let row = |i: usize| view.row(start + i.min(count - 1));
                        horizontal.rows::<K>(std::array::from_fn(row), count, sink);
                    }
                }
                (None, Some(rows)) => {
                    let mut vertical = Vertical::new(rows, view.width() * view.channels(), GROUP);
                    let mut out = Work::new(0, vertical.stride);
                    for y in band {
                        vertical.row::<K>(y, &mut out, |first, out| interleave::<K>(view, first, out));
                        sink(&out[..vertical.samples]);
                    }
                }
                (None, None) => band.for_each(|y| sink(view.row(y))),
            }
        }
    }
}

/// Groups the four rows of `view` from `first`; below the image its last row is repeated (with weights of 0).
///
/// # Safety
/// The machine has `K`'s instructions.
unsafe fn interleave<K: Kernel>(view: &View, first: usize, out: &mut [u32]) {
    let rows = std::array::from_fn(|i| view.row((first + i).min(view.height() - 1)));
    // SAFETY: the caller vouches for the instructions.
    unsafe { K::interleave(&rows, out) }
}

/// The horizontal pass with its work space.
struct Horizontal<'a> {
    weights: &'a Weights,
    channels: usize,
    /// Samples of a row that comes out, and the same padded.
    samples: usize,
    stride: usize,
    blocks: Vec<Block>,
    /// Space of [`Self::rows`], made when first needed: groups, and rows of levels.
    space: Option<(Work<u32>, Work<u8>)>,
}

impl<'a> Horizontal<'a> {
    fn new(weights: &'a Weights, view: &View) -> Self {
        let channels = view.channels();
        let samples = weights.spans.len() * channels;
        let blocks = view.width().div_ceil(GROUP).next_multiple_of(GROUP) * channels;
        Self {
            weights,
            channels,
            samples,
            stride: padded(samples),
            blocks: vec![Block::default(); blocks],
            space: None,
        }
    }

    /// Filters sixteen rows into four rows of groups.
    ///
    /// # Safety
    /// The machine has `K`'s instructions.
    unsafe fn groups<K: Kernel>(&mut self, rows: &[&[u8]; ROWS], out: &mut [u32]) {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            K::spread(rows, self.channels, &mut self.blocks);
            K::horizontal(&self.blocks, self.channels, self.weights, out, self.stride);
        }
    }

    /// Filters sixteen rows and hands the first `count` to `sink`.
    ///
    /// # Safety
    /// The machine has `K`'s instructions.
    unsafe fn rows<K: Kernel>(&mut self, rows: [&[u8]; ROWS], count: usize, sink: &mut dyn FnMut(&[u8])) {
        let stride = self.stride;
        let space = || (Work::new(0, ROWS / GROUP * stride), Work::new(0, ROWS * stride));
        let (mut groups, mut out) = self.space.take().unwrap_or_else(space);
        // SAFETY: the caller vouches for the instructions.
        unsafe { self.groups::<K>(&rows, &mut groups) };
        let four = groups.chunks_exact(stride).zip(out.chunks_exact_mut(GROUP * stride));
        for (groups, rows) in four.take(count.div_ceil(GROUP)) {
            let mut rows = rows.chunks_exact_mut(stride);
            let mut rows: [&mut [u8]; GROUP] = std::array::from_fn(|_| rows.next().unwrap_or_default());
            // SAFETY: the caller vouches for the instructions.
            unsafe { K::deinterleave(groups, &mut rows) };
        }
        out.chunks_exact(stride).take(count).for_each(|row| sink(&row[..self.samples]));
        self.space = Some((groups, out));
    }
}

/// The vertical pass with the rows of groups it reads.
struct Vertical<'a> {
    weights: &'a Weights,
    /// Samples of a row, and the same padded.
    samples: usize,
    stride: usize,
    /// Rows that are produced together.
    unit: usize,
    /// The next input row to be produced.
    next: Option<usize>,
    ring: Ring<u32>,
}

impl<'a> Vertical<'a> {
    fn new(weights: &'a Weights, samples: usize, unit: usize) -> Self {
        // The groups of one window lie within this many, plus what the last unit holds beyond it.
        let capacity = (weights.most_groups() + unit / GROUP).next_multiple_of(ROWS / GROUP);
        let stride = padded(samples);
        Self { weights, samples, stride, unit, next: None, ring: Ring::new(capacity, stride) }
    }

    /// Row `y`. `produce(first, groups)` fills the groups of [`Self::unit`] input rows from `first`, a multiple of it.
    ///
    /// # Safety
    /// The machine has `K`'s instructions.
    unsafe fn row<K: Kernel>(
        &mut self,
        y: usize,
        out: &mut [u8],
        mut produce: impl FnMut(usize, &mut [u32]),
    ) {
        let span = self.weights.spans[y];
        let mut next = self.next.unwrap_or(span.group * GROUP / self.unit * self.unit);
        while next < (span.group + span.groups) * GROUP {
            produce(next, self.ring.rows_mut(next / GROUP, self.unit / GROUP));
            next += self.unit;
        }
        self.next = Some(next);
        let rows: Vec<&[u32]> =
            (span.group..span.group + span.groups).map(|group| self.ring.row(group)).collect();
        let words = &self.weights.words[span.first..];
        // SAFETY: the caller vouches for the instructions.
        unsafe { K::vertical(&rows, words, self.weights, out) }
    }
}

/// Room for `samples`, for whole steps, and for a last store of four lanes that ends past the samples.
fn padded(samples: usize) -> usize {
    (samples + GROUP - 1).next_multiple_of(STEP)
}
