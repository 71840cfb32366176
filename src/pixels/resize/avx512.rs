//! The kernels for AVX-512 with VNNI: weights split into signed bytes, four products a lane and instruction.

use std::arch::x86_64::*;

use super::packed::{Block, GROUP, Kernel, ROWS, STEP, Weights};

/// AVX-512 F, BW and VNNI.
pub struct Avx512;

/// Lanes of a register.
const LANES: usize = 16;

// SAFETY: each function needs AVX-512 F, BW and VNNI, as the type's name says.
unsafe impl Kernel for Avx512 {
    const MIN_PARTS: usize = 2;
    const MAX_PARTS: usize = 3;

    fn fits(weight: i32, parts: usize) -> bool {
        // The most that signed bytes can hold: 127 in each.
        let most = (0..parts).fold(0, |most, _| most << 8 | 127);
        weight.abs() <= most
    }

    fn split(weights: [i32; GROUP], parts: usize, words: &mut Vec<i32>) {
        let mut rest = weights;
        for _ in 0..parts {
            let bytes = rest.map(|weight| weight as i8);
            words.push(i32::from_le_bytes(bytes.map(|byte| byte as u8)));
            rest = std::array::from_fn(|k| (rest[k] - i32::from(bytes[k])) >> 8);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn spread(rows: &[&[u8]; ROWS], channels: usize, blocks: &mut [Block]) {
        match channels {
            3 => spread::<12, 3>(rows, [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1], blocks),
            4 => spread::<16, 4>(rows, [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15], blocks),
            _ => spread::<16, 4>(rows, std::array::from_fn(|i| i as i8), blocks),
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn horizontal(
        blocks: &[Block],
        channels: usize,
        weights: &Weights,
        out: &mut [u32],
        stride: usize,
    ) {
        match (channels, weights.parts) {
            (3, 3) => horizontal::<3, 3>(blocks, weights, out, stride),
            (3, _) => horizontal::<3, 2>(blocks, weights, out, stride),
            (4, 3) => horizontal::<4, 3>(blocks, weights, out, stride),
            (4, _) => horizontal::<4, 2>(blocks, weights, out, stride),
            (_, 3) => horizontal::<1, 3>(blocks, weights, out, stride),
            (_, _) => horizontal::<1, 2>(blocks, weights, out, stride),
        }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn interleave(rows: &[&[u8]; GROUP], out: &mut [u32]) {
        let transpose = transposition();
        for (start, out) in (0..rows[0].len()).step_by(STEP).zip(out.as_chunks_mut::<STEP>().0) {
            // Each row's dwords are put where the unpacking below leaves them in order.
            let [a, b, c, d] =
                rows.map(|row| _mm512_permutexvar_epi32(transpose, load_levels(&row[start..])));
            let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
            store(&mut out[..16], _mm512_unpacklo_epi16(ab, cd));
            store(&mut out[16..32], _mm512_unpackhi_epi16(ab, cd));
            let (ab, cd) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
            store(&mut out[32..48], _mm512_unpacklo_epi16(ab, cd));
            store(&mut out[48..], _mm512_unpackhi_epi16(ab, cd));
        }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn deinterleave(groups: &[u32], rows: &mut [&mut [u8]; GROUP]) {
        let transpose = transposition();
        let by_row =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        for (step, groups) in groups.as_chunks::<STEP>().0.iter().enumerate() {
            let lanes = std::array::from_fn(|i| _mm512_shuffle_epi8(load(&groups[i * LANES..]), by_row));
            for (row, levels) in rows.iter_mut().zip(transpose4(lanes)) {
                store_levels(&mut row[step * STEP..], _mm512_permutexvar_epi32(transpose, levels));
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn vertical(rows: &[&[u32]], words: &[i32], weights: &Weights, out: &mut [u8]) {
        match weights.parts {
            3 => vertical::<3>(rows, words, weights, out),
            _ => vertical::<2>(rows, words, weights, out),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(lanes: &[u32]) -> __m512i {
    let lanes = &lanes[..LANES];
    // SAFETY: the slice has the 64 bytes that are read.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(lanes: &mut [u32], value: __m512i) {
    let lanes = &mut lanes[..LANES];
    // SAFETY: the slice has the 64 bytes that are written.
    unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), value) }
}

/// Up to 64 levels; what is missing is 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_levels(levels: &[u8]) -> __m512i {
    let mask = u64::MAX >> (STEP - levels.len().min(STEP));
    // SAFETY: only bytes under the mask are read, and there are no more of them than levels.
    unsafe { _mm512_maskz_loadu_epi8(mask, levels.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_levels(levels: &mut [u8], value: __m512i) {
    let levels = &mut levels[..STEP];
    // SAFETY: the slice has the 64 bytes that are written.
    unsafe { _mm512_storeu_si512(levels.as_mut_ptr().cast(), value) }
}

/// Index of the transposition of 4 x 4 dwords, which is its own inverse.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposition() -> __m512i {
    _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
}

/// Transposes the 4 x 4 dwords of each 128-bit lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose4([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Steps of `BYTES` bytes a row that make `COUNT` blocks each. `order` brings the bytes of a step into the blocks' order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn spread<const BYTES: usize, const COUNT: usize>(
    rows: &[&[u8]; ROWS],
    order: [i8; 16],
    blocks: &mut [Block],
) {
    // SAFETY: sixteen bytes are read from an array of sixteen.
    let order = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(order.as_ptr().cast()) });
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
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn gather<const BYTES: usize, const COUNT: usize>(
    rows: &[*const u8; ROWS],
    order: __m512i,
    blocks: &mut [Block],
) {
    for (step, blocks) in blocks.as_chunks_mut::<COUNT>().0.iter_mut().enumerate() {
        let mut quarters = [_mm512_setzero_si512(); 4];
        for (i, quarter) in quarters.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the rows.
            let bytes = |row: usize| unsafe { _mm_loadu_si128(rows[row].add(step * BYTES).cast()) };
            let lanes = _mm512_castsi128_si512(bytes(i));
            let lanes = _mm512_inserti32x4::<1>(lanes, bytes(4 + i));
            let lanes = _mm512_inserti32x4::<2>(lanes, bytes(8 + i));
            *quarter = _mm512_shuffle_epi8(_mm512_inserti32x4::<3>(lanes, bytes(12 + i)), order);
        }
        let lanes = transpose4(quarters);
        blocks.iter_mut().zip(lanes).for_each(|(block, lanes)| store(&mut block.0, lanes));
    }
}

/// The value of sums whose weights were split into `P` bytes, lowest first: shifted, not yet clamped.
#[inline]
#[target_feature(enable = "avx512f")]
fn combine<const P: usize>(sums: [__m512i; P], shift: __m128i) -> __m512i {
    let mut parts = sums.into_iter().rev();
    let first = parts.next().unwrap_or(_mm512_setzero_si512());
    let sum = parts.fold(first, |high, low| _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low));
    _mm512_sra_epi32(sum, shift)
}

/// Clamps four registers to levels. The 128-bit lane `l` of the result holds lane `l` of each, in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn clamp([a, b, c, d]: [__m512i; 4]) -> __m512i {
    _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn horizontal<const C: usize, const P: usize>(
    blocks: &[Block],
    weights: &Weights,
    out: &mut [u32],
    stride: usize,
) {
    let shift = _mm_cvtsi32_si128(weights.shift as i32);
    let mut start = [_mm512_setzero_si512(); P];
    start[0] = _mm512_set1_epi32(weights.half);
    let (first, rest) = out.split_at_mut(stride);
    let (second, rest) = rest.split_at_mut(stride);
    let (third, fourth) = rest.split_at_mut(stride);
    for (x, span) in weights.spans().iter().enumerate() {
        let mut sums = [start; C];
        let blocks = blocks[span.group * C..(span.group + span.groups) * C].as_chunks::<C>().0;
        for (blocks, words) in blocks.iter().zip(weights.words(span, P).as_chunks::<P>().0) {
            let words = words.map(|word| _mm512_set1_epi32(word));
            for (sums, block) in sums.iter_mut().zip(blocks) {
                let levels = load(&block.0);
                sums.iter_mut()
                    .zip(words)
                    .for_each(|(sum, word)| *sum = _mm512_dpbusd_epi32(*sum, levels, word));
            }
        }
        let mut lanes = [_mm512_setzero_si512(); 4];
        lanes.iter_mut().zip(sums).for_each(|(lanes, sums)| *lanes = combine(sums, shift));
        let levels = clamp(lanes);
        // Lanes past the channels are overwritten by the next output, or lie in the padding.
        store4(&mut first[x * C..], _mm512_castsi512_si128(levels));
        store4(&mut second[x * C..], _mm512_extracti32x4_epi32::<1>(levels));
        store4(&mut third[x * C..], _mm512_extracti32x4_epi32::<2>(levels));
        store4(&mut fourth[x * C..], _mm512_extracti32x4_epi32::<3>(levels));
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store4(lanes: &mut [u32], value: __m128i) {
    let lanes = &mut lanes[..4];
    // SAFETY: the slice has the 16 bytes that are written.
    unsafe { _mm_storeu_si128(lanes.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn vertical<const P: usize>(rows: &[&[u32]], words: &[i32], weights: &Weights, out: &mut [u8]) {
    let shift = _mm_cvtsi32_si128(weights.shift as i32);
    let transpose = transposition();
    let mut start = [_mm512_setzero_si512(); P];
    start[0] = _mm512_set1_epi32(weights.half);
    for (step, out) in out.chunks_exact_mut(STEP).enumerate() {
        let mut sums = [start; 4];
        for (row, words) in rows.iter().zip(words.as_chunks::<P>().0) {
            let words = words.map(|word| _mm512_set1_epi32(word));
            let lanes = row[step * STEP..][..STEP].as_chunks::<LANES>().0;
            for (sums, lanes) in sums.iter_mut().zip(lanes) {
                let levels = load(lanes);
                sums.iter_mut()
                    .zip(words)
                    .for_each(|(sum, word)| *sum = _mm512_dpbusd_epi32(*sum, levels, word));
            }
        }
        let levels = clamp(sums.map(|sums| combine(sums, shift)));
        store_levels(out, _mm512_permutexvar_epi32(transpose, levels));
    }
}
