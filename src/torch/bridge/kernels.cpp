// Choice of the instruction set for the fused CPU kernels.
#include "kernels.h"

#include <cstdlib>
#include <cstring>

namespace mm {

const Kernels& kernels() {
  static const Kernels* const chosen = [] {
    // For tests: MM_KERNELS=base|avx2 caps the instruction set.
    const char* cap = std::getenv("MM_KERNELS");
    const bool base = cap && std::strcmp(cap, "base") == 0;
    const bool avx2 = cap && std::strcmp(cap, "avx2") == 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!base && !avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      return &kernels_avx512;
    }
    if (!base && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return &kernels_avx2;
#else
    static_cast<void>(base);
    static_cast<void>(avx2);
#endif
    return &kernels_base;
  }();
  return *chosen;
}

const char* kernel_level() {
#if defined(__x86_64__)
  if (&kernels() == &kernels_avx512) return "avx512";
  if (&kernels() == &kernels_avx2) return "avx2";
#endif
  return "base";
}

}  // namespace mm
