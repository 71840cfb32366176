// The bodies of the kernels, written for a team of threads.
//
// `Team::each(n, f)` calls f(i) for every i below n, spread over the team's threads; the thread that takes an
// i is always the same. `Team::sum(n, f)` gives every thread the sum of f(i). Kernels run them with a block
// or a warp, a test on the CPU with one thread that stands for all.
#pragma once

#include "api.h"
#include "launch.h"

namespace mm::cuda {

template <class T>
struct NormRow {
  using Job = MmCudaNorm;

  template <class Team>
  static MM_BOTH void run(const Job& job, int64_t row, Team& team) {
    const int64_t n = job.columns;
    const T* x = static_cast<const T*>(job.x) + row * n;
    const T* weight = static_cast<const T*>(job.weight);
    const T* bias = static_cast<const T*>(job.bias);
    T* out = static_cast<T*>(job.out) + row * n;
    if (job.y) {
      const T* y = static_cast<const T*>(job.y) + row * n;
      T* sum = static_cast<T*>(job.sum) + row * n;
      // Read back below by the thread that wrote it.
      team.each(n, [&](int64_t i) { sum[i] = store<T>(load(x[i]) + load(y[i])); });
      x = sum;
    }
    const float count = static_cast<float>(n);
    float mean = 0.0f;
    if (bias) mean = team.sum(n, [&](int64_t i) { return load(x[i]); }) / count;
    const float spread = team.sum(n, [&](int64_t i) {
      const float v = load(x[i]) - mean;
      return v * v;
    });
    const float inverse = 1.0f / sqrtf(spread / count + job.eps);
    team.each(n, [&](int64_t i) {
      const float w = weight ? load(weight[i]) : 1.0f;
      out[i] = store<T>(scaled(load(x[i]), mean, inverse, w, bias ? load(bias[i]) : 0.0f));
    });
  }
};

// One head of q or of k of one row.
template <class T>
struct RotaryHead {
  using Job = MmCudaRotary;

  static MM_BOTH int64_t units(const Job& job) { return job.rows * 2 * job.heads; }

  template <class Team>
  static MM_BOTH void run(const Job& job, int64_t unit, Team& team) {
    const int64_t head = unit % job.heads, part = unit / job.heads % 2, row = unit / job.heads / 2;
    const int64_t half = job.dim / 2;
    T* x = static_cast<T*>(job.qkv) + ((row * 3 + part) * job.heads + head) * job.dim;
    const T* norm = static_cast<const T*>(part == 0 ? job.q_norm : job.k_norm);
    float inverse = 1.0f;
    if (norm) {
      const float squares = team.sum(job.dim, [&](int64_t i) { return load(x[i]) * load(x[i]); });
      inverse = 1.0f / sqrtf(squares / static_cast<float>(job.dim) + job.eps);
    }
    const int64_t step = job.neighbours ? 2 : 1, other = job.neighbours ? 1 : half;
    team.each(half, [&](int64_t j) {
      T& first = x[j * step];
      T& second = x[j * step + other];
      Pair v{load(first), load(second)};
      if (norm) {
        v.first = rounded<T>(v.first * inverse * load(norm[j * step]));
        v.second = rounded<T>(v.second * inverse * load(norm[j * step + other]));
      }
      v = turn(v, job.cos[row * half + j], job.sin[row * half + j]);
      first = store<T>(v.first);
      second = store<T>(v.second);
    });
  }
};

template <class T>
struct GatedElement {
  using Job = MmCudaGated;

  static MM_BOTH int64_t count(const Job& job) { return job.rows * job.columns; }

  static MM_BOTH void run(const Job& job, int64_t i) {
    const int64_t row = i / job.columns, column = i % job.columns;
    const T* x = static_cast<const T*>(job.x) + row * 2 * job.columns + column;
    static_cast<T*>(job.out)[i] = store<T>(gate(load(x[0]), load(x[job.columns]), job.limit, job.activation));
  }
};

template <class T>
struct ActivationElement {
  using Job = MmCudaActivation;

  static MM_BOTH int64_t count(const Job& job) { return job.count; }

  static MM_BOTH void run(const Job& job, int64_t i) {
    const float v = load(static_cast<const T*>(job.x)[i]);
    static_cast<T*>(job.out)[i] = store<T>(activate<T>(v, job.activation));
  }
};

template <class T>
struct PositionElement {
  using Job = MmCudaPositions;

  static MM_BOTH int64_t count(const Job& job) { return job.rows * job.columns; }

  static MM_BOTH void run(const Job& job, int64_t i) {
    const int64_t row = i / job.columns, column = i % job.columns;
    const T* table = static_cast<const T*>(job.table);
    const T* tap[4];
    float share[4];
    for (int k = 0; k < 4; ++k) {
      tap[k] = table + job.index[k * job.rows + row] * job.columns;
      share[k] = job.weight[k * job.rows + row];
    }
    const float v = load(static_cast<const T*>(job.x)[i]) + rounded<T>(weighted(tap, share, column));
    static_cast<T*>(job.out)[i] = store<T>(v);
  }
};

// One patch. Each thread takes N levels of one plane at once and writes all copies of their values.
template <class T, int N>
struct PatchRow {
  using Job = MmCudaPatches;

  template <class Team>
  static MM_BOTH void run(const Job& job, int64_t row, Team& team) {
    const int32_t area = job.side * job.side, columns = 3 * area;
    const auto* levels = reinterpret_cast<const Run<uint8_t, N>*>(job.levels + row * columns);
    const auto* table = static_cast<const T*>(job.table);
    T* out = static_cast<T*>(job.out) + row * columns * job.frames;
    const bool last = job.order == MM_CHANNELS_LAST, together = job.order == MM_CHANNEL_FRAME;
    const uint16_t* edges = job.edges + 4 * row;
    const bool whole = edges[0] == 0 && edges[1] == job.side && edges[2] == 0 && edges[3] == job.side;
    team.each(columns / N, [&](int64_t i) {
      const Run<uint8_t, N> from = levels[i];
      const auto first = static_cast<int32_t>(i) * N;
      const int32_t channel = channel_of(first, job.side, last);
      Run<T, N> values;
      for (int k = 0; k < N; ++k) {
        const bool content = whole || is_content(first + k, job.side, last, edges);
        values.at[k] = value_of(table, last ? (channel + k) % 3 : channel, from.at[k], content);
      }
      // The copies of a plane stand together, or those of a whole patch.
      T* to = out + first + (together ? channel * area * (job.frames - 1) : 0);
      const int32_t step = together ? area : columns;
      for (int32_t frame = 0; frame < job.frames; ++frame) {
        *reinterpret_cast<Run<T, N>*>(to + frame * step) = values;
      }
    });
  }
};

// Where a plane has a multiple of 4 samples: every run of 4 begins at a multiple of its size, and none leaves
// its plane.
template <class T>
using PatchRuns = PatchRow<T, 4>;
template <class T>
using PatchSamples = PatchRow<T, 1>;

}  // namespace mm::cuda
