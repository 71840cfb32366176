// The door to the CUDA library (cuda/api.h) from the operators of a tower.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>

#include "api.h"

namespace mm {

void set_cuda(const MmCudaOps* ops);
void set_cuda_kernels(uint32_t mask);
void set_thread_kernels(int64_t mask);

// LibTorch's code of the device type that "cuda" means.
int32_t cuda_device_type();
bool on_cuda(AtenTensorHandle tensor);
int32_t device_index(AtenTensorHandle tensor);

// The library, where `tensor` is on its device and this part of it is in use; else null: plain operators
// serve.
const MmCudaOps* fused_cuda(AtenTensorHandle tensor, MmCudaKernel kernel);

// Throws with the library's own words unless `status` is 0.
void check_cuda(int32_t status);

// Tells the library's counter, where it has one, that something is about to be launched.
void launched(const char* what);
// The same for what a copy from staging memory moves.
void uploaded(int64_t bytes);

}  // namespace mm
