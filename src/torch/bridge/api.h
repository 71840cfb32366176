// The C surface of the LibTorch bridge: one table of functions, opened by path and called from Rust.
//
// Every function returns 0 on success. On failure it returns 1 (or 2 when memory ran out) and leaves a text
// for `last_error` of the calling thread; outputs are then untouched. No exception leaves this library.
#pragma once

#include <cstdint>

#include "../../../cuda/api.h"

extern "C" {

// An owned tensor; freed with `release`.
typedef void* MmTensor;

// Element types, in the order of Rust's `Dtype`, then the index types the bridge itself needs.
enum MmDtype : int32_t { MM_F32 = 0, MM_BF16 = 1, MM_F16 = 2, MM_I64 = 3, MM_U8 = 4, MM_I32 = 5 };

enum MmActivation : int32_t {
  MM_NONE = 0,
  MM_GELU = 1,
  MM_GELU_TANH = 2,
  MM_SILU = 3,
  MM_RELU = 4,
  MM_QUICK_GELU = 5,
  MM_RELU_SQUARED = 6,
};

enum MmRotaryPairs : int32_t { MM_HALVES = 0, MM_NEIGHBOURS = 1 };

enum MmInterpolation : int32_t { MM_BILINEAR = 0, MM_BICUBIC = 1 };

struct MmSchema {
  const char* name;
  const char* overload;
  const char* schema;
};

// Bumped whenever the table or the meaning of an entry changes.
#define MM_API_VERSION 7u

struct MmApi {
  uint32_t version;
  uint32_t size;

  // --- process and thread ---
  const char* (*last_error)();
  // ABI version of the running LibTorch: major, minor and patch in the top three bytes.
  uint64_t (*torch_version)();
  // Registers the Python-visible operators; safe to call again.
  int32_t (*register_operators)();
  // Turns gradients off for the calling thread.
  void (*disable_gradients)();
  // Gives the calling thread its part of the process-wide number of compute threads, one of `sharers` equal
  // parts and at least one thread.
  void (*share_threads)(int32_t sharers);
  // 1: every op is composed of plain ATen calls; 0: fused forms where there are any.
  void (*set_plain)(int32_t plain);
  // Tensors that Rust owns at this moment.
  int64_t (*live_tensors)();
  const MmSchema* (*schemas)(uint64_t* count);
  // Instruction set of the fused CPU kernels: "base", "avx2" or "avx512".
  const char* (*kernel_level)();
  // Hands over the operators of the CUDA library, whose table outlives the process; 1 << MmCudaKernel for
  // each of its parts that is to be used from now on.
  void (*set_cuda)(const MmCudaOps* ops);
  void (*set_cuda_kernels)(uint32_t mask);
  // The same for the calling thread alone: for a comparison beside running towers. -1: as all threads.
  void (*set_thread_kernels)(int64_t mask);

  // --- tensors ---
  int32_t (*empty)(int64_t ndim, const int64_t* sizes, int32_t dtype, int32_t cuda, int32_t index,
                   MmTensor* out);
  // A view of host memory that the caller keeps alive and unchanged for the tensor's life.
  int32_t (*borrow_host)(const void* data, int64_t ndim, const int64_t* sizes, int32_t dtype, MmTensor* out);
  // A contiguous tensor over host memory that `deleter(data, context)` frees when its storage dies, on any
  // thread.
  int32_t (*adopt_host)(void* data, int64_t ndim, const int64_t* sizes, int32_t dtype,
                        void (*deleter)(void* data, void* context), void* context, MmTensor* out);
  // Host memory that the device copies from while the host goes on; it is used again when the copies are
  // done.
  int32_t (*empty_staging)(int64_t ndim, const int64_t* sizes, int32_t dtype, MmTensor* out);
  void (*release)(MmTensor tensor);
  int32_t (*share)(MmTensor tensor, MmTensor* out);
  int32_t (*data)(MmTensor tensor, void** out);
  int32_t (*shape)(MmTensor tensor, int64_t* ndim, const int64_t** sizes, const int64_t** strides);
  int32_t (*dtype)(MmTensor tensor, int32_t* out);
  // The number of its CUDA device; -1: the host.
  int32_t (*device)(MmTensor tensor, int32_t* out);
  // 1: its memory is the host's, which `device` does not tell where a double stands for CUDA.
  int32_t (*on_host)(MmTensor tensor, int32_t* out);
  int32_t (*view)(MmTensor tensor, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t offset,
                  MmTensor* out);
  int32_t (*contiguous)(MmTensor tensor, MmTensor* out);
  int32_t (*cast)(MmTensor tensor, int32_t dtype, MmTensor* out);
  // `background`: from staging memory to the device, in the order of the stream and without waiting for it.
  int32_t (*copy_into)(MmTensor destination, MmTensor source, int32_t background);
  int32_t (*cat)(const MmTensor* tensors, int64_t count, int64_t dim, MmTensor* out);
  int32_t (*index_rows)(MmTensor tensor, MmTensor index, MmTensor* out);

  // --- operators of a tower ---
  // A weight in the layout that `linear` is fastest with; fails where this CPU or Torch has none.
  int32_t (*pack_linear)(MmTensor weight, MmTensor* out);
  // act(x W^T + b) [+ residual]; `bias` and `residual` may be null; `packed` says that W came from
  // pack_linear.
  int32_t (*linear)(MmTensor x, MmTensor weight, MmTensor bias, MmTensor residual, int32_t packed,
                    int32_t activation, MmTensor* out);
  int32_t (*activation)(MmTensor x, int32_t kind, MmTensor* out);
  int32_t (*add)(MmTensor a, MmTensor b, MmTensor* out);
  int32_t (*layer_norm)(MmTensor x, MmTensor weight, MmTensor bias, double eps, MmTensor* out);
  // In float32, rounded once behind the weight, which may be null.
  int32_t (*rms_norm)(MmTensor x, MmTensor weight, double eps, MmTensor* out);
  // bias + sum over k of weight[k] * x[row + k], each column on its own: x [rows + taps - 1, columns], weight
  // [taps, columns] -> [rows, columns]; in float32 and rounded once.
  int32_t (*depthwise)(MmTensor x, MmTensor weight, MmTensor bias, MmTensor* out);
  // sum = x + y and its norm, an RMS norm where `bias` is null; all [rows, columns] and contiguous.
  int32_t (*add_norm)(MmTensor x, MmTensor y, MmTensor weight, MmTensor bias, double eps, MmTensor* sum,
                      MmTensor* out);
  // act(min(gate, limit)) * clamp(up, -limit, limit) for x = [rows, gate | up], in float32 and rounded once;
  // limit = infinity: no clamp.
  int32_t (*gated)(MmTensor x, int32_t activation, double limit, MmTensor* out);
  // In place on q and k of packed qkv [rows, 3, heads, dim]: optional RMS norm over dim, then rotation by
  // float32 cos and sin [rows, dim / 2].
  int32_t (*rotary)(MmTensor qkv, MmTensor cos, MmTensor sin, MmTensor q_norm, MmTensor k_norm, double eps,
                    int32_t pairs);
  // softmax(q k^T * scale) v within each segment of packed qkv [rows, 3, heads, dim] -> [rows, heads * dim];
  // `math`: products and softmax in float32, rounded once. `device_edges` are the same edges as int32 on
  // qkv's device; null for the host.
  int32_t (*attention)(MmTensor qkv, const int64_t* edges, int64_t edge_count, MmTensor device_edges,
                       double scale, int32_t math, MmTensor* out);
  // x + round(sum of four weighted rows of table); index [4, rows] int64, weight [4, rows] float32.
  int32_t (*add_interpolated)(MmTensor x, MmTensor table, MmTensor index, MmTensor weight, MmTensor* out);
  // The patch matrix [rows, 3 * frames * side * side] of table's type from `packed` bytes, uint16 edges
  // [rows, 4] before uint8 levels [rows, 3 * side * side]; table [3, 257] and `order` as in MmCudaPatches.
  // Null where the CUDA library's kernel is not in use: nothing else does this.
  int32_t (*expand_patches)(MmTensor packed, MmTensor table, int64_t rows, int32_t side, int32_t frames,
                            int32_t order, MmTensor* out);
  // table [height, width, channels] resampled to [out_height, out_width, channels], corners not aligned.
  int32_t (*resample_table)(MmTensor table, int64_t out_height, int64_t out_width, int32_t mode,
                            MmTensor* out);

  // --- results ---
  // Hands tensors (one reference each) to the table that `torch.ops.mm_libtorch_encoder.take(id)` empties.
  int32_t (*publish)(const MmTensor* tensors, int64_t count, int64_t* id);
  // Frees a published result that nobody took; unknown ids are ignored.
  void (*discard)(int64_t id);
};

// The table, or null when `version` is not the library's.
__attribute__((visibility("default"))) const MmApi* mm_torch_api(uint32_t version);
}
