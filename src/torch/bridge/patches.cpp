// 8-bit levels to patch matrices, on the CUDA library's device alone.
#include "ops.h"

namespace mm {
namespace {

// Bytes of a patch's four edges.
constexpr int64_t EDGES = 4 * sizeof(uint16_t);
constexpr int64_t CHANNELS = 3;
constexpr int64_t TABLE = CHANNELS * 257;
// As in src/pixels/layout.rs.
constexpr int32_t MOST_SIDE = 256, MOST_FRAMES = 16;

int64_t elements_of(AtenTensorHandle tensor) {
  int64_t count = 0;
  check(aoti_torch_get_numel(tensor, &count), "numel");
  return count;
}

}  // namespace

int32_t op_expand_patches(MmTensor packed, MmTensor table, int64_t rows, int32_t side, int32_t frames,
                          int32_t order, MmTensor* out) {
  return guarded([&] {
    const auto* cuda = fused_cuda(raw(packed), MM_KERNEL_PATCHES);
    if (!cuda) {
      *out = nullptr;
      return;
    }
    for (MmTensor part : {packed, table}) require_contiguous(raw(part), "expand_patches");
    if (side < 1 || side > MOST_SIDE || frames < 1 || frames > MOST_FRAMES || order < MM_CHANNEL_FRAME ||
        order > MM_CHANNELS_LAST) {
      throw Failure{"expand_patches: no such patches"};
    }
    const int64_t columns = CHANNELS * side * side;
    if (rows < 0 || rows > elements_of(raw(packed)) || elements_of(raw(packed)) != rows * (EDGES + columns) ||
        dtype_of(raw(packed)) != MM_U8 || elements_of(raw(table)) != TABLE || !on_cuda(raw(table))) {
      throw Failure{"expand_patches: the bytes or the table are not those of the patches"};
    }
    Handle matrix = empty_like_shape(raw(table), {rows, columns * frames});
    const auto* edges = static_cast<const uint8_t*>(data_of(raw(packed)));
    const MmCudaPatches job{reinterpret_cast<const uint16_t*>(edges),
                            edges + rows * EDGES,
                            data_of(raw(table)),
                            data_of(matrix.get()),
                            rows,
                            side,
                            frames,
                            order};
    launched("patches");
    if (rows > 0) check_cuda(cuda->patches(&job, dtype_of(raw(table)), device_index(raw(table))));
    *out = matrix.give();
  });
}

}  // namespace mm
