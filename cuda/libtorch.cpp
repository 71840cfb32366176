// LibTorch's own CUDA operators that boxed calls of the dispatcher must not reach, through their typed
// functions.
//
// `_flash_attention_forward` has other arguments in every few releases; its typed function has the same ones
// since Torch 2.11.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>

#include "library.h"

namespace mm::cuda {
namespace {

AtenTensorHandle raw(void* tensor) { return static_cast<AtenTensorHandle>(tensor); }

}  // namespace

int32_t op_linear_gelu(void* bias, void* x, void* weight, void** out) {
  AtenTensorHandle made = nullptr;
  const auto status = aoti_torch_cuda__addmm_activation(raw(bias), raw(x), raw(weight), 1.0, 1.0, 1, &made);
  *out = made;
  return status;
}

int32_t op_flash_attention(const MmCudaAttention* job, void* out[5]) {
  AtenTensorHandle edges = raw(job->edges), made[5] = {};
  double scale = job->scale;
  const auto status = aoti_torch_cuda__flash_attention_forward(
      raw(job->q), raw(job->k), raw(job->v), &edges, &edges, job->longest, job->longest, 0.0, 0, 0, &scale,
      nullptr, nullptr, nullptr, nullptr, &made[0], &made[1], &made[2], &made[3], &made[4]);
  for (int i = 0; i < 5; ++i) out[i] = made[i];
  return status;
}

int32_t op_efficient_attention(const MmCudaAttention* job, void* out[5]) {
  AtenTensorHandle edges = raw(job->edges), made[4] = {};
  double scale = job->scale;
  int64_t longest_q = job->longest, longest_k = job->longest, numbers[2] = {};
  const auto status = aoti_torch_cuda__efficient_attention_forward(
      raw(job->q), raw(job->k), raw(job->v), nullptr, &edges, &edges, &longest_q, &longest_k, 0.0, 0, 0,
      &scale, nullptr, nullptr, &made[0], &made[1], &made[2], &made[3], &numbers[0], &numbers[1]);
  for (int i = 0; i < 4; ++i) out[i] = made[i];
  out[4] = nullptr;
  return status;
}

}  // namespace mm::cuda
