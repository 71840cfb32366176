//! Table look-ups for AVX-512 with VBMI: a table of 256 values is one table of 256 bytes for each byte of a value,
//! and 64 bytes are looked up at once.

use std::arch::x86_64::*;

use bytemuck::Pod;

use super::super::layout::CHANNELS;
use super::super::patchify::Channels;

/// Samples of one step.
const STEP: usize = 64;
/// Width of the patches that [`split_lines`] knows.
pub const PATCH: usize = 16;

/// A table of 256 bytes in registers.
type Bytes = [__m512i; 4];

/// For each channel, the bytes of the values of 256 levels, lowest byte first: `tables[channel][byte][level]`.
#[derive(Clone, Debug)]
pub struct Tables<const S: usize>(Box<[[[u8; 256]; S]; CHANNELS]>);

impl<const S: usize> Tables<S> {
    /// The tables of `values`, whose elements have `S` bytes.
    pub fn new<T: Pod>(values: &[[T; 256]; CHANNELS]) -> Self {
        let mut tables = Box::new([[[0; 256]; S]; CHANNELS]);
        for (planes, values) in tables.iter_mut().zip(values) {
            for (level, value) in values.iter().enumerate() {
                planes
                    .iter_mut()
                    .zip(bytemuck::bytes_of(value))
                    .for_each(|(plane, &byte)| plane[level] = byte);
            }
        }
        Self(tables)
    }

    /// Values of a run of levels.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub fn convert<T: Pod>(&self, levels: &[u8], channels: Channels, values: &mut [T]) {
        let order = load(const { &in_order(S) });
        match channels {
            Channels::Plane(channel) => {
                let table = self.table(channel);
                let step = |levels: &[u8], values: &mut [T]| {
                    store(join(look_up(&table, _mm512_permutexvar_epi8(order, load(levels)))), values);
                };
                let whole = levels.as_chunks::<STEP>().0.iter().zip(values.as_chunks_mut::<STEP>().0);
                whole.for_each(|(levels, values)| step(levels, values));
                if !levels.len().is_multiple_of(STEP) {
                    // What is left over is done as a whole step that repeats samples before it, where there are any.
                    match (levels.last_chunk::<STEP>(), values.last_chunk_mut::<STEP>()) {
                        (Some(levels), Some(values)) => step(levels, values),
                        _ => step(levels, values),
                    }
                }
            }
            Channels::Interleaved => {
                let tables = [self.table(0), self.table(1), self.table(2)];
                let steps = levels.chunks(STEP).zip(values.chunks_mut(STEP));
                for ((levels, values), phase) in steps.zip([0, 1, 2].into_iter().cycle()) {
                    let levels = _mm512_permutexvar_epi8(order, load(levels));
                    let mut planes = look_up(&tables[0], levels);
                    for channel in [1, 2] {
                        let mask = const { [masks(S, 0), masks(S, 1), masks(S, 2)] }[phase][channel];
                        let others = look_up(&tables[channel], levels);
                        for (plane, other) in planes.iter_mut().zip(others) {
                            *plane = _mm512_mask_blend_epi8(mask, *plane, other);
                        }
                    }
                    store(join(planes), values);
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn table(&self, channel: usize) -> [Bytes; S] {
        let mut table = [[_mm512_setzero_si512(); 4]; S];
        for (registers, bytes) in table.iter_mut().zip(&self.0[channel]) {
            for (register, bytes) in registers.iter_mut().zip(bytes.as_chunks::<64>().0) {
                *register = load(bytes);
            }
        }
        table
    }
}

/// Splits RGB pixels into planes.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub fn split(row: &[u8], planes: [&mut [u8]; CHANNELS]) {
    for (channel, plane) in planes.into_iter().enumerate() {
        for (pixels, plane) in row.chunks(CHANNELS * STEP).zip(plane.chunks_mut(STEP)) {
            let mut parts = [_mm512_setzero_si512(); CHANNELS];
            parts.iter_mut().zip(pixels.chunks(STEP)).for_each(|(part, pixels)| *part = load(pixels));
            store([pick(parts, channel)], plane);
        }
    }
}

/// Splits RGB pixels into line `line` of the planes of patches of [`PATCH`] pixels. Gives the pixels done.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub fn split_lines(row: &[u8], patches: &mut [u8], line: usize) -> usize {
    const PLANE: usize = PATCH * PATCH;
    const COUNT: usize = STEP / PATCH;
    assert!(line < PATCH, "a patch has no such line");
    let steps = row.as_chunks::<{ CHANNELS * STEP }>().0;
    let patches = patches.as_chunks_mut::<{ COUNT * CHANNELS * PLANE }>().0;
    let done = steps.len().min(patches.len());
    for (pixels, patches) in steps.iter().zip(patches) {
        let parts = [load(&pixels[..STEP]), load(&pixels[STEP..2 * STEP]), load(&pixels[2 * STEP..])];
        for channel in 0..CHANNELS {
            let plane = pick(parts, channel);
            let lines = [
                _mm512_castsi512_si128(plane),
                _mm512_extracti32x4_epi32::<1>(plane),
                _mm512_extracti32x4_epi32::<2>(plane),
                _mm512_extracti32x4_epi32::<3>(plane),
            ];
            for (patch, value) in lines.into_iter().enumerate() {
                let to = &mut patches[(patch * CHANNELS + channel) * PLANE + line * PATCH..][..PATCH];
                // SAFETY: the slice has the 16 bytes that are written.
                unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), value) };
            }
        }
    }
    done * STEP
}

/// One channel of the pixels in three registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn pick(parts: [__m512i; CHANNELS], channel: usize) -> __m512i {
    let [low, high] = &const { [picks(0), picks(1), picks(2)] }[channel];
    let first = _mm512_permutex2var_epi8(parts[0], load(low), parts[1]);
    _mm512_permutex2var_epi8(first, load(high), parts[2])
}

/// Up to 64 levels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn load(levels: &[u8]) -> __m512i {
    if let Some(levels) = levels.first_chunk::<STEP>() {
        // SAFETY: the array has the 64 bytes that are read.
        return unsafe { _mm512_loadu_si512(levels.as_ptr().cast()) };
    }
    let mask = u64::MAX >> (STEP - levels.len().min(STEP));
    // SAFETY: only bytes under the mask are read, and there are no more of them than levels.
    unsafe { _mm512_maskz_loadu_epi8(mask, levels.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn look_up<const S: usize>(table: &[Bytes; S], levels: __m512i) -> [__m512i; S] {
    let upper = _mm512_movepi8_mask(levels);
    let mut planes = [_mm512_setzero_si512(); S];
    for (plane, [a, b, c, d]) in planes.iter_mut().zip(table) {
        let (low, high) =
            (_mm512_permutex2var_epi8(*a, levels, *b), _mm512_permutex2var_epi8(*c, levels, *d));
        *plane = _mm512_mask_blend_epi8(upper, low, high);
    }
    planes
}

/// Values from planes of their bytes: two or four bytes a value.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn join<const S: usize>(planes: [__m512i; S]) -> [__m512i; S] {
    let mut values = planes;
    if let [a, b] = planes[..] {
        values[0] = _mm512_unpacklo_epi8(a, b);
        values[1] = _mm512_unpackhi_epi8(a, b);
    } else if let [a, b, c, d] = planes[..] {
        let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
        values[0] = _mm512_unpacklo_epi16(ab, cd);
        values[1] = _mm512_unpackhi_epi16(ab, cd);
        let (ab, cd) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
        values[2] = _mm512_unpacklo_epi16(ab, cd);
        values[3] = _mm512_unpackhi_epi16(ab, cd);
    }
    values
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn store<T: Pod, const S: usize>(registers: [__m512i; S], values: &mut [T]) {
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
    for (register, bytes) in registers.into_iter().zip(bytes.chunks_mut(64)) {
        if let Some(bytes) = bytes.first_chunk_mut::<64>() {
            // SAFETY: the array has the 64 bytes that are written.
            unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), register) };
            continue;
        }
        // Masked stores are slow: they are left to the end of a run.
        let mask = u64::MAX >> (64 - bytes.len());
        // SAFETY: only bytes under the mask are written, and there are as many.
        unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask, register) };
    }
}

/// Which sample to put at each position so that [`join`] leaves values of `size` bytes in order.
const fn in_order(size: usize) -> [u8; 64] {
    let mut order = [0; 64];
    let (run, mut position) = (16 / size, 0);
    while position < 64 {
        let (lane, j) = (position / 16, position % 16);
        order[position] = (j / run * (64 / size) + lane * run + j % run) as u8;
        position += 1;
    }
    order
}

/// Positions of each channel among interleaved samples in that order, the first of which is of channel `phase`.
const fn masks(size: usize, phase: usize) -> [u64; CHANNELS] {
    let order = in_order(size);
    let (mut masks, mut position) = ([0; CHANNELS], 0);
    while position < 64 {
        masks[(order[position] as usize + phase) % CHANNELS] |= 1 << position;
        position += 1;
    }
    masks
}

/// Indices of two permutations that pick one channel from three registers of pixels. The second one takes what the
/// first left in place, or a byte of the third register.
const fn picks(channel: usize) -> [[u8; 64]; 2] {
    let (mut indices, mut position) = ([[0; 64]; 2], 0);
    while position < 64 {
        let byte = position * CHANNELS + channel;
        indices[0][position] = if byte < 128 { byte as u8 } else { 0 };
        indices[1][position] = if byte < 128 { position as u8 } else { (byte - 64) as u8 };
        position += 1;
    }
    indices
}
