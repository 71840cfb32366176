// Entries of kernels_on_host.cpp, as Python's ctypes and the double call them.
#pragma once

#include "api.h"

extern "C" {
void host_norm(const MmCudaNorm* job, int32_t dtype);
void host_rotary(const MmCudaRotary* job, int32_t dtype);
void host_gated(const MmCudaGated* job, int32_t dtype);
void host_activation(const MmCudaActivation* job, int32_t dtype);
void host_positions(const MmCudaPositions* job, int32_t dtype);
void host_patches(const MmCudaPatches* job, int32_t dtype);
int32_t host_patch_run(int32_t side);
void host_round(const float* from, void* to, int64_t count, int32_t dtype);
void host_widen(const void* from, float* to, int64_t count, int32_t dtype);
void host_launch(int32_t kind, int64_t count, int64_t columns, uint32_t* blocks, uint32_t* threads);
void host_taken(int64_t taker, int64_t takers, int64_t count, uint8_t* times);
}
