// Norms and position tables.
#include "kernels.h"
#include "ops.h"
#include "schemas.h"

namespace mm {
namespace {

constexpr int64_t ROW_GRAIN_ELEMENTS = 1 << 14;

Handle layer_norm(AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle bias, double eps) {
  const std::vector<int64_t> shape{sizes_of(x).back()};
  return call(op::layer_norm, Arg{x}, shape, OptionalArg{weight}, OptionalArg{bias}, eps, true);
}

const void* maybe_data(AtenTensorHandle tensor) { return tensor ? data_of(tensor) : nullptr; }

// The CUDA library's norm of x + y; without y, of x.
Handle cuda_norm(const MmCudaOps& cuda, AtenTensorHandle x, AtenTensorHandle y, AtenTensorHandle weight,
                 AtenTensorHandle bias, double eps, Handle* sum) {
  require_contiguous(x, "norm");
  const auto sizes = sizes_of(x);
  Handle out = empty_like_shape(x, sizes);
  if (y) {
    require_contiguous(y, "norm");
    if (sizes_of(y) != sizes) throw Failure{"add_norm: both must have the same shape"};
    *sum = empty_like_shape(x, sizes);
  }
  const MmCudaNorm job{data_of(x),         maybe_data(y),    y ? data_of(sum->get()) : nullptr,
                       maybe_data(weight), maybe_data(bias), data_of(out.get()),
                       rows_of(sizes),     sizes.back(),     static_cast<float>(eps)};
  launched(y ? "add_norm" : "norm");
  if (job.rows > 0) check_cuda(cuda.norm(&job, dtype_of(x), device_index(x)));
  return out;
}

}  // namespace

Handle rms_norm(AtenTensorHandle x, AtenTensorHandle weight, double eps) {
  const auto sizes = sizes_of(x);
  const int64_t columns = sizes.back();
  if (fused_cpu(x)) {
    require_contiguous(x, "rms_norm");
    Handle y = empty_like_shape(x, sizes);
    const RmsNorm job{data_of(x), weight ? data_of(weight) : nullptr, data_of(y.get()), columns,
                      static_cast<float>(eps)};
    auto* run = kernels().rms_norm[dtype_of(x)];
    parallel(rows_of(sizes), 1 + ROW_GRAIN_ELEMENTS / columns,
             [&](int64_t begin, int64_t end) { run(job, Rows{begin, end}); });
    return y;
  }
  if (const auto* cuda = fused_cuda(x, MM_KERNEL_NORM)) {
    return cuda_norm(*cuda, x, nullptr, weight, nullptr, eps, nullptr);
  }
  const std::vector<int64_t> shape{columns};
  const std::optional<double> epsilon{eps};
  return call(op::rms_norm, Arg{x}, shape, OptionalArg{weight}, epsilon);
}

int32_t op_rms_norm(MmTensor x, MmTensor weight, double eps, MmTensor* out) {
  return guarded([&] { *out = rms_norm(raw(x), raw(weight), eps).give(); });
}

int32_t op_layer_norm(MmTensor x, MmTensor weight, MmTensor bias, double eps, MmTensor* out) {
  return guarded([&] { *out = layer_norm(raw(x), raw(weight), raw(bias), eps).give(); });
}

int32_t op_add_norm(MmTensor x, MmTensor y, MmTensor weight, MmTensor bias, double eps, MmTensor* sum,
                    MmTensor* out) {
  return guarded([&] {
    Handle total, normed;
    if (const auto* cuda = fused_cuda(raw(x), MM_KERNEL_ADD_NORM)) {
      normed = cuda_norm(*cuda, raw(x), raw(y), raw(weight), raw(bias), eps, &total);
    } else {
      total = add(raw(x), raw(y));
      normed = bias ? layer_norm(total.get(), raw(weight), raw(bias), eps)
                    : rms_norm(total.get(), raw(weight), eps);
    }
    *sum = total.give();
    *out = normed.give();
  });
}

int32_t op_add_interpolated(MmTensor x, MmTensor table, MmTensor index, MmTensor weight, MmTensor* out) {
  return guarded([&] {
    const auto sizes = sizes_of(raw(x));
    const int64_t rows = sizes.at(0), columns = sizes.at(1);
    if (fused_cpu(raw(x))) {
      require_contiguous(raw(x), "add_interpolated");
      require_contiguous(raw(table), "add_interpolated");
      Handle y = empty_like_shape(raw(x), sizes);
      const Interpolate job{data_of(raw(x)),
                            data_of(raw(table)),
                            data_of(y.get()),
                            static_cast<const int64_t*>(data_of(raw(index))),
                            static_cast<const float*>(data_of(raw(weight))),
                            rows,
                            columns};
      auto* run = kernels().interpolate[dtype_of(raw(x))];
      parallel(rows, 1 + ROW_GRAIN_ELEMENTS / columns,
               [&](int64_t begin, int64_t end) { run(job, Rows{begin, end}); });
      *out = y.give();
      return;
    }
    if (const auto* cuda = fused_cuda(raw(x), MM_KERNEL_POSITIONS)) {
      for (MmTensor part : {x, table, index, weight}) require_contiguous(raw(part), "add_interpolated");
      Handle y = empty_like_shape(raw(x), sizes);
      const MmCudaPositions job{data_of(raw(x)),
                                data_of(raw(table)),
                                static_cast<const int64_t*>(data_of(raw(index))),
                                static_cast<const float*>(data_of(raw(weight))),
                                data_of(y.get()),
                                rows,
                                columns};
      launched("positions");
      if (rows > 0) check_cuda(cuda->positions(&job, dtype_of(raw(x)), device_index(raw(x))));
      *out = y.give();
      return;
    }
    Handle sum;
    for (int64_t k = 0; k < 4; ++k) {
      const Handle tap = view(raw(index), {rows}, {1}, k * rows);
      const Handle share = view(raw(weight), {rows, 1}, {1, 1}, k * rows);
      const Handle picked = call(op::index_select, Arg{raw(table)}, int64_t{0}, Arg{tap.get()});
      const Handle wide = cast(picked.get(), MM_F32);
      Handle term = mul(wide.get(), share.get());
      sum = k == 0 ? std::move(term) : add(sum.get(), term.get());
    }
    const Handle rounded = cast(sum.get(), dtype_of(raw(x)));
    *out = add(raw(x), rounded.get()).give();
  });
}

int32_t op_resample_table(MmTensor table, int64_t out_height, int64_t out_width, int32_t mode,
                          MmTensor* out) {
  return guarded([&] {
    const auto sizes = sizes_of(raw(table));
    const int64_t height = sizes.at(0), width = sizes.at(1), channels = sizes.at(2);
    require_contiguous(raw(table), "resample_table");
    const Handle planes =
        view(raw(table), {1, channels, height, width}, {0, 1, width * channels, channels}, 0);
    const std::vector<int64_t> size{out_height, out_width};
    const Op& resample = mode == MM_BICUBIC ? op::bicubic : op::bilinear;
    const Handle scaled = call(resample, Arg{planes.get()}, size, false, std::nullopt, std::nullopt);
    const auto strides = strides_of(scaled.get());
    const Handle rows =
        view(scaled.get(), {out_height, out_width, channels}, {strides[2], strides[3], strides[1]}, 0);
    *out = dense(rows.get()).give();
  });
}

}  // namespace mm
