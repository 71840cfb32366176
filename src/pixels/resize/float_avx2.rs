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
        match channels {
            3 => horizontal::<3>(lanes, taps, out, stride),
            4 => horizontal::<4>(lanes, taps, out, stride),
            _ => horizontal::<1>(lanes, taps, out, stride),
        }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn vertical(rows: &[&[f32]], weights: &[f32], out: &mut [f32]) {
        let mut start = 0;
        for out in out.chunks_mut(WIDE * LANES) {
            let values = |k: usize| rows[k][start..][..out.len()].as_chunks::<LANES>().0;
            let sums = dot::<WIDE>(weights, values);
            out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums).for_each(|(values, sum)| store(values, sum));
            start += out.len();
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn horizontal<const C: usize>(lanes: &[Lanes], taps: &Taps<f32>, out: &mut [f32], stride: usize) {
    let pixels = lanes.as_chunks::<C>().0;
    for (block, windows) in taps.windows.chunks(LANES).enumerate() {
        let mut sums = [[[0.0; LANES]; C]; LANES];
        for (window, sums) in windows.iter().zip(&mut sums) {
            let pixels = &pixels[window.start..window.start + window.len];
            let all = dot::<C>(taps.of(window), |k| &pixels[k]);
            sums.iter_mut().zip(all).for_each(|(sums, all)| store(sums, all));
        }
        for (tile, sums) in sums.as_flattened().as_chunks::<LANES>().0.iter().enumerate() {
            let start = (block * C + tile) * LANES;
            if start < stride {
                for (r, values) in transpose(sums.each_ref().map(|sums| load(sums))).into_iter().enumerate() {
                    store(&mut out[r * stride + start..], values);
                }
            }
        }
    }
}

/// `N` registers of weighted sums in ATen's order: the first product, then blocks of four products that are rounded
/// before they are added, then fused multiply-adds. `values(k)` has up to `N` times eight values of tap `k`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn dot<'a, const N: usize>(weights: &[f32], values: impl Fn(usize) -> &'a [Lanes]) -> [__m256; N] {
    let mut sums = [_mm256_setzero_ps(); N];
    let fused = (1 + unfused(weights.len())).min(weights.len());
    for (k, weight) in weights[..fused].iter().enumerate() {
        let weight = _mm256_set1_ps(*weight);
        for (sum, values) in sums.iter_mut().zip(values(k)) {
            let product = _mm256_mul_ps(load(values), weight);
            *sum = if k == 0 { product } else { _mm256_add_ps(*sum, product) };
        }
    }
    for (k, weight) in weights.iter().enumerate().skip(fused) {
        let weight = _mm256_set1_ps(*weight);
        for (sum, values) in sums.iter_mut().zip(values(k)) {
            *sum = _mm256_fmadd_ps(load(values), weight, *sum);
        }
    }
    sums
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
