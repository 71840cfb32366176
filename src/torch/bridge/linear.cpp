// Linear layers and pointwise activations.
#include <limits>

#include "kernels.h"
#include "ops.h"
#include "schemas.h"

// Exported by libtorch_cpu on every x86 and Arm build; declared here because the header that holds it wants
// LibTorch's internal configuration macros.
extern "C" {
AOTITorchError aoti_torch_cpu__linear_pointwise(AtenTensorHandle x, AtenTensorHandle weight,
                                                AtenTensorHandle* bias, const char* attribute,
                                                const double** scalars, int64_t scalar_count,
                                                const char** algorithm, AtenTensorHandle* out);
AOTITorchError aoti_torch_cpu__linear_pointwise_binary(AtenTensorHandle x, AtenTensorHandle other,
                                                       AtenTensorHandle weight, AtenTensorHandle* bias,
                                                       const char* attribute, AtenTensorHandle* out);
}

namespace mm {
namespace {

// Elements a thread takes at least, so that starting one pays.
constexpr int64_t POINTWISE_GRAIN = 1 << 15;

struct Attribute {
  const char* name;
  const char* algorithm;  // null: none
};

// How oneDNN calls an activation that it can fuse behind a matrix product; null name: it cannot.
Attribute fused_attribute(int32_t kind) {
  switch (kind) {
    case MM_NONE:
      return {"none", nullptr};
    case MM_GELU:
      return {"gelu", "none"};
    case MM_GELU_TANH:
      return {"gelu", "tanh"};
    case MM_SILU:
      return {"swish", nullptr};
    case MM_RELU:
      return {"relu", nullptr};
    default:
      return {nullptr, nullptr};
  }
}

Handle packed_linear(AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle bias,
                     AtenTensorHandle residual, int32_t kind) {
  Handle out;
  AtenTensorHandle* optional_bias = bias ? &bias : nullptr;
  if (residual && kind == MM_NONE) {
    check(aoti_torch_cpu__linear_pointwise_binary(x, residual, weight, optional_bias, "add", out.out()),
          "linear with residual");
    return out;
  }
  const Attribute attribute = fused_attribute(kind);
  const char* name = attribute.name ? attribute.name : "none";
  const char* algorithm = attribute.algorithm;
  check(aoti_torch_cpu__linear_pointwise(x, weight, optional_bias, name, nullptr, 0,
                                         algorithm ? &algorithm : nullptr, out.out()),
        "linear");
  if (!attribute.name) out = activate(out.get(), kind);
  if (residual) out = add(residual, out.get());
  return out;
}

Handle pointwise(AtenTensorHandle x, void (*const kernel[3])(const Pointwise&, Rows)) {
  require_contiguous(x, "activation");
  const auto sizes = sizes_of(x);
  Handle out = empty_like_shape(x, sizes);
  const Pointwise job{data_of(x), data_of(out.get())};
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  auto* run = kernel[dtype_of(x)];
  parallel(count, POINTWISE_GRAIN, [&](int64_t begin, int64_t end) { run(job, Rows{begin, end}); });
  return out;
}

// The same on the CUDA library's device; null where it is not to be used.
Handle cuda_pointwise(AtenTensorHandle x, int32_t kind) {
  const auto* cuda = fused_cuda(x, MM_KERNEL_ACTIVATION);
  if (!cuda) return Handle();
  require_contiguous(x, "activation");
  Handle out = empty_like_shape(x, sizes_of(x));
  MmCudaActivation job{data_of(x), data_of(out.get()), 0, kind};
  check(aoti_torch_get_numel(x, &job.count), "numel");
  launched("activation");
  if (job.count > 0) check_cuda(cuda->activation(&job, dtype_of(x), device_index(x)));
  return out;
}

// tanh GELU behind the product, in the product's own kernel; null where that is not to be used.
Handle cuda_linear_gelu(AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle bias) {
  const auto* cuda = fused_cuda(x, MM_KERNEL_LINEAR_GELU);
  if (!cuda || !bias) return Handle();
  const auto sizes = sizes_of(weight);
  const Handle turned = view(weight, {sizes.at(1), sizes.at(0)}, {1, sizes.at(1)}, 0);
  launched("linear_gelu");
  void* out = nullptr;
  check(cuda->linear_gelu(bias, x, turned.get(), &out), "linear with GELU");
  return Handle(raw(out));
}

}  // namespace

Handle add(AtenTensorHandle a, AtenTensorHandle b) {
  Handle out;
  launched("add");
  check(aoti_torch_aten_subtract_Tensor(a, b, -1.0, out.out()), "add");
  return out;
}

Handle mul(AtenTensorHandle a, AtenTensorHandle b) { return call(op::mul, Arg{a}, Arg{b}); }

Handle activate(AtenTensorHandle x, int32_t kind) {
  switch (kind) {
    case MM_GELU:
      return call(op::gelu, Arg{x}, std::string("none"));
    case MM_GELU_TANH:
      return call(op::gelu, Arg{x}, std::string("tanh"));
    case MM_SILU:
      return call(op::silu, Arg{x});
    case MM_RELU:
      return call(op::relu, Arg{x});
    case MM_QUICK_GELU: {
      if (fused_cpu(x)) return pointwise(x, kernels().quick_gelu);
      if (Handle out = cuda_pointwise(x, kind); out.get()) return out;
      const Handle scaled = mul(x, scalar(1.702).get());
      const Handle gate = call(op::sigmoid, Arg{scaled.get()});
      return mul(x, gate.get());
    }
    case MM_RELU_SQUARED: {
      if (fused_cpu(x)) return pointwise(x, kernels().relu_squared);
      if (Handle out = cuda_pointwise(x, kind); out.get()) return out;
      const Handle positive = call(op::relu, Arg{x});
      return mul(positive.get(), positive.get());
    }
    default:
      throw Failure{"unknown activation " + std::to_string(kind)};
  }
}

int32_t op_pack_linear(MmTensor weight, MmTensor* out) {
  return guarded([&] {
    const int32_t dtype = dtype_of(raw(weight));
    if (!fused_cpu(raw(weight)) || dtype == MM_F16) throw Failure{"no packed form for this device or dtype"};
    *out = call(op::pack_linear, Arg{raw(weight)}, std::nullopt).give();
  });
}

int32_t op_linear(MmTensor x, MmTensor weight, MmTensor bias, MmTensor residual, int32_t packed,
                  int32_t activation, MmTensor* out) {
  return guarded([&] {
    if (packed) {
      *out = packed_linear(raw(x), raw(weight), raw(bias), raw(residual), activation).give();
      return;
    }
    Handle y;
    if (activation == MM_GELU_TANH) y = cuda_linear_gelu(raw(x), raw(weight), raw(bias));
    if (!y.get()) {
      y = call(op::linear, Arg{raw(x)}, Arg{raw(weight)}, OptionalArg{raw(bias)});
      if (activation != MM_NONE) y = activate(y.get(), activation);
    }
    if (residual) y = add(raw(residual), y.get());
    *out = y.give();
  });
}

int32_t op_activation(MmTensor x, int32_t kind, MmTensor* out) {
  return guarded([&] { *out = activate(raw(x), kind).give(); });
}

int32_t op_add(MmTensor a, MmTensor b, MmTensor* out) {
  return guarded([&] { *out = add(raw(a), raw(b)).give(); });
}

int32_t op_gated(MmTensor x, int32_t activation, double limit, MmTensor* out) {
  return guarded([&] {
    const auto sizes = sizes_of(raw(x));
    const int64_t n = sizes.at(1) / 2;
    if (activation != MM_SILU && activation != MM_GELU_TANH) throw Failure{"gated: SiLU or tanh GELU only"};
    if (fused_cpu(raw(x))) {
      require_contiguous(raw(x), "gated");
      Handle y = empty_like_shape(raw(x), {sizes[0], n});
      const Gated job{data_of(raw(x)), data_of(y.get()), n, static_cast<float>(limit),
                      activation == MM_GELU_TANH};
      auto* run = kernels().gated[dtype_of(raw(x))];
      parallel(sizes[0], 1 + POINTWISE_GRAIN / n,
               [&](int64_t begin, int64_t end) { run(job, Rows{begin, end}); });
      *out = y.give();
      return;
    }
    if (const auto* cuda = fused_cuda(raw(x), MM_KERNEL_GATED)) {
      require_contiguous(raw(x), "gated");
      Handle y = empty_like_shape(raw(x), {sizes[0], n});
      const MmCudaGated job{data_of(raw(x)),           data_of(y.get()), sizes[0], n,
                            static_cast<float>(limit), activation};
      launched("gated");
      if (sizes[0] > 0) check_cuda(cuda->gated(&job, dtype_of(raw(x)), device_index(raw(x))));
      *out = y.give();
      return;
    }
    Handle gate = cast(view(raw(x), {sizes[0], n}, {2 * n, 1}, 0).get(), MM_F32);
    Handle up = cast(view(raw(x), {sizes[0], n}, {2 * n, 1}, n).get(), MM_F32);
    if (limit < std::numeric_limits<double>::infinity()) {
      const Handle high = scalar(limit), low = scalar(-limit);
      // Not clamp, which takes no host scalar beside a tensor on a device.
      gate = call(op::minimum, Arg{gate.get()}, Arg{high.get()});
      up = call(op::maximum, Arg{up.get()}, Arg{low.get()});
      up = call(op::minimum, Arg{up.get()}, Arg{high.get()});
    }
    const Handle act = activate(gate.get(), activation);
    const Handle product = mul(act.get(), up.get());
    *out = cast(product.get(), dtype_of(raw(x))).give();
  });
}

}  // namespace mm
