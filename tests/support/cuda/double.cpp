// Stands for libmm_cuda.so where there is no GPU: its device is the host, its kernels run on the CPU, and
// what is launched, marked and waited for goes into a log.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "kernels_on_host.h"

namespace {

constexpr int32_t HIGHEST_PRIORITY = -5;
// All captures are made on a stream of their own.
constexpr intptr_t CAPTURE_STREAM = 777;

std::mutex mutex;
std::string log_text;
std::string refusal;
std::atomic<int> failures_at_norm{0}, failures_at_patches{0};
std::atomic<bool> meta{false}, spoilt{false};
std::atomic<intptr_t> last_stream{0}, last_event{0};
thread_local std::string error;
thread_local intptr_t current_stream = 0;
// "": the next capture, replay or end of a capture works; else what does not.
std::string graph_fault;
std::atomic<intptr_t> last_graph{0};
// A capture is under way on this thread; what it met that a capture cannot hold.
thread_local bool capturing = false;
thread_local std::string broken;
// A replay is under way: nothing is launched, as far as the host sees.
thread_local bool replaying = false;

void note(const std::string& line) {
  const std::lock_guard<std::mutex> lock(mutex);
  log_text += line + "\n";
}

void* number(intptr_t value) { return reinterpret_cast<void*>(value); }
std::string text(void* value) { return std::to_string(reinterpret_cast<intptr_t>(value)); }
AtenTensorHandle raw(void* tensor) { return static_cast<AtenTensorHandle>(tensor); }

const char* last_error() { return error.c_str(); }
int32_t device_type() { return meta ? aoti_torch_device_type_meta() : aoti_torch_device_type_cpu(); }
// On a GPU nothing runs while it is captured.
bool runs() { return !meta && !capturing; }
void refuse_in_capture(const std::string& what) {
  if (capturing) broken = what;
}
void launched(const char* what) {
  if (replaying) return;
  if (std::string(what) == "upload") refuse_in_capture("an upload");
  note("launch " + std::string(what) + " on stream " + std::to_string(current_stream));
}

void uploaded(int64_t bytes) { note("upload " + std::to_string(bytes)); }
// Whether the test asked for this to fail, which it does once.
bool fails(const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (graph_fault != what) return false;
  graph_fault.clear();
  error = what + " failed, as the test asked";
  return true;
}

int32_t norm(const MmCudaNorm* job, int32_t dtype, int32_t) {
  if (capturing && fails("norm in a capture")) return 1;
  if (failures_at_norm.load() > 0) {
    failures_at_norm.fetch_sub(1);
    error = "CUDA out of memory, as the test asked";
    return 2;
  }
  if (runs()) host_norm(job, dtype);
  return 0;
}
int32_t rotary(const MmCudaRotary* job, int32_t dtype, int32_t) {
  if (runs()) host_rotary(job, dtype);
  return 0;
}
int32_t gated(const MmCudaGated* job, int32_t dtype, int32_t) {
  if (runs()) host_gated(job, dtype);
  return 0;
}
int32_t activation(const MmCudaActivation* job, int32_t dtype, int32_t) {
  if (runs()) host_activation(job, dtype);
  return 0;
}
int32_t positions(const MmCudaPositions* job, int32_t dtype, int32_t) {
  if (runs()) host_positions(job, dtype);
  return 0;
}

int32_t patches(const MmCudaPatches* job, int32_t dtype, int32_t) {
  if (failures_at_patches.load() > 0) {
    failures_at_patches.fetch_sub(1);
    error = "CUDA out of memory, as the test asked";
    return 2;
  }
  if (!meta) host_patches(job, dtype);
  if (spoilt) *static_cast<uint8_t*>(job->out) ^= 1;
  return 0;
}

int32_t linear_gelu(void* bias, void* x, void* weight, void** out) {
  int64_t* x_sizes = nullptr;
  int64_t* w_sizes = nullptr;
  int32_t dtype = 0;
  aoti_torch_get_sizes(raw(x), &x_sizes);
  aoti_torch_get_sizes(raw(weight), &w_sizes);
  aoti_torch_get_dtype(raw(x), &dtype);
  const int64_t sizes[] = {x_sizes[0], w_sizes[1]}, strides[] = {w_sizes[1], 1};
  AtenTensorHandle product = nullptr;
  if (aoti_torch_empty_strided(2, sizes, strides, dtype, device_type(), 0, &product)) return 1;
  if (!runs()) {
    *out = product;
    return 0;
  }
  if (aoti_torch_cpu_addmm_out(product, raw(bias), raw(x), raw(weight), 1.0, 1.0)) return 1;
  std::array<StableIValue, 2> stack{torch::stable::detail::from(product),
                                    torch::stable::detail::from(std::string("tanh"))};
  if (torch_call_dispatcher("aten::gelu", "", stack.data(), TORCH_ABI_VERSION)) return 1;
  *out = torch::stable::detail::to<AtenTensorHandle>(stack[0]);
  return 0;
}

// [rows, heads, dim] of q, k or v, the first axis of length 1 left out.
struct View {
  const char* data;
  int64_t rows, heads, dim, row_stride, head_stride;
  int32_t dtype;

  explicit View(void* tensor) {
    int64_t ndim = 0, *sizes = nullptr, *strides = nullptr;
    void* start = nullptr;
    aoti_torch_get_dim(raw(tensor), &ndim);
    aoti_torch_get_sizes(raw(tensor), &sizes);
    aoti_torch_get_strides(raw(tensor), &strides);
    aoti_torch_get_data_ptr(raw(tensor), &start);
    aoti_torch_get_dtype(raw(tensor), &dtype);
    dtype = dtype == aoti_torch_dtype_float32() ? 0 : dtype == aoti_torch_dtype_bfloat16() ? 1 : 2;
    data = static_cast<const char*>(start);
    rows = sizes[ndim - 3], heads = sizes[ndim - 2], dim = sizes[ndim - 1];
    row_stride = strides[ndim - 3], head_stride = strides[ndim - 2];
  }
  // Rows [begin, end) of one head, in float32.
  std::vector<float> rows_of(int64_t head, int64_t begin, int64_t end) const {
    std::vector<float> wide(static_cast<size_t>((end - begin) * dim));
    for (int64_t row = begin; row < end; ++row) {
      const char* from = data + (row * row_stride + head * head_stride) * (dtype == 0 ? 4 : 2);
      float* to = wide.data() + (row - begin) * dim;
      if (dtype == 0) std::copy_n(reinterpret_cast<const float*>(from), dim, to);
      if (dtype != 0) host_widen(from, to, dim, dtype);
    }
    return wide;
  }
};

// Softmax attention of one head; `give` takes each row of the result.
template <class Give>
void attend(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
            int64_t dim, float scale, const Give& give) {
  const int64_t rows = static_cast<int64_t>(q.size()) / dim;
  std::vector<float> scores(static_cast<size_t>(rows)), sum(static_cast<size_t>(dim));
  for (int64_t row = 0; row < rows; ++row) {
    float largest = -INFINITY, total = 0.0f;
    for (int64_t other = 0; other < rows; ++other) {
      float score = 0.0f;
      for (int64_t i = 0; i < dim; ++i) score += q[row * dim + i] * k[other * dim + i];
      scores[other] = score * scale;
      largest = std::max(largest, scores[other]);
    }
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int64_t other = 0; other < rows; ++other) {
      const float share = std::exp(scores[other] - largest);
      total += share;
      for (int64_t i = 0; i < dim; ++i) sum[i] += share * v[other * dim + i];
    }
    for (float& value : sum) value /= total;
    give(row, sum.data());
  }
}

int32_t attention(const MmCudaAttention* job, void* out[5], bool flash) {
  const View q(job->q), k(job->k), v(job->v);
  if (flash && q.dtype == 0) return 1;
  int64_t segments = 0;
  void* edges_data = nullptr;
  int32_t edges_dtype = 0, dtype = 0;
  aoti_torch_get_numel(raw(job->edges), &segments);
  aoti_torch_get_data_ptr(raw(job->edges), &edges_data);
  aoti_torch_get_dtype(raw(job->edges), &edges_dtype);
  aoti_torch_get_dtype(raw(job->q), &dtype);
  if (edges_dtype != aoti_torch_dtype_int32()) return 1;
  const auto* edges = static_cast<const int32_t*>(edges_data);
  std::vector<int64_t> sizes{q.rows, q.heads, q.dim}, strides{q.heads * q.dim, q.dim, 1};
  if (!flash) sizes.insert(sizes.begin(), 1), strides.insert(strides.begin(), q.rows * q.heads * q.dim);
  AtenTensorHandle result = nullptr, extra = nullptr;
  const auto ndim = static_cast<int64_t>(sizes.size());
  if (aoti_torch_empty_strided(ndim, sizes.data(), strides.data(), dtype, device_type(), 0, &result))
    return 1;
  if (!runs()) {
    out[0] = result;
    return 0;
  }
  void* to = nullptr;
  aoti_torch_get_data_ptr(result, &to);
  for (int64_t s = 0; s + 1 < segments; ++s) {
    if (edges[s + 1] - edges[s] > job->longest) return 1;
    for (int64_t head = 0; head < q.heads; ++head) {
      attend(q.rows_of(head, edges[s], edges[s + 1]), k.rows_of(head, edges[s], edges[s + 1]),
             v.rows_of(head, edges[s], edges[s + 1]), q.dim, static_cast<float>(job->scale),
             [&](int64_t row, const float* values) {
               const int64_t place = ((edges[s] + row) * q.heads + head) * q.dim;
               if (q.dtype == 0) std::copy_n(values, q.dim, static_cast<float*>(to) + place);
               if (q.dtype != 0) host_round(values, static_cast<uint16_t*>(to) + place, q.dim, q.dtype);
             });
    }
  }
  // The log-sum that the real ones give too.
  aoti_torch_new_tensor_handle(result, &extra);
  out[0] = result;
  out[1] = extra;
  return 0;
}

int32_t flash_attention(const MmCudaAttention* job, void* out[5]) { return attention(job, out, true); }
int32_t efficient_attention(const MmCudaAttention* job, void* out[5]) { return attention(job, out, false); }

int32_t check_device(int32_t index, MmCudaDevice* facts) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!refusal.empty()) {
    error = refusal;
    return 1;
  }
  if (index > 1) {
    error = "there is no such GPU: the driver shows 2, the last is cuda:1";
    return 1;
  }
  *facts = MmCudaDevice{"Double", 90, 13000, 13000, int64_t{1} << 34};
  return 0;
}

int32_t enter(int32_t index, int32_t priority, void** guard, void** stream, int32_t* actual) {
  *guard = number(current_stream + 1);
  current_stream = ++last_stream;
  *stream = number(current_stream);
  *actual = priority < 0 ? HIGHEST_PRIORITY : 0;
  note("enter stream " + text(*stream) + " of cuda:" + std::to_string(index));
  return 0;
}
void leave(void* guard) {
  note("leave stream " + std::to_string(current_stream));
  if (guard) current_stream = reinterpret_cast<intptr_t>(guard) - 1;
}
int32_t drain(int32_t, void* stream) {
  refuse_in_capture("a wait of the host");
  note("drain stream " + text(stream));
  return 0;
}
int32_t mark(int32_t, void* stream, void** event) {
  refuse_in_capture("an event");
  *event = number(++last_event);
  note("mark stream " + text(stream) + " event " + text(*event));
  return 0;
}
int32_t wait(int32_t, void* stream, void* event) {
  refuse_in_capture("an event");
  note("wait stream " + text(stream) + " event " + text(event));
  return 0;
}
void forget(int32_t, void* event) { note("forget event " + text(event)); }

// Here a graph is its body, which a replay runs again.
struct Graph {
  intptr_t number;
  int32_t (*body)(void* context);
  void* context;
};

int32_t capture(int32_t, void* stream, int32_t (*body)(void* context), void* context, void** graph) {
  if (fails("begin")) return 1;
  note("capture begins on stream " + text(stream));
  const intptr_t before = current_stream;
  current_stream = CAPTURE_STREAM;
  capturing = true;
  broken.clear();
  const int32_t ran = body(context);
  capturing = false;
  current_stream = before;
  note("capture ends on stream " + text(stream));
  if (ran) return MM_BODY_FAILED;
  if (!broken.empty()) {
    error = "a capture holds no such thing: " + broken;
    return 1;
  }
  if (fails("end")) return 1;
  auto* made = new Graph{++last_graph, body, context};
  note("graph " + std::to_string(made->number));
  *graph = made;
  return 0;
}
int32_t replay(int32_t, void* stream, void* graph) {
  const auto* own = static_cast<const Graph*>(graph);
  if (fails("replay")) return 1;
  note("replay graph " + std::to_string(own->number) + " on stream " + text(stream));
  replaying = true;
  const int32_t ran = own->body(own->context);
  replaying = false;
  return ran;
}
void forget_graph(int32_t, void* graph) {
  const auto* own = static_cast<const Graph*>(graph);
  note("forget graph " + std::to_string(own->number));
  delete own;
}

const MmCudaOps ops = {last_error,  device_type,     launched,           uploaded,  norm,
                       rotary,      gated,           activation,         positions, patches,
                       linear_gelu, flash_attention, efficient_attention};
const MmCudaApi table = {MM_CUDA_API_VERSION,
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
                         forget_graph};

}  // namespace

extern "C" {
const MmCudaApi* mm_cuda_api(uint32_t version) { return version == MM_CUDA_API_VERSION ? &table : nullptr; }

// The log since the last call, and its end.
const char* double_log() {
  static thread_local std::string taken;
  const std::lock_guard<std::mutex> lock(mutex);
  taken.swap(log_text);
  log_text.clear();
  return taken.c_str();
}
void double_note(const char* line) { note(line); }
void double_refuse(const char* sentence) {
  const std::lock_guard<std::mutex> lock(mutex);
  refusal = sentence;
}
void double_use_meta(int on) { meta = on != 0; }
void double_run_out_of_memory(const char* at, int times) {
  (std::string(at) == "patches" ? failures_at_patches : failures_at_norm) = times;
}
void double_spoil_patches() { spoilt = true; }
// The next "begin" or "end" of a capture, or "replay", fails.
void double_fail_at(const char* what) {
  const std::lock_guard<std::mutex> lock(mutex);
  graph_fault = what;
}
}
