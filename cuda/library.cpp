// The table, devices, streams, events and graphs.
#include <cuda_runtime_api.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "library.h"

namespace mm::cuda {
namespace {

// The oldest compute capability that kernels.cu is compiled for.
constexpr int OLDEST_CAPABILITY = 80;
// Devices with a stream for captures.
constexpr int32_t MOST_DEVICES = 64;

thread_local std::string last_error_text;

int32_t check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return 0;
  // The runtime repeats an error at the next call unless it is taken away here.
  static_cast<void>(cudaGetLastError());
  fail(std::string(what) + ": " + cudaGetErrorString(status));
  return status == cudaErrorMemoryAllocation ? 2 : 1;
}

std::string dotted(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The calling thread's device for one call: the null stream and new events belong to the current device.
// LibTorch's guard, because going back by cudaSetDevice alone would start a context on a device that nobody
// uses.
class OnDevice {
 public:
  explicit OnDevice(int32_t index) {
    int before = -1;
    if (cudaGetDevice(&before) == cudaSuccess && before == index) return;
    static_cast<void>(aoti_torch_create_cuda_guard(index, &guard_));
  }
  ~OnDevice() {
    if (guard_) static_cast<void>(aoti_torch_delete_cuda_guard(guard_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  CUDAGuardHandle guard_ = nullptr;
};

struct Guard {
  int32_t index = 0;
  CUDAGuardHandle device = nullptr;
  void* stream_before = nullptr;
};

// Runs a launcher on the current stream of device `index`.
template <class Job>
int32_t launch(void (*launcher)(const Job&, int32_t, void*), const Job& job, int32_t dtype, int32_t index,
               const char* what) {
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream(index, &stream) != AOTI_TORCH_SUCCESS) {
    return fail(std::string(what) + ": the current stream of cuda:" + std::to_string(index) +
                " is not known");
  }
  const OnDevice on(index);
  launcher(job, dtype, stream);
  return check(cudaGetLastError(), what);
}

int32_t device_type() { return aoti_torch_device_type_cuda(); }

const MmCudaOps ops = {
    last_error,
    device_type,
    nullptr,
    nullptr,
    op_norm,
    op_rotary,
    op_gated,
    op_activation,
    op_positions,
    op_patches,
    op_linear_gelu,
    op_flash_attention,
    op_efficient_attention,
};

const MmCudaApi table = {
    MM_CUDA_API_VERSION,
    sizeof(MmCudaApi),
    &ops,
    check_device,
    enter,
    leave,
    drain,
    mark,
    wait,
    forget,
    capture,
    replay,
    forget_graph,
};

}  // namespace

int32_t fail(const std::string& text) noexcept {
  try {
    last_error_text = text;
  } catch (...) {
    last_error_text.clear();
  }
  return 1;
}

const char* last_error() { return last_error_text.c_str(); }

int32_t op_norm(const MmCudaNorm* job, int32_t dtype, int32_t index) {
  return launch(launch_norm, *job, dtype, index, "norm");
}

int32_t op_rotary(const MmCudaRotary* job, int32_t dtype, int32_t index) {
  return launch(launch_rotary, *job, dtype, index, "rotary");
}

int32_t op_gated(const MmCudaGated* job, int32_t dtype, int32_t index) {
  return launch(launch_gated, *job, dtype, index, "gated");
}

int32_t op_activation(const MmCudaActivation* job, int32_t dtype, int32_t index) {
  return launch(launch_activation, *job, dtype, index, "activation");
}

int32_t op_positions(const MmCudaPositions* job, int32_t dtype, int32_t index) {
  return launch(launch_positions, *job, dtype, index, "positions");
}

int32_t op_patches(const MmCudaPatches* job, int32_t dtype, int32_t index) {
  return launch(launch_patches, *job, dtype, index, "patches");
}

int32_t check_device(int32_t index, MmCudaDevice* facts) {
  int runtime = 0, driver = 0, count = 0;
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  static_cast<void>(cudaDriverGetVersion(&driver));
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess) static_cast<void>(cudaGetLastError());
  if (driver == 0) return fail("this host has no NVIDIA driver");
  if (found == cudaErrorInsufficientDriver) {
    return fail("the NVIDIA driver of this host knows CUDA up to " + dotted(driver) + ", and CUDA " +
                dotted(runtime) + " is needed: install a newer driver");
  }
  if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0)) {
    return fail("the NVIDIA driver shows no GPU (is CUDA_VISIBLE_DEVICES set to none?)");
  }
  if (found != cudaSuccess) return check(found, "counting GPUs");
  if (index >= count) {
    return fail("there is no such GPU: the driver shows " + std::to_string(count) +
                ", the last is cuda:" + std::to_string(count - 1));
  }
  cudaDeviceProp properties;
  if (check(cudaGetDeviceProperties(&properties, index), "asking the GPU what it is")) return 1;
  const int capability = properties.major * 10 + properties.minor;
  if (capability < OLDEST_CAPABILITY) {
    return fail(std::string(properties.name) + " has compute capability " + std::to_string(properties.major) +
                "." + std::to_string(properties.minor) + ", and 8.0 or newer is needed");
  }
  std::memset(facts, 0, sizeof *facts);
  static_cast<void>(std::snprintf(facts->name, sizeof facts->name, "%s", properties.name));
  facts->capability = capability;
  facts->driver = driver;
  facts->runtime = runtime;
  facts->memory = static_cast<int64_t>(properties.totalGlobalMem);
  return 0;
}

int32_t enter(int32_t index, int32_t priority, void** guard, void** stream, int32_t* actual) {
  auto made = std::unique_ptr<Guard>(new (std::nothrow) Guard);
  if (!made) return fail("host memory ran out");
  made->index = index;
  // Torch's pool has two kinds of streams: of normal and of the highest priority.
  if (aoti_torch_create_cuda_guard(index, &made->device) != AOTI_TORCH_SUCCESS ||
      aoti_torch_get_current_cuda_stream(index, &made->stream_before) != AOTI_TORCH_SUCCESS ||
      torch_get_cuda_stream_from_pool(priority < 0, index, stream) != AOTI_TORCH_SUCCESS ||
      torch_set_current_cuda_stream(*stream, index) != AOTI_TORCH_SUCCESS) {
    if (made->device) static_cast<void>(aoti_torch_delete_cuda_guard(made->device));
    return fail("LibTorch gave no stream on cuda:" + std::to_string(index));
  }
  int given = 0;
  const int32_t status =
      check(cudaStreamGetPriority(static_cast<cudaStream_t>(*stream), &given), "stream priority");
  *actual = given;
  *guard = made.release();
  return status;
}

void leave(void* guard) {
  const std::unique_ptr<Guard> own(static_cast<Guard*>(guard));
  if (!own) return;
  static_cast<void>(torch_set_current_cuda_stream(own->stream_before, own->index));
  static_cast<void>(aoti_torch_delete_cuda_guard(own->device));
}

int32_t drain(int32_t, void* stream) {
  return check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for the stream");
}

int32_t mark(int32_t index, void* stream, void** event) {
  const OnDevice on(index);
  cudaEvent_t made = nullptr;
  if (check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "an event")) return 1;
  if (check(cudaEventRecord(made, static_cast<cudaStream_t>(stream)), "an event on the stream")) {
    static_cast<void>(cudaEventDestroy(made));
    return 1;
  }
  *event = made;
  return 0;
}

int32_t wait(int32_t index, void* stream, void* event) {
  const auto queue_behind = [&] {
    return check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0),
                 "waiting for a result on the stream");
  };
  // The null stream is the current device's; every other one knows its device.
  if (stream) return queue_behind();
  const OnDevice on(index);
  return queue_behind();
}

void forget(int32_t, void* event) {
  // What waits for the event already goes on waiting; at exit the driver may be gone, which is no one's loss.
  static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(event)));
}

int32_t capture(int32_t index, void* stream, int32_t (*body)(void* context), void* context, void** graph) {
  // One stream a device for all captures, one after the other. LibTorch's pool gives each of its streams to
  // many, and what another thread put on a stream under capture would become part of the graph.
  static std::mutex mutex;
  static cudaStream_t streams[MOST_DEVICES];
  if (index < 0 || index >= MOST_DEVICES) return fail("captures know no device of such a number");
  const std::lock_guard<std::mutex> alone(mutex);
  const OnDevice on(index);
  cudaStream_t& own = streams[index];
  if (!own && check(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "a stream for captures"))
    return 1;
  if (torch_set_current_cuda_stream(own, index) != AOTI_TORCH_SUCCESS) {
    return fail("LibTorch took no stream on cuda:" + std::to_string(index));
  }
  cudaGraph_t captured = nullptr;
  int32_t status = 0, ran = 0;
  // What other threads do meanwhile is theirs: the mode forbids this one alone what a capture cannot hold.
  status = check(cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal), "starting a capture");
  if (!status) {
    ran = body(context);
    // Ends the capture also where something in it was refused.
    status = check(cudaStreamEndCapture(own, &captured), "a capture");
  }
  static_cast<void>(torch_set_current_cuda_stream(stream, index));
  if (ran) status = MM_BODY_FAILED;
  cudaGraphExec_t ready = nullptr;
  if (!status) {
    // As LibTorch does: memory that a capture allocated is freed at the next launch instead of failing it.
    status = check(cudaGraphInstantiateWithFlags(&ready, captured, cudaGraphInstantiateFlagAutoFreeOnLaunch),
                   "a graph");
  }
  if (captured) static_cast<void>(cudaGraphDestroy(captured));
  if (status) static_cast<void>(cudaGetLastError());
  if (!status) *graph = ready;
  return status;
}

int32_t replay(int32_t, void* stream, void* graph) {
  return check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream)),
               "a replay");
}

void forget_graph(int32_t, void* graph) {
  static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

}  // namespace mm::cuda

extern "C" const MmCudaApi* mm_cuda_api(uint32_t version) {
  return version == MM_CUDA_API_VERSION ? &mm::cuda::table : nullptr;
}
