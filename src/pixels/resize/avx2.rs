//! The kernels for AVX2: weights split into signed 16-bit words, two products a lane and instruction.
//!
//! A lane holds four levels: the even two and the odd two become pairs of 16-bit words by a mask and a shift.

use std::arch::x86_64::*;

use super::packed::{Block, GROUP, Kernel, ROWS, STEP, Weights};

/// AVX2.
pub struct Avx2;

/// Lanes of a register.
const LANES: usize = 8;
/// Weight words of a group and part: one for the even and one for the odd levels.
const PAIR: usize = 2;

// SAFETY: each function needs AVX2, as the type's name says.
unsafe impl Kernel for Avx2 {
    const MIN_PARTS: usize = 1;
    const MAX_PARTS: usize = 2;

    fn fits(weight: i32, parts: usize) -> bool {
        // The most that signed words can hold: 32,767 in each.
        parts > 1 && weight.abs() <= 32_767 << 16 || weight.abs() <= 32_767
    }

    fn split(weights: [i32; GROUP], parts: usize, words: &mut Vec<i32>) {
        let mut rest = weights;
        for _ in 0..parts {
            let low = rest.map(|weight| weight as i16);
            let pair = |first: usize| i32::from(low[first]) & 0xffff | i32::from(low[first + 2]) << 16;
            words.extend([pair(0), pair(1)]);
            rest = std::array::from_fn(|k| (rest[k] - i32::from(low[k])) >> 16);
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn spread(rows: &[&[u8]; ROWS], channels: usize, blocks: &mut [Block]) {
        match channels {
            3 => spread::<12, 3>(rows, [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1], blocks),
            4 => spread::<16, 4>(rows, [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15], blocks),
            _ => spread::<16, 4>(rows, std::array::from_fn(|i| i as i8), blocks),
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn horizontal(
        blocks: &[Block],
        channels: usize,
        weights: &Weights,
        out: &mut [u32],
        stride: usize,
    ) {
        match (channels, weights.parts) {
            (3, 2) => horizontal::<3, 2>(blocks, weights, out, stride),
            (3, _) => horizontal::<3, 1>(blocks, weights, out, stride),
            (4, 2) => horizontal::<4, 2>(blocks, weights, out, stride),
            (4, _) => horizontal::<4, 1>(blocks, weights, out, stride),
            (_, 2) => horizontal::<1, 2>(blocks, weights, out, stride),
            (_, _) => horizontal::<1, 1>(blocks, weights, out, stride),
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn interleave(rows: &[&[u8]; GROUP], out: &mut [u32]) {
        let whole = rows[0].len() / 32;
        let (body, tail) = out.split_at_mut(whole * 32);
        for (step, out) in body.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            interleave(rows.map(|row| load_levels(&row[step * 32..])), out);
        }
        let rest = rows[0].len() % 32;
        if rest > 0 {
            let levels = rows.map(|row| {
                let mut levels = [0; 32];
                levels[..rest].copy_from_slice(&row[whole * 32..]);
                load_levels(&levels)
            });
            interleave(levels, &mut tail[..32]);
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn deinterleave(groups: &[u32], rows: &mut [&mut [u8]; GROUP]) {
        let by_row = _mm256_setr_epi8(
            0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3,
            7, 11, 15,
        );
        let order = in_order();
        for (step, groups) in groups.as_chunks::<32>().0.iter().enumerate() {
            let lanes = std::array::from_fn(|i| _mm256_shuffle_epi8(load(&groups[i * LANES..]), by_row));
            for (row, levels) in rows.iter_mut().zip(transpose4(lanes)) {
                store_levels(&mut row[step * 32..], _mm256_permutevar8x32_epi32(levels, order));
            }
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn vertical(rows: &[&[u32]], words: &[i32], weights: &Weights, out: &mut [u8]) {
        match weights.parts {
            2 => vertical::<2>(rows, words, weights, out),
            _ => vertical::<1>(rows, words, weights, out),
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(lanes: &[u32]) -> __m256i {
    let lanes = &lanes[..LANES];
    // SAFETY: the slice has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(lanes: &mut [u32], value: __m256i) {
    let lanes = &mut lanes[..LANES];
    // SAFETY: the slice has the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_levels(levels: &[u8]) -> __m256i {
    let levels = &levels[..32];
    // SAFETY: the slice has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(levels.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_levels(levels: &mut [u8], value: __m256i) {
    let levels = &mut levels[..32];
    // SAFETY: the slice has the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(levels.as_mut_ptr().cast(), value) }
}

/// Index that brings dwords from the order of packing four registers into the order of samples.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order() -> __m256i {
    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)
}

/// Transposes the 4 x 4 dwords of each 128-bit lane.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose4([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Groups 32 levels of four rows.
#[inline]
#[target_feature(enable = "avx2")]
fn interleave(rows: [__m256i; GROUP], out: &mut [u32]) {
    // Each row's dwords are put where the unpacking below leaves them in order.
    let order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    let [a, b, c, d] = rows.map(|row| _mm256_permutevar8x32_epi32(row, order));
    let (ab, cd) = (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d));
    store(&mut out[..8], _mm256_unpacklo_epi16(ab, cd));
    store(&mut out[8..16], _mm256_unpackhi_epi16(ab, cd));
    let (ab, cd) = (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d));
    store(&mut out[16..24], _mm256_unpacklo_epi16(ab, cd));
    store(&mut out[24..], _mm256_unpackhi_epi16(ab, cd));
}

/// Steps of `BYTES` bytes a row that make `COUNT` blocks each. `order` brings the bytes of a step into the blocks' order.
#[inline]
#[target_feature(enable = "avx2")]
fn spread<const BYTES: usize, const COUNT: usize>(
    rows: &[&[u8]; ROWS],
    order: [i8; 16],
    blocks: &mut [Block],
) {
    // SAFETY: sixteen bytes are read from an array of sixteen.
    let order = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(order.as_ptr().cast()) });
    let length = rows.iter().map(|row| row.len()).min().unwrap_or(0);
    // Each step reads sixteen bytes, of which the last may lie beyond those it uses.
    let whole = (length + BYTES).saturating_sub(16) / BYTES;
    let mut tails = [[0; 48]; ROWS];
    for (tail, row) in tails.iter_mut().zip(rows) {
        let rest = &row[whole * BYTES..length];
        tail[..rest.len()].copy_from_slice(rest);
    }
    let (body, tail) = blocks.split_at_mut(whole * COUNT);
    let steps = length.div_ceil(BYTES) - whole;
    // SAFETY: `whole` steps read no further than `length`, and the rest no further than 28 bytes of a tail.
    unsafe {
        gather::<BYTES, COUNT>(&rows.map(<[u8]>::as_ptr), order, body);
        gather::<BYTES, COUNT>(
            &std::array::from_fn(|i| tails[i].as_ptr()),
            order,
            &mut tail[..steps * COUNT],
        );
    }
}

/// One step for each `COUNT` blocks: sixteen bytes of each row, a row a lane.
///
/// # Safety
/// Sixteen bytes can be read from each row at each multiple of `BYTES` below the number of steps.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn gather<const BYTES: usize, const COUNT: usize>(
    rows: &[*const u8; ROWS],
    order: __m256i,
    blocks: &mut [Block],
) {
    for (step, blocks) in blocks.as_chunks_mut::<COUNT>().0.iter_mut().enumerate() {
        for half in [0, LANES] {
            let mut quarters = [_mm256_setzero_si256(); 4];
            for (i, quarter) in quarters.iter_mut().enumerate() {
                // SAFETY: the caller vouches for the rows.
                let bytes =
                    |row: usize| unsafe { _mm_loadu_si128(rows[half + row].add(step * BYTES).cast()) };
                let lanes = _mm256_castsi128_si256(bytes(i));
                *quarter = _mm256_shuffle_epi8(_mm256_inserti128_si256::<1>(lanes, bytes(4 + i)), order);
            }
            let lanes = transpose4(quarters);
            blocks.iter_mut().zip(lanes).for_each(|(block, lanes)| store(&mut block.0[half..], lanes));
        }
    }
}

/// Adds the products of the levels and weight words of a group to the sums, one a part.
#[inline]
#[target_feature(enable = "avx2")]
fn accumulate<const P: usize>(sums: &mut [__m256i; P], levels: __m256i, words: &[[__m256i; PAIR]; P]) {
    let even = _mm256_and_si256(levels, _mm256_set1_epi16(0xff));
    let odd = _mm256_srli_epi16::<8>(levels);
    for (sum, [even_word, odd_word]) in sums.iter_mut().zip(words) {
        let products =
            _mm256_add_epi32(_mm256_madd_epi16(even, *even_word), _mm256_madd_epi16(odd, *odd_word));
        *sum = _mm256_add_epi32(*sum, products);
    }
}

/// The words of one group, each in all lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn broadcast<const P: usize>(words: &[i32]) -> [[__m256i; PAIR]; P] {
    let words = &words[..PAIR * P];
    std::array::from_fn(|part| std::array::from_fn(|i| _mm256_set1_epi32(words[part * PAIR + i])))
}

/// The value of sums whose weights were split into `P` words, lowest first: shifted, not yet clamped.
#[inline]
#[target_feature(enable = "avx2")]
fn combine<const P: usize>(sums: [__m256i; P], shift: __m128i) -> __m256i {
    let mut parts = sums.into_iter().rev();
    let first = parts.next().unwrap_or(_mm256_setzero_si256());
    let sum = parts.fold(first, |high, low| _mm256_add_epi32(_mm256_slli_epi32::<16>(high), low));
    _mm256_sra_epi32(sum, shift)
}

/// Clamps four registers to levels. The 128-bit lane `l` of the result holds lane `l` of each, in order.
#[inline]
#[target_feature(enable = "avx2")]
fn clamp([a, b, c, d]: [__m256i; 4]) -> __m256i {
    _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d))
}

#[inline]
#[target_feature(enable = "avx2")]
fn horizontal<const C: usize, const P: usize>(
    blocks: &[Block],
    weights: &Weights,
    out: &mut [u32],
    stride: usize,
) {
    let shift = _mm_cvtsi32_si128(weights.shift as i32);
    let mut start = [_mm256_setzero_si256(); P];
    start[0] = _mm256_set1_epi32(weights.half);
    for (half, out) in out.chunks_exact_mut(2 * stride).enumerate() {
        let (upper, lower) = out.split_at_mut(stride);
        for (x, span) in weights.spans().iter().enumerate() {
            let mut sums = [start; C];
            let blocks = blocks[span.group * C..(span.group + span.groups) * C].as_chunks::<C>().0;
            for (blocks, words) in blocks.iter().zip(weights.words(span, PAIR * P).chunks_exact(PAIR * P)) {
                let words = broadcast(words);
                for (sums, block) in sums.iter_mut().zip(blocks) {
                    accumulate(sums, load(&block.0[half * LANES..]), &words);
                }
            }
            let mut lanes = [_mm256_setzero_si256(); 4];
            lanes.iter_mut().zip(sums).for_each(|(lanes, sums)| *lanes = combine(sums, shift));
            let levels = clamp(lanes);
            // Lanes past the channels are overwritten by the next output, or lie in the padding.
            store4(&mut upper[x * C..], _mm256_castsi256_si128(levels));
            store4(&mut lower[x * C..], _mm256_extracti128_si256::<1>(levels));
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store4(lanes: &mut [u32], value: __m128i) {
    let lanes = &mut lanes[..4];
    // SAFETY: the slice has the 16 bytes that are written.
    unsafe { _mm_storeu_si128(lanes.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn vertical<const P: usize>(rows: &[&[u32]], words: &[i32], weights: &Weights, out: &mut [u8]) {
    let shift = _mm_cvtsi32_si128(weights.shift as i32);
    let order = in_order();
    let mut start = [_mm256_setzero_si256(); P];
    start[0] = _mm256_set1_epi32(weights.half);
    for (step, out) in out.chunks_exact_mut(STEP / 2).enumerate() {
        let mut sums = [start; 4];
        for (row, words) in rows.iter().zip(words.chunks_exact(PAIR * P)) {
            let words = broadcast(words);
            let lanes = row[step * (STEP / 2)..][..STEP / 2].as_chunks::<LANES>().0;
            sums.iter_mut().zip(lanes).for_each(|(sums, lanes)| accumulate(sums, load(lanes), &words));
        }
        let levels = clamp(sums.map(|sums| combine(sums, shift)));
        store_levels(out, _mm256_permutevar8x32_epi32(levels, order));
    }
}
