// The C surface of the CUDA library: one table, opened by path when the device is CUDA.
//
// Rust holds `MmCudaApi` and hands `ops` to the bridge, which calls it under the operators of a tower.
// Functions that can fail return 0 on success and otherwise leave a sentence for `last_error` of the calling
// thread. A tensor is LibTorch's AtenTensorHandle; a stream and an event are those of the CUDA runtime.
#pragma once

#include <cstdint>

extern "C" {

// Bumped whenever a table or the meaning of an entry changes.
#define MM_CUDA_API_VERSION 2u

// Parts that can be switched off one by one; the order is that of Rust's `cuda::KERNELS`.
enum MmCudaKernel : int32_t {
  MM_KERNEL_NORM = 0,
  MM_KERNEL_ADD_NORM = 1,
  MM_KERNEL_ROTARY = 2,
  MM_KERNEL_GATED = 3,
  MM_KERNEL_ACTIVATION = 4,
  MM_KERNEL_LINEAR_GELU = 5,
  MM_KERNEL_POSITIONS = 6,
  MM_KERNEL_ATTENTION = 7,
  MM_KERNEL_PATCHES = 8,
  MM_KERNELS = 9,
};

// Element types are MmDtype's: 0 float32, 1 bfloat16, 2 float16. All tensors are contiguous and on one
// device.

// [x +] norm over each row; without `bias` an RMS norm, else a layer norm.
struct MmCudaNorm {
  const void* x;       // [rows, columns]
  const void* y;       // added to x first, the sum rounded to the element type; null: nothing
  void* sum;           // where that sum goes; null without y
  const void* weight;  // [columns]; may be null for an RMS norm
  const void* bias;    // [columns]
  void* out;
  int64_t rows, columns;
  float eps;
};

// In place on q and k: optional RMS norm over a head, then the turn.
struct MmCudaRotary {
  void* qkv;         // [rows, 3, heads, dim]
  const float* cos;  // [rows, dim / 2]
  const float* sin;
  const void* q_norm;  // [dim]; both null: no norm
  const void* k_norm;
  int64_t rows, heads, dim;
  float eps;
  int32_t neighbours;  // pairs are (2j, 2j + 1); else (j, j + dim / 2)
};

// act(min(gate, limit)) * clamp(up, -limit, limit)
struct MmCudaGated {
  const void* x;  // [rows, gate | up]
  void* out;      // [rows, columns]
  int64_t rows, columns;
  float limit;
  int32_t activation;  // MmActivation: SiLU or tanh GELU
};

// act(x)
struct MmCudaActivation {
  const void* x;
  void* out;
  int64_t count;
  int32_t activation;  // MmActivation
};

// x + round(sum of four weighted rows of table)
struct MmCudaPositions {
  const void* x;         // [rows, columns]
  const void* table;     // [entries, columns]
  const int64_t* index;  // [4, rows]
  const float* weight;   // [4, rows]
  void* out;
  int64_t rows, columns;
};

// Order of the samples of one patch: Rust's `SampleOrder`.
enum MmSampleOrder : int32_t { MM_CHANNEL_FRAME = 0, MM_FRAME_CHANNEL = 1, MM_CHANNELS_LAST = 2 };

// Values of 8-bit levels, `frames` copies of each patch, in the order of a patch matrix.
struct MmCudaPatches {
  const uint16_t* edges;  // [rows, 4]: first line, line behind the last, first column, column behind the last
                          // of the content in each patch; what is outside gets the value of padding
  const uint8_t* levels;  // [rows, 3 * side * side], from a multiple of 4 bytes on
  const void* table;      // [3, 257]: the values of all levels, then that of padding
  void* out;              // [rows, 3 * frames * side * side], from a multiple of 4 elements on
  int64_t rows;
  int32_t side, frames, order;
};

// Softmax attention within segments of q, k and v, views of packed qkv.
struct MmCudaAttention {
  void* q;
  void* k;
  void* v;
  void* edges;  // int32 [segments + 1] on the device
  int64_t longest;
  double scale;
};

struct MmCudaOps {
  const char* (*last_error)();
  // LibTorch's code of the device type that this library runs on.
  int32_t (*device_type)();
  // Called by the bridge with the name of everything that it launches; null where nobody counts.
  void (*launched)(const char* what);
  // Called by the bridge with the bytes of each copy from staging memory; null where nobody counts.
  void (*uploaded)(int64_t bytes);

  // Kernels, on the current stream of device `index`.
  int32_t (*norm)(const MmCudaNorm* job, int32_t dtype, int32_t index);
  int32_t (*rotary)(const MmCudaRotary* job, int32_t dtype, int32_t index);
  int32_t (*gated)(const MmCudaGated* job, int32_t dtype, int32_t index);
  int32_t (*activation)(const MmCudaActivation* job, int32_t dtype, int32_t index);
  int32_t (*positions)(const MmCudaPositions* job, int32_t dtype, int32_t index);
  int32_t (*patches)(const MmCudaPatches* job, int32_t dtype, int32_t index);

  // LibTorch's own, through its typed functions, whose status they give: its text is LibTorch's to tell. All
  // tensors in `out` are new and the caller's; null ones are none, the first is the result. tanh GELU of x
  // W^T + bias, W^T given as a view [in, out].
  int32_t (*linear_gelu)(void* bias, void* x, void* weight, void** out);
  // q, k and v [rows, heads, dim] in half precision.
  int32_t (*flash_attention)(const MmCudaAttention* job, void* out[5]);
  // q, k and v [1, rows, heads, dim].
  int32_t (*efficient_attention)(const MmCudaAttention* job, void* out[5]);
};

struct MmCudaDevice {
  char name[256];
  int32_t capability;  // 90 for 9.0
  int32_t driver;      // newest CUDA version of the driver: 13000 for 13.0
  int32_t runtime;
  int64_t memory;  // bytes
};

// The status of a capture whose body failed.
constexpr int32_t MM_BODY_FAILED = 3;

struct MmCudaApi {
  uint32_t version;
  uint32_t size;
  const MmCudaOps* ops;

  // --- devices ---
  // Is there a driver, a device of this number, and code for it in this library?
  int32_t (*check_device)(int32_t index, MmCudaDevice* facts);

  // --- the calling thread's stream ---
  // Makes `index` the thread's device and a stream of LibTorch's pool its stream, until `leave`. `priority`
  // below 0 asks for a stream of high priority; `actual` is the one that the stream has.
  int32_t (*enter)(int32_t index, int32_t priority, void** guard, void** stream, int32_t* actual);
  void (*leave)(void* guard);
  // Waits until the stream, and it alone, has run dry.
  int32_t (*drain)(int32_t index, void* stream);

  // --- events ---
  // A new event behind everything that was put on `stream` so far.
  int32_t (*mark)(int32_t index, void* stream, void** event);
  // What is put on `stream` from now on runs after the event.
  int32_t (*wait)(int32_t index, void* stream, void* event);
  void (*forget)(int32_t index, void* event);

  // --- graphs ---
  // Captures what `body(context)` puts on the calling thread's stream, without running it. Meanwhile that is
  // a stream which nobody else can have; behind it, in every case, it is `stream` again. `body` gives 0, or
  // there is no graph and the status is MM_BODY_FAILED. `body` and `context` live as long as the graph: where
  // a device cannot capture, as under test, a replay runs the body again.
  int32_t (*capture)(int32_t index, void* stream, int32_t (*body)(void* context), void* context,
                     void** graph);
  // Puts all of it on `stream`, whatever it was captured on.
  int32_t (*replay)(int32_t index, void* stream, void* graph);
  // No replay of it may be under way.
  void (*forget_graph)(int32_t index, void* graph);
};

// The table, or null when `version` is not the library's.
__attribute__((visibility("default"))) const MmCudaApi* mm_cuda_api(uint32_t version);
}
