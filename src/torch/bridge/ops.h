// Operator entries of the table (see api.h).
#pragma once

#include "common.h"

namespace mm {

int32_t op_pack_linear(MmTensor weight, MmTensor* out);
int32_t op_linear(MmTensor x, MmTensor weight, MmTensor bias, MmTensor residual, int32_t packed,
                  int32_t activation, MmTensor* out);
int32_t op_activation(MmTensor x, int32_t kind, MmTensor* out);
int32_t op_add(MmTensor a, MmTensor b, MmTensor* out);
int32_t op_layer_norm(MmTensor x, MmTensor weight, MmTensor bias, double eps, MmTensor* out);
int32_t op_rms_norm(MmTensor x, MmTensor weight, double eps, MmTensor* out);
int32_t op_depthwise(MmTensor x, MmTensor weight, MmTensor bias, MmTensor* out);
int32_t op_add_norm(MmTensor x, MmTensor y, MmTensor weight, MmTensor bias, double eps, MmTensor* sum,
                    MmTensor* out);
int32_t op_gated(MmTensor x, int32_t activation, double limit, MmTensor* out);
int32_t op_rotary(MmTensor qkv, MmTensor cos, MmTensor sin, MmTensor q_norm, MmTensor k_norm, double eps,
                  int32_t pairs);
int32_t op_attention(MmTensor qkv, const int64_t* edges, int64_t edge_count, MmTensor device_edges,
                     double scale, int32_t math, MmTensor* out);
int32_t op_add_interpolated(MmTensor x, MmTensor table, MmTensor index, MmTensor weight, MmTensor* out);
int32_t op_expand_patches(MmTensor packed, MmTensor table, int64_t rows, int32_t side, int32_t frames,
                          int32_t order, MmTensor* out);
int32_t op_resample_table(MmTensor table, int64_t out_height, int64_t out_width, int32_t mode, MmTensor* out);

// a + b; the dispatcher cannot take the Scalar that aten::add wants.
Handle add(AtenTensorHandle a, AtenTensorHandle b);
Handle mul(AtenTensorHandle a, AtenTensorHandle b);
Handle activate(AtenTensorHandle x, int32_t kind);
Handle rms_norm(AtenTensorHandle x, AtenTensorHandle weight, double eps);

// Runs `body(begin, end)` over [0, count) on LibTorch's own threads, at least `grain` at a time.
template <class Body>
void parallel(int64_t count, int64_t grain, const Body& body) {
  check(
      torch_parallel_for(
          0, count, grain,
          [](int64_t begin, int64_t end, void* context) { (*static_cast<const Body*>(context))(begin, end); },
          const_cast<void*>(static_cast<const void*>(&body))),
      "parallel_for");
}

}  // namespace mm
