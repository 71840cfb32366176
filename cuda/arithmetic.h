// The arithmetic of every kernel, element by element: the same functions on the GPU and, under test, on the
// CPU.
//
// Everything is computed in float32 with one rounding at the end. Compiled without contraction into fused
// multiply-adds on both sides, so that only exp, erfc, division and square root may differ, by their
// last bit.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MM_BOTH __host__ __device__ __forceinline__
#else
#define MM_BOTH inline
#endif

namespace mm::cuda {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

MM_BOTH uint32_t bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}
MM_BOTH float float_of(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

MM_BOTH float load(float v) { return v; }
MM_BOTH float load(Bf16 v) { return float_of(static_cast<uint32_t>(v.bits) << 16); }
MM_BOTH float load(F16 v) {
#ifdef __CUDA_ARCH__
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(v.bits));
  return out;
#else
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t rest = v.bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // A subnormal half is an exact multiple of 2^-24.
  if (rest < 0x400u) return float_of(sign | bits_of(static_cast<float>(rest) * 0x1p-24f));
  return float_of(sign | ((rest << 13) + (112u << 23)));
#endif
}

template <class T>
MM_BOTH T store(float v);
template <>
MM_BOTH float store<float>(float v) {
  return v;
}
template <>
MM_BOTH Bf16 store<Bf16>(float v) {
  const uint32_t bits = bits_of(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return Bf16{static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return Bf16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <>
MM_BOTH F16 store<F16>(float v) {
#ifdef __CUDA_ARCH__
  F16 out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(v));
  return out;
#else
  const uint32_t bits = bits_of(v);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return F16{static_cast<uint16_t>(sign | 0x7e00u)};
  // 65520 and above round to infinity.
  if (rest >= 0x477ff000u) return F16{static_cast<uint16_t>(sign | 0x7c00u)};
  // Below 2^-14: adding 0.5 leaves the multiple of 2^-24 in the low bits, rounded to nearest even.
  if (rest < 0x38800000u) {
    return F16{static_cast<uint16_t>(sign | (bits_of(float_of(rest) + 0.5f) - bits_of(0.5f)))};
  }
  return F16{static_cast<uint16_t>(sign | ((rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13))};
#endif
}

// `v` as the element type holds it.
template <class T>
MM_BOTH float rounded(float v) {
  return load(store<T>(v));
}

// Numbers of MmActivation in src/torch/bridge/api.h.
enum Activation : int32_t {
  NONE = 0,
  GELU = 1,
  GELU_TANH = 2,
  SILU = 3,
  RELU = 4,
  QUICK_GELU = 5,
  RELU_SQUARED = 6
};

MM_BOTH float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// A NaN passes through.
MM_BOTH float positive(float x) { return x < 0.0f ? 0.0f : x; }

template <class T>
MM_BOTH float activate(float x, int32_t kind) {
  switch (kind) {
    case GELU:
      // 1 + erf(x) without its cancellation below 0; the same for tanh.
      return 0.5f * x * erfcf(x * -0.70710678118654752f);
    case GELU_TANH:
      return x * sigmoid(1.59576912160573072f * (x + 0.044715f * x * x * x));
    case SILU:
      return x * sigmoid(x);
    case RELU:
      return positive(x);
    case QUICK_GELU:
      // Its plain definition is three operators, each of which rounds.
      return x * rounded<T>(sigmoid(rounded<T>(1.702f * x)));
    case RELU_SQUARED:
      return positive(x) * positive(x);
    default:
      return x;
  }
}

// A limit of infinity clamps nothing; a NaN passes through.
MM_BOTH float gate(float gate, float up, float limit, int32_t kind) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : (up < -limit ? -limit : up);
  return activate<float>(gate, kind) * up;
}

struct Pair {
  float first, second;
};

MM_BOTH Pair turn(Pair v, float cos, float sin) {
  return Pair{v.first * cos - v.second * sin, v.second * cos + v.first * sin};
}

MM_BOTH float scaled(float v, float mean, float inverse, float weight, float bias) {
  return (v - mean) * inverse * weight + bias;
}

template <class T>
MM_BOTH float weighted(const T* const tap[4], const float share[4], int64_t column) {
  return load(tap[0][column]) * share[0] + load(tap[1][column]) * share[1] + load(tap[2][column]) * share[2] +
         load(tap[3][column]) * share[3];
}

// Several numbers that are read or written at once.
template <class T, int N>
struct alignas(N * sizeof(T)) Run {
  T at[N];
};

// The channel of sample `i` of a patch, [channel][line][column] or [line][column][channel].
MM_BOTH int32_t channel_of(int32_t i, int32_t side, bool channels_last) {
  return channels_last ? i % 3 : i / (side * side);
}

// Is sample `i` of a patch content: within the edges' lines and columns?
MM_BOTH bool is_content(int32_t i, int32_t side, bool channels_last, const uint16_t edges[4]) {
  const int32_t pixel = channels_last ? i / 3 : i % (side * side);
  const int32_t line = pixel / side, column = pixel % side;
  return line >= edges[0] && line < edges[1] && column >= edges[2] && column < edges[3];
}

// Values of a channel in the table: of all levels, then that of padding.
constexpr int32_t TABLE_COLUMNS = 257;

template <class T>
MM_BOTH T value_of(const T* table, int32_t channel, uint8_t level, bool content) {
  return table[channel * TABLE_COLUMNS + (content ? level : TABLE_COLUMNS - 1)];
}

}  // namespace mm::cuda
