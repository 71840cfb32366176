// Fused CPU kernels for one instruction set; the build gives this file its flags.
#define MM_KERNELS kernels_avx2
#include "kernels.inl"
