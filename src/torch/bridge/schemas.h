// Every ATen operator that the bridge calls through the dispatcher, with the schema it was written for.
#pragma once

#include "common.h"

namespace mm::op {

#define MM_OPS(X)                                                                                         \
  X(linear, "aten::linear", "", "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor") \
  X(layer_norm, "aten::layer_norm", "",                                                                   \
    "aten::layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "  \
    "float "                                                                                              \
    "eps=1.0000000000000001e-05, bool cudnn_enable=True) -> Tensor")                                      \
  X(rms_norm, "aten::rms_norm", "",                                                                       \
    "aten::rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> "   \
    "Tensor")                                                                                             \
  X(conv1d, "aten::conv1d", "",                                                                           \
    "aten::conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] "       \
    "padding=[0], SymInt[1] dilation=[1], SymInt groups=1) -> Tensor")                                    \
  X(gelu, "aten::gelu", "", "aten::gelu(Tensor self, *, str approximate=\"none\") -> Tensor")             \
  X(silu, "aten::silu", "", "aten::silu(Tensor self) -> Tensor")                                          \
  X(relu, "aten::relu", "", "aten::relu(Tensor self) -> Tensor")                                          \
  X(sigmoid, "aten::sigmoid", "", "aten::sigmoid(Tensor self) -> Tensor")                                 \
  X(mul, "aten::mul", "Tensor", "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor")                  \
  X(neg, "aten::neg", "", "aten::neg(Tensor self) -> Tensor")                                             \
  X(minimum, "aten::minimum", "", "aten::minimum(Tensor self, Tensor other) -> Tensor")                   \
  X(maximum, "aten::maximum", "", "aten::maximum(Tensor self, Tensor other) -> Tensor")                   \
  X(cat, "aten::cat", "", "aten::cat(Tensor[] tensors, int dim=0) -> Tensor")                             \
  X(contiguous, "aten::contiguous", "",                                                                   \
    "aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=0) -> Tensor(a)")                     \
  X(index_select, "aten::index_select", "",                                                               \
    "aten::index_select(Tensor self, int dim, Tensor index) -> Tensor")                                   \
  X(to_dtype, "aten::to", "dtype",                                                                        \
    "aten::to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, "         \
    "MemoryFormat? "                                                                                      \
    "memory_format=None) -> Tensor(a)")                                                                   \
  X(attention, "aten::scaled_dot_product_attention", "",                                                  \
    "aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, " \
    "float "                                                                                              \
    "dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor")         \
  X(attention_math, "aten::_scaled_dot_product_attention_math", "",                                       \
    "aten::_scaled_dot_product_attention_math(Tensor query, Tensor key, Tensor value, Tensor? "           \
    "attn_mask=None, "                                                                                    \
    "float dropout_p=0., bool is_causal=False, Tensor? dropout_mask=None, *, float? scale=None, bool "    \
    "enable_gqa=False) -> (Tensor, Tensor)")                                                              \
  X(bilinear, "aten::upsample_bilinear2d", "",                                                            \
    "aten::upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? "           \
    "scales_h=None, "                                                                                     \
    "float? scales_w=None) -> Tensor")                                                                    \
  X(bicubic, "aten::upsample_bicubic2d", "",                                                              \
    "aten::upsample_bicubic2d(Tensor self, SymInt[2] output_size, bool align_corners, float? "            \
    "scales_h=None, "                                                                                     \
    "float? scales_w=None) -> Tensor")                                                                    \
  X(pack_linear, "mkldnn::_reorder_linear_weight", "",                                                    \
    "mkldnn::_reorder_linear_weight(Tensor self, int? batch_size=None) -> Tensor Y")

#define MM_DECLARE(id, name, overload, schema) inline constexpr Op id{name, overload, schema};
MM_OPS(MM_DECLARE)
#undef MM_DECLARE

}  // namespace mm::op
