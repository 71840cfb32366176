//! The float32 kernels for AVX2 and FMA: eight lanes, each in ATen's order of operations.

use std::arch::x86_64::*;

use super::float::{Kernel, LANES, Lanes, unfused};
use super::weights::Taps;

/// AVX2 and FMA.
pub struct Avx2;

/// Registers of one step along a row.
const WIDE: usize = 4;

// SAFETY: each function needs AVX2 and FMA, as the type's name says.
unsafe impl Kernel for Avx2 {
    #[target_feature(enable = "avx2")]
    unsafe fn spread(rows: &[&[u8]; LANES], lanes: &mut [Lanes]) {
        for (tile, lanes) in lanes.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let levels = rows.map(|row| load_levels(&row[tile * LANES..]));
            for (lane, levels) in lanes.iter_mut().zip(transpose_levels(levels)) {
                store(lane, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(levels)));
            }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn horizontal(lanes: &[Lanes], channels: usize, taps: &Taps<f32>, out: &mut [f32], stride: usize) {
        let samples = taps.windows.len() * channels;
        for start in (0..samples).step_by(LANES) {
            let mut tile = [_mm256_setzero_ps(); LANES];
            for (sample, sums) in (start..samples).zip(&mut tile) {
                let (window, channel) = (&taps.windows[sample / channels], sample % channels);
                let weights = taps.of(window);
                let lanes = &lanes[window.start * channels + channel..];
                let fused = 1 + unfused(weights.len());
                let mut sum = _mm256_setzero_ps();
                for (k, (weight, lanes)) in weights.iter().zip(lanes.iter().step_by(channels)).enumerate() {
                    sum = add(sum, load(lanes), _mm256_set1_ps(*weight), k, fused);
                }
                *sums = sum;
            }
            for (r, values) in transpose(tile).into_iter().enumerate() {
                store(&mut out[r * stride + start..], values);
            }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn vertical(rows: &[&[f32]], weights: &[f32], out: &mut [f32]) {
        let fused = 1 + unfused(weights.len());
        let mut start = 0;
        while start < out.len() {
            let count = WIDE.min((out.len() - start) / LANES);
            let mut sums = [_mm256_setzero_ps(); WIDE];
            for (k, (weight, row)) in weights.iter().zip(rows).enumerate() {
                let weight = _mm256_set1_ps(*weight);
                for (sum, values) in sums.iter_mut().zip(row[start..].as_chunks::<LANES>().0) {
                    *sum = add(*sum, load(values), weight, k, fused);
                }
            }
            for (values, sum) in out[start..].as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
                store(values, sum);
            }
            start += count * LANES;
        }
    }
}

/// Adds product `k` to a sum: the first is the sum, those before `fused` are rounded before they are added.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add(sum: __m256, values: __m256, weight: __m256, k: usize, fused: usize) -> __m256 {
    if k >= fused {
        return _mm256_fmadd_ps(values, weight, sum);
    }
    let product = _mm256_mul_ps(values, weight);
    if k == 0 { product } else { _mm256_add_ps(sum, product) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(values: &Lanes) -> __m256 {
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(values: &mut [f32], value: __m256) {
    let values = &mut values[..LANES];
    // SAFETY: the slice has the 32 bytes that are written.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), value) }
}

/// Eight levels in the low half; what is missing is 0.
#[inline]
#[target_feature(enable = "avx2")]
fn load_levels(levels: &[u8]) -> __m128i {
    let mut bytes = [0; LANES];
    match levels.first_chunk() {
        Some(levels) => bytes = *levels,
        None => bytes[..levels.len()].copy_from_slice(levels),
    }
    _mm_cvtsi64_si128(i64::from_le_bytes(bytes))
}

/// From eight levels of eight rows to eight rows of eight samples, each in a low half.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_levels([a, b, c, d, e, f, g, h]: [__m128i; LANES]) -> [__m128i; LANES] {
    let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
    let (ef, gh) = (_mm_unpacklo_epi8(e, f), _mm_unpacklo_epi8(g, h));
    let (upper, lower) = (_mm_unpacklo_epi16(ab, cd), _mm_unpacklo_epi16(ef, gh));
    let (upper_high, lower_high) = (_mm_unpackhi_epi16(ab, cd), _mm_unpackhi_epi16(ef, gh));
    let pairs = [
        _mm_unpacklo_epi32(upper, lower),
        _mm_unpackhi_epi32(upper, lower),
        _mm_unpacklo_epi32(upper_high, lower_high),
        _mm_unpackhi_epi32(upper_high, lower_high),
    ];
    let [p, q, r, s] = pairs;
    let second = |pair| _mm_unpackhi_epi64(pair, pair);
    [p, second(p), q, second(q), r, second(r), s, second(s)]
}

/// Transposes 8 x 8 values.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose([a, b, c, d, e, f, g, h]: [__m256; LANES]) -> [__m256; LANES] {
    let quarter = |a, b, c, d| {
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
            _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
            _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
            _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
        ]
    };
    let ([i, j, k, l], [m, n, o, p]) = (quarter(a, b, c, d), quarter(e, f, g, h));
    [
        _mm256_permute2f128_ps::<0x20>(i, m),
        _mm256_permute2f128_ps::<0x20>(j, n),
        _mm256_permute2f128_ps::<0x20>(k, o),
        _mm256_permute2f128_ps::<0x20>(l, p),
        _mm256_permute2f128_ps::<0x31>(i, m),
        _mm256_permute2f128_ps::<0x31>(j, n),
        _mm256_permute2f128_ps::<0x31>(k, o),
        _mm256_permute2f128_ps::<0x31>(l, p),
    ]
}
