//! Table look-ups for AVX-512 with VBMI: a table of 256 values is one table of 256 bytes for each byte of a value,
//! and 64 bytes are looked up at once.

use std::arch::x86_64::*;

use bytemuck::Pod;

use super::super::patchify::{CHANNELS, Content};

/// Pixels of one step.
const STEP: usize = 64;

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

    /// Values of a row of RGB levels.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub fn convert<T: Pod>(&self, row: &[u8], content: Content<T>) {
        match content {
            Content::Planes(planes) => {
                for (channel, plane) in planes.into_iter().enumerate() {
                    let (table, order) = (self.load(channel), order::<S>(channel));
                    for (levels, values) in row.chunks(STEP * CHANNELS).zip(plane.chunks_mut(STEP)) {
                        store(join(look_up(&table, pick(load(levels), order))), values);
                    }
                }
            }
            Content::Pixels(samples) => {
                let mut planes = [[T::zeroed(); STEP]; CHANNELS];
                for (levels, samples) in row.chunks(STEP * CHANNELS).zip(samples.chunks_mut(STEP * CHANNELS))
                {
                    let levels = load(levels);
                    for (channel, plane) in planes.iter_mut().enumerate() {
                        store(join(look_up(&self.load(channel), pick(levels, order::<S>(channel)))), plane);
                    }
                    for (i, pixel) in samples.as_chunks_mut::<CHANNELS>().0.iter_mut().enumerate() {
                        *pixel = std::array::from_fn(|channel| planes[channel][i]);
                    }
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn load(&self, channel: usize) -> [Bytes; S] {
        let mut table = [[_mm512_setzero_si512(); 4]; S];
        for (registers, bytes) in table.iter_mut().zip(&self.0[channel]) {
            for (register, bytes) in registers.iter_mut().zip(bytes.as_chunks::<64>().0) {
                // SAFETY: 64 bytes are read from an array of 64.
                *register = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
            }
        }
        table
    }
}

/// Up to 192 levels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn load(levels: &[u8]) -> [__m512i; CHANNELS] {
    let mut registers = [_mm512_setzero_si512(); CHANNELS];
    for (register, levels) in registers.iter_mut().zip(levels.chunks(64)) {
        let mask = u64::MAX >> (64 - levels.len());
        // SAFETY: only bytes under the mask are read, one a level.
        *register = unsafe { _mm512_maskz_loadu_epi8(mask, levels.as_ptr().cast()) };
    }
    registers
}

/// Bytes of one channel from three registers of pixels, in the order that [`join`] needs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn pick([first, second, third]: [__m512i; CHANNELS], [low, high]: [__m512i; 2]) -> __m512i {
    _mm512_permutex2var_epi8(_mm512_permutex2var_epi8(first, low, second), high, third)
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
        let mask = u64::MAX >> (64 - bytes.len());
        // SAFETY: only bytes under the mask are written, and there are as many.
        unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask, register) };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn order<const S: usize>(channel: usize) -> [__m512i; 2] {
    const { assert!(S == 2 || S == 4, "values have two or four bytes") };
    let orders = const { [index(S, 0), index(S, 1), index(S, 2)] };
    // SAFETY: 64 bytes are read from an array of 64.
    orders[channel].map(|bytes| unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) })
}

/// The two indices of [`pick`]. Byte `16 l + j` is the pixel that interleaving `size` planes 128 bits at a time leaves
/// in order.
const fn index(size: usize, channel: usize) -> [[u8; 64]; 2] {
    let mut indices = [[0; 64]; 2];
    let (run, mut position) = (16 / size, 0);
    while position < 64 {
        let (lane, j) = (position / 16, position % 16);
        let pixel = j / run * (64 / size) + lane * run + j % run;
        let byte = pixel * CHANNELS + channel;
        // The second look-up takes what the first left in place, or a byte of the third register.
        indices[0][position] = if byte < 128 { byte as u8 } else { 0 };
        indices[1][position] = if byte < 128 { position as u8 } else { (byte - 64) as u8 };
        position += 1;
    }
    indices
}
