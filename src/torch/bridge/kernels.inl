// Bodies of the fused CPU kernels; included by kernels_*.cpp with MM_KERNELS naming the table to define.
#include "kernels.h"

namespace mm {
namespace {

constexpr int LANES = 16;

struct Bf16 {
  uint16_t bits;
};

inline float load(float v) { return v; }
inline float load(_Float16 v) { return static_cast<float>(v); }
inline float load(Bf16 v) {
  const uint32_t wide = static_cast<uint32_t>(v.bits) << 16;
  float out;
  __builtin_memcpy(&out, &wide, 4);
  return out;
}

template <class T>
T store(float v);
template <>
inline float store<float>(float v) {
  return v;
}
template <>
inline _Float16 store<_Float16>(float v) {
  return static_cast<_Float16>(v);
}
template <>
inline Bf16 store<Bf16>(float v) {
  uint32_t bits;
  __builtin_memcpy(&bits, &v, 4);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return Bf16{static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

template <class T>
inline float rounded(float v) {
  return load(store<T>(v));
}

// e^x with a relative error below 2e-7 on [-87, 88]; clamped outside.
inline float exp_near(float x) {
  x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float n = __builtin_floorf(x * 1.44269504088896341f + 0.5f);
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const uint32_t scale_bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  float scale;
  __builtin_memcpy(&scale, &scale_bits, 4);
  return p * scale;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp_near(-x)); }

template <class T>
float mean_square(const T* x, int64_t columns) {
  float lane[LANES] = {};
  int64_t i = 0;
  for (; i + LANES <= columns; i += LANES) {
    for (int j = 0; j < LANES; ++j) {
      const float v = load(x[i + j]);
      lane[j] += v * v;
    }
  }
  float total = 0.0f;
  for (; i < columns; ++i) {
    const float v = load(x[i]);
    total += v * v;
  }
  for (int j = 0; j < LANES; ++j) total += lane[j];
  return total / static_cast<float>(columns);
}

template <class T>
void rms_norm_row(const T* x, const T* weight, T* y, int64_t columns, float eps) {
  const float scale = 1.0f / __builtin_sqrtf(mean_square(x, columns) + eps);
  if (!weight) {
    for (int64_t i = 0; i < columns; ++i) y[i] = store<T>(load(x[i]) * scale);
  } else {
    for (int64_t i = 0; i < columns; ++i) y[i] = store<T>(load(x[i]) * scale * load(weight[i]));
  }
}

template <class T>
void rms_norm(const RmsNorm& job, Rows rows) {
  const T* x = static_cast<const T*>(job.x);
  T* y = static_cast<T*>(job.y);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    rms_norm_row(x + r * job.columns, static_cast<const T*>(job.weight), y + r * job.columns, job.columns,
                 job.eps);
  }
}

template <class T>
void depthwise(const Depthwise& job, Rows rows) {
  const int64_t n = job.columns;
  const T* weight = static_cast<const T*>(job.weight);
  const T* bias = static_cast<const T*>(job.bias);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(job.x) + r * n;
    T* y = static_cast<T*>(job.y) + r * n;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
      float lane[LANES];
      for (int j = 0; j < LANES; ++j) lane[j] = load(bias[i + j]);
      for (int64_t k = 0; k < job.taps; ++k) {
        for (int j = 0; j < LANES; ++j) lane[j] += load(weight[k * n + i + j]) * load(x[k * n + i + j]);
      }
      for (int j = 0; j < LANES; ++j) y[i + j] = store<T>(lane[j]);
    }
    for (; i < n; ++i) {
      float sum = load(bias[i]);
      for (int64_t k = 0; k < job.taps; ++k) sum += load(weight[k * n + i]) * load(x[k * n + i]);
      y[i] = store<T>(sum);
    }
  }
}

inline float gelu_tanh(float x) {
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x * sigmoid(2.0f * inner);
}

template <class T>
void gated(const Gated& job, Rows rows) {
  const int64_t n = job.columns;
  const float limit = job.limit;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* gate = static_cast<const T*>(job.x) + r * 2 * n;
    const T* up = gate + n;
    T* y = static_cast<T*>(job.y) + r * n;
    for (int64_t i = 0; i < n; ++i) {
      float g = load(gate[i]);
      float u = load(up[i]);
      g = g > limit ? limit : g;
      u = u > limit ? limit : (u < -limit ? -limit : u);
      const float act = job.gelu_tanh ? gelu_tanh(g) : g * sigmoid(g);
      y[i] = store<T>(act * u);
    }
  }
}

template <class T>
void rotary(const Rotary& job, Rows rows) {
  const int64_t d = job.dim, half = d / 2, width = job.heads * d;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* c = job.cos + r * half;
    const float* s = job.sin + r * half;
    T* row = static_cast<T*>(job.qkv) + r * 3 * width;
    for (int part = 0; part < 2; ++part) {
      const T* norm = static_cast<const T*>(part == 0 ? job.q_norm : job.k_norm);
      for (int64_t h = 0; h < job.heads; ++h) {
        T* x = row + part * width + h * d;
        if (norm) rms_norm_row(x, norm, x, d, job.eps);
        if (job.neighbours) {
          for (int64_t j = 0; j < half; ++j) {
            const float a = load(x[2 * j]), b = load(x[2 * j + 1]);
            x[2 * j] = store<T>(a * c[j] - b * s[j]);
            x[2 * j + 1] = store<T>(a * s[j] + b * c[j]);
          }
        } else {
          for (int64_t j = 0; j < half; ++j) {
            const float a = load(x[j]), b = load(x[j + half]);
            x[j] = store<T>(a * c[j] - b * s[j]);
            x[j + half] = store<T>(b * c[j] + a * s[j]);
          }
        }
      }
    }
  }
}

template <class T>
void interpolate(const Interpolate& job, Rows rows) {
  const int64_t n = job.columns;
  const T* table = static_cast<const T*>(job.table);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* tap[4];
    float w[4];
    for (int k = 0; k < 4; ++k) {
      tap[k] = table + job.index[k * job.rows + r] * n;
      w[k] = job.weight[k * job.rows + r];
    }
    const T* x = static_cast<const T*>(job.x) + r * n;
    T* y = static_cast<T*>(job.y) + r * n;
    for (int64_t i = 0; i < n; ++i) {
      const float sum =
          load(tap[0][i]) * w[0] + load(tap[1][i]) * w[1] + load(tap[2][i]) * w[2] + load(tap[3][i]) * w[3];
      y[i] = store<T>(load(x[i]) + rounded<T>(sum));
    }
  }
}

template <class T>
void quick_gelu(const Pointwise& job, Rows elements) {
  const T* x = static_cast<const T*>(job.x);
  T* y = static_cast<T*>(job.y);
  for (int64_t i = elements.begin; i < elements.end; ++i) {
    const float v = load(x[i]);
    y[i] = store<T>(v * rounded<T>(sigmoid(rounded<T>(1.702f * v))));
  }
}

template <class T>
void relu_squared(const Pointwise& job, Rows elements) {
  const T* x = static_cast<const T*>(job.x);
  T* y = static_cast<T*>(job.y);
  for (int64_t i = elements.begin; i < elements.end; ++i) {
    const float v = load(x[i]);
    const float positive = v > 0.0f ? v : 0.0f;
    y[i] = store<T>(positive * positive);
  }
}

}  // namespace

#define MM_TYPES(kernel) {kernel<float>, kernel<Bf16>, kernel<_Float16>}
const Kernels MM_KERNELS = {
    MM_TYPES(rms_norm),    MM_TYPES(depthwise),  MM_TYPES(gated),        MM_TYPES(rotary),
    MM_TYPES(interpolate), MM_TYPES(quick_gelu), MM_TYPES(relu_squared),
};
#undef MM_TYPES

}  // namespace mm
