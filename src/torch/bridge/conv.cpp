// Convolutions.
#include "kernels.h"
#include "ops.h"
#include "schemas.h"

namespace mm {
namespace {

constexpr int64_t ROW_GRAIN_ELEMENTS = 1 << 14;

}  // namespace

int32_t op_depthwise(MmTensor x, MmTensor weight, MmTensor bias, MmTensor* out) {
  return guarded([&] {
    const auto sizes = sizes_of(raw(x));
    const auto kernel = sizes_of(raw(weight));
    const int64_t columns = sizes.at(1), taps = kernel.at(0), rows = sizes.at(0) - taps + 1;
    if (rows < 1 || kernel.at(1) != columns) throw std::runtime_error("depthwise: shapes do not fit");
    require_contiguous(raw(x), "depthwise");
    require_contiguous(raw(weight), "depthwise");
    if (fused_cpu(raw(x))) {
      Handle y = empty_like_shape(raw(x), {rows, columns});
      const Depthwise job{
          data_of(raw(x)), data_of(raw(weight)), data_of(raw(bias)), data_of(y.get()), columns, taps};
      auto* run = kernels().depthwise[dtype_of(raw(x))];
      parallel(rows, 1 + ROW_GRAIN_ELEMENTS / (columns * taps),
               [&](int64_t begin, int64_t end) { run(job, Rows{begin, end}); });
      *out = y.give();
      return;
    }
    // Channels first, as Torch wants them: views of both.
    const Handle channels = view(raw(x), {1, columns, sizes.at(0)}, {1, 1, columns}, 0);
    const Handle filters = view(raw(weight), {columns, 1, taps}, {1, 1, columns}, 0);
    const std::vector<int64_t> one{1}, none{0};
    const Handle y = call(op::conv1d, Arg{channels.get()}, Arg{filters.get()}, OptionalArg{raw(bias)}, one,
                          none, one, columns);
    const auto strides = strides_of(y.get());
    const Handle turned = view(y.get(), {rows, columns}, {strides.at(2), strides.at(1)}, 0);
    *out = call(op::contiguous, Arg{turned.get()}, torch::headeronly::MemoryFormat::Contiguous).give();
  });
}

}  // namespace mm
