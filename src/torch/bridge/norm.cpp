// Norms and position tables.
#include "kernels.h"
#include "ops.h"
#include "schemas.h"

namespace mm {
namespace {

constexpr int64_t ROW_GRAIN_ELEMENTS = 1 << 14;

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
  const std::vector<int64_t> shape{columns};
  const std::optional<double> epsilon{eps};
  return call(op::rms_norm, Arg{x}, shape, OptionalArg{weight}, epsilon);
}

int32_t op_rms_norm(MmTensor x, MmTensor weight, double eps, MmTensor* out) {
  return guarded([&] { *out = rms_norm(raw(x), raw(weight), eps).give(); });
}

int32_t op_layer_norm(MmTensor x, MmTensor weight, MmTensor bias, double eps, MmTensor* out) {
  return guarded([&] {
    const std::vector<int64_t> shape{sizes_of(raw(x)).back()};
    *out =
        call(op::layer_norm, Arg{raw(x)}, shape, OptionalArg{raw(weight)}, OptionalArg{raw(bias)}, eps, true)
            .give();
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
    *out = call(op::contiguous, Arg{rows.get()}, torch::headeronly::MemoryFormat::Contiguous).give();
  });
}

}  // namespace mm
