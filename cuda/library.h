// Shared by the library's files: the launchers of kernels.cu, and errors.
#pragma once

#include <string>

#include "api.h"

namespace mm::cuda {

// Each queues one kernel on `stream`; there must be at least one element.
void launch_norm(const MmCudaNorm& job, int32_t dtype, void* stream);
void launch_rotary(const MmCudaRotary& job, int32_t dtype, void* stream);
void launch_gated(const MmCudaGated& job, int32_t dtype, void* stream);
void launch_activation(const MmCudaActivation& job, int32_t dtype, void* stream);
void launch_positions(const MmCudaPositions& job, int32_t dtype, void* stream);
void launch_patches(const MmCudaPatches& job, int32_t dtype, void* stream);

// Leaves `text` for `last_error` and gives 1.
int32_t fail(const std::string& text) noexcept;
const char* last_error();

int32_t op_norm(const MmCudaNorm* job, int32_t dtype, int32_t index);
int32_t op_rotary(const MmCudaRotary* job, int32_t dtype, int32_t index);
int32_t op_gated(const MmCudaGated* job, int32_t dtype, int32_t index);
int32_t op_activation(const MmCudaActivation* job, int32_t dtype, int32_t index);
int32_t op_positions(const MmCudaPositions* job, int32_t dtype, int32_t index);
int32_t op_patches(const MmCudaPatches* job, int32_t dtype, int32_t index);
int32_t op_linear_gelu(void* bias, void* x, void* weight, void** out);
int32_t op_flash_attention(const MmCudaAttention* job, void* out[5]);
int32_t op_efficient_attention(const MmCudaAttention* job, void* out[5]);

int32_t check_device(int32_t index, MmCudaDevice* facts);
int32_t enter(int32_t index, int32_t priority, void** guard, void** stream, int32_t* actual);
void leave(void* guard);
int32_t drain(int32_t index, void* stream);
int32_t mark(int32_t index, void* stream, void** event);
int32_t wait(int32_t index, void* stream, void* event);
void forget(int32_t index, void* event);
int32_t capture(int32_t index, void* stream, int32_t (*body)(void* context), void* context, void** graph);
int32_t replay(int32_t index, void* stream, void* graph);
void forget_graph(int32_t index, void* graph);

}  // namespace mm::cuda
