// Fused CPU kernels: one source, compiled once per instruction set (kernels_*.cpp).
//
// All reductions use LANES fixed partial sums and the files are compiled without contraction into fused
// multiply-adds, so every instruction set gives the same bits. Nothing here may pull in inline functions of
// the standard library: the linker could pick a copy compiled for a CPU that the host is not.
#pragma once

#include <stdint.h>

namespace mm {

// Element types a kernel is compiled for; values are those of MmDtype.
struct Rows {
  int64_t begin, end;  // half-open range of rows that this call handles
};

struct RmsNorm {
  const void* x;
  const void* weight;  // may be null
  void* y;
  int64_t columns;
  float eps;
};

struct Depthwise {
  const void* x;       // [rows + taps - 1, columns]
  const void* weight;  // [taps, columns]
  const void* bias;
  void* y;  // [rows, columns]
  int64_t columns, taps;
};

struct Gated {
  const void* x;  // [rows, gate | up]
  void* y;        // [rows, columns]
  int64_t columns;
  float limit;
  bool gelu_tanh;  // else SiLU
};

struct Rotary {
  void* qkv;  // [rows, 3, heads, dim]
  const float* cos;
  const float* sin;  // [rows, dim / 2]
  const void* q_norm;
  const void* k_norm;  // both null: no norm
  int64_t heads, dim;
  float eps;
  bool neighbours;  // pairs are (2j, 2j + 1); else (j, j + dim / 2)
};

struct Interpolate {
  const void* x;
  const void* table;
  void* y;
  const int64_t* index;  // [4, rows]
  const float* weight;   // [4, rows]
  int64_t rows, columns;
};

struct Pointwise {
  const void* x;
  void* y;
};

struct Kernels {
  void (*rms_norm[3])(const RmsNorm&, Rows);
  void (*depthwise[3])(const Depthwise&, Rows);
  void (*gated[3])(const Gated&, Rows);
  void (*rotary[3])(const Rotary&, Rows);
  void (*interpolate[3])(const Interpolate&, Rows);
  void (*quick_gelu[3])(const Pointwise&, Rows);
  void (*relu_squared[3])(const Pointwise&, Rows);
};

extern const Kernels kernels_base, kernels_avx2, kernels_avx512;

// The widest set that this CPU runs; chosen once.
const Kernels& kernels();

// Its name, as MM_KERNELS spells it.
const char* kernel_level();

}  // namespace mm
