//! The kernels for NEON: weights stay whole, a product of 32 bits a lane and instruction.
//!
//! A lane holds four levels, which become four lanes of one level each by shifts and masks.

use std::arch::aarch64::*;

use super::packed::{Block, GROUP, Kernel, ROWS, STEP, Weights};

/// NEON, which every 64-bit Arm machine has.
pub struct Neon;

/// Lanes of a register.
const LANES: usize = 4;
/// Levels of a register.
const LEVELS: usize = 16;

// SAFETY: each function needs NEON, as the type's name says.
unsafe impl Kernel for Neon {
    const MIN_PARTS: usize = 1;
    const MAX_PARTS: usize = 1;

    fn fits(_weight: i32, _parts: usize) -> bool {
        true
    }

    fn split(weights: [i32; GROUP], _parts: usize, words: &mut Vec<i32>) {
        words.extend(weights);
    }

    #[target_feature(enable = "neon")]
    unsafe fn spread(rows: &[&[u8]; ROWS], channels: usize, blocks: &mut [Block]) {
        match channels {
            // Indices beyond the register give 0.
            3 => spread::<12, 3>(rows, [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, 255, 255, 255, 255], blocks),
            4 => spread::<16, 4>(rows, [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15], blocks),
            _ => spread::<16, 4>(rows, std::array::from_fn(|i| i as u8), blocks),
        }
    }

    #[target_feature(enable = "neon")]
    unsafe fn horizontal(
        blocks: &[Block],
        channels: usize,
        weights: &Weights,
        out: &mut [u32],
        stride: usize,
    ) {
        match channels {
            3 => horizontal::<3>(blocks, weights, out, stride),
            4 => horizontal::<4>(blocks, weights, out, stride),
            _ => horizontal::<1>(blocks, weights, out, stride),
        }
    }

    #[target_feature(enable = "neon")]
    unsafe fn interleave(rows: &[&[u8]; GROUP], out: &mut [u32]) {
        let whole = rows[0].len() / LEVELS;
        let (body, tail) = out.split_at_mut(whole * LEVELS);
        for (step, out) in body.as_chunks_mut::<LEVELS>().0.iter_mut().enumerate() {
            store_groups(rows.map(|row| load_levels(&row[step * LEVELS..])), out);
        }
        let rest = rows[0].len() % LEVELS;
        if rest > 0 {
            let levels = rows.map(|row| {
                let mut levels = [0; LEVELS];
                levels[..rest].copy_from_slice(&row[whole * LEVELS..]);
                load_levels(&levels)
            });
            store_groups(levels, &mut tail[..LEVELS]);
        }
    }

    #[target_feature(enable = "neon")]
    unsafe fn deinterleave(groups: &[u32], rows: &mut [&mut [u8]; GROUP]) {
        for (step, groups) in groups.as_chunks::<LEVELS>().0.iter().enumerate() {
            // SAFETY: the array has the 64 bytes that are read.
            let uint8x16x4_t(a, b, c, d) = unsafe { vld4q_u8(groups.as_ptr().cast()) };
            for (row, levels) in rows.iter_mut().zip([a, b, c, d]) {
                store_levels(&mut row[step * LEVELS..], levels);
            }
        }
    }

    #[target_feature(enable = "neon")]
    unsafe fn vertical(rows: &[&[u32]], words: &[i32], weights: &Weights, out: &mut [u8]) {
        let shift = vdupq_n_s32(-(weights.shift as i32));
        for (step, out) in out.chunks_exact_mut(STEP / 4).enumerate() {
            let mut sums = [vdupq_n_s32(weights.half); 4];
            for (row, words) in rows.iter().zip(words.as_chunks::<GROUP>().0) {
                let lanes = row[step * LEVELS..][..LEVELS].as_chunks::<LANES>().0;
                for (sum, lanes) in sums.iter_mut().zip(lanes) {
                    *sum = accumulate(*sum, load(lanes), words);
                }
            }
            let [a, b, c, d] = sums.map(|sum| vqmovun_s32(vshlq_s32(sum, shift)));
            let (low, high) = (vqmovn_u16(vcombine_u16(a, b)), vqmovn_u16(vcombine_u16(c, d)));
            store_levels(out, vcombine_u8(low, high));
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn load(lanes: &[u32]) -> uint32x4_t {
    let lanes = &lanes[..LANES];
    // SAFETY: the slice has the 16 bytes that are read.
    unsafe { vld1q_u32(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(lanes: &mut [u32], value: uint32x4_t) {
    let lanes = &mut lanes[..LANES];
    // SAFETY: the slice has the 16 bytes that are written.
    unsafe { vst1q_u32(lanes.as_mut_ptr(), value) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_levels(levels: &[u8]) -> uint8x16_t {
    let levels = &levels[..LEVELS];
    // SAFETY: the slice has the 16 bytes that are read.
    unsafe { vld1q_u8(levels.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store_levels(levels: &mut [u8], value: uint8x16_t) {
    let levels = &mut levels[..LEVELS];
    // SAFETY: the slice has the 16 bytes that are written.
    unsafe { vst1q_u8(levels.as_mut_ptr(), value) }
}

/// Groups sixteen levels of four rows.
#[inline]
#[target_feature(enable = "neon")]
fn store_groups([a, b, c, d]: [uint8x16_t; GROUP], out: &mut [u32]) {
    let out = &mut out[..LEVELS];
    // SAFETY: the slice has the 64 bytes that are written.
    unsafe { vst4q_u8(out.as_mut_ptr().cast(), uint8x16x4_t(a, b, c, d)) }
}

/// Transposes 4 x 4 lanes.
#[inline]
#[target_feature(enable = "neon")]
fn transpose([a, b, c, d]: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    let wide = |value| vreinterpretq_u64_u32(value);
    let (ab, cd) = (wide(vtrn1q_u32(a, b)), wide(vtrn1q_u32(c, d)));
    let (ab_odd, cd_odd) = (wide(vtrn2q_u32(a, b)), wide(vtrn2q_u32(c, d)));
    [vtrn1q_u64(ab, cd), vtrn1q_u64(ab_odd, cd_odd), vtrn2q_u64(ab, cd), vtrn2q_u64(ab_odd, cd_odd)]
        .map(|value| vreinterpretq_u32_u64(value))
}

/// Steps of `BYTES` bytes a row that make `COUNT` blocks each. `order` brings the bytes of a step into the blocks' order.
#[inline]
#[target_feature(enable = "neon")]
fn spread<const BYTES: usize, const COUNT: usize>(
    rows: &[&[u8]; ROWS],
    order: [u8; LEVELS],
    blocks: &mut [Block],
) {
    let order = load_levels(&order);
    let length = rows.iter().map(|row| row.len()).min().unwrap_or(0);
    for (step, blocks) in blocks.chunks_exact_mut(COUNT).take(length.div_ceil(BYTES)).enumerate() {
        for first in (0..ROWS).step_by(LANES) {
            let quarters = std::array::from_fn(|i| {
                let row = &rows[first + i][step * BYTES..length];
                let levels = match row.first_chunk::<LEVELS>() {
                    Some(levels) => load_levels(levels),
                    None => {
                        let mut levels = [0; LEVELS];
                        levels[..row.len()].copy_from_slice(row);
                        load_levels(&levels)
                    }
                };
                vreinterpretq_u32_u8(vqtbl1q_u8(levels, order))
            });
            let lanes = transpose(quarters);
            blocks.iter_mut().zip(lanes).for_each(|(block, lanes)| store(&mut block.0[first..], lanes));
        }
    }
}

/// Adds the products of the levels of a group and its weights.
#[inline]
#[target_feature(enable = "neon")]
fn accumulate(sum: int32x4_t, levels: uint32x4_t, words: &[i32; GROUP]) -> int32x4_t {
    let one = |lanes| vreinterpretq_s32_u32(vandq_u32(lanes, vdupq_n_u32(0xff)));
    let sum = vmlaq_n_s32(sum, one(levels), words[0]);
    let sum = vmlaq_n_s32(sum, one(vshrq_n_u32::<8>(levels)), words[1]);
    let sum = vmlaq_n_s32(sum, one(vshrq_n_u32::<16>(levels)), words[2]);
    vmlaq_n_s32(sum, vreinterpretq_s32_u32(vshrq_n_u32::<24>(levels)), words[3])
}

#[inline]
#[target_feature(enable = "neon")]
fn horizontal<const C: usize>(blocks: &[Block], weights: &Weights, out: &mut [u32], stride: usize) {
    let shift = vdupq_n_s32(-(weights.shift as i32));
    for (quarter, out) in out.chunks_exact_mut(stride).take(ROWS / GROUP).enumerate() {
        for (span, out) in weights.spans().iter().zip(out.as_chunks_mut::<C>().0) {
            let mut sums = [vdupq_n_s32(weights.half); C];
            let blocks = blocks[span.group * C..(span.group + span.groups) * C].as_chunks::<C>().0;
            for (blocks, words) in blocks.iter().zip(weights.words(span, GROUP).as_chunks::<GROUP>().0) {
                for (sum, block) in sums.iter_mut().zip(blocks) {
                    *sum = accumulate(*sum, load(&block.0[quarter * LANES..]), words);
                }
            }
            for (lane, sum) in out.iter_mut().zip(sums) {
                let half = vqmovun_s32(vshlq_s32(sum, shift));
                let levels = vqmovn_u16(vcombine_u16(half, half));
                *lane = vget_lane_u32::<0>(vreinterpret_u32_u8(levels));
            }
        }
    }
}
