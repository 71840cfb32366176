// Errors, handle helpers and process state of the bridge.
#include "common.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

namespace mm {
namespace {

thread_local std::string last_error_text;
std::atomic<int64_t> live{0};
std::atomic<bool> plain_ops{false};

// LibTorch before 2.13 keeps the text of a failure to itself; then null.
const char* torch_text() {
  using Getter = const char* (*)();
  static const Getter getter = [] {
    void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    return library ? reinterpret_cast<Getter>(dlsym(library, "torch_exception_get_what_without_backtrace"))
                   : nullptr;
  }();
  return getter ? getter() : nullptr;
}

bool reads_like_out_of_memory(const char* text) {
  return std::strstr(text, "out of memory") || std::strstr(text, "can't allocate memory") ||
         std::strstr(text, "not enough memory");
}

}  // namespace

void fail_torch(const char* what) {
  const char* text = torch_text();
  Failure failure;
  failure.text = std::string(what) + " failed";
  if (text && *text) {
    failure.text += ": ";
    failure.text += text;
    failure.out_of_memory = reads_like_out_of_memory(text);
  } else {
    failure.text += " (this LibTorch gives no text; it printed one to standard error)";
  }
  throw failure;
}

void set_last_error(const std::string& text) {
  try {
    last_error_text = text;
  } catch (...) {
    last_error_text.clear();
  }
}

const char* last_error() { return last_error_text.c_str(); }
void count_live(int64_t by) { live.fetch_add(by, std::memory_order_relaxed); }
int64_t live_tensors() { return live.load(std::memory_order_relaxed); }
void set_plain(int32_t value) { plain_ops.store(value != 0, std::memory_order_relaxed); }
bool plain() { return plain_ops.load(std::memory_order_relaxed); }

int32_t torch_dtype(int32_t dtype) {
  switch (dtype) {
    case MM_F32:
      return aoti_torch_dtype_float32();
    case MM_BF16:
      return aoti_torch_dtype_bfloat16();
    case MM_F16:
      return aoti_torch_dtype_float16();
    case MM_I64:
      return aoti_torch_dtype_int64();
    case MM_U8:
      return aoti_torch_dtype_uint8();
    case MM_I32:
      return aoti_torch_dtype_int32();
    default:
      throw Failure{"unknown element type " + std::to_string(dtype)};
  }
}

int32_t dtype_of(AtenTensorHandle tensor) {
  int32_t dtype = 0;
  check(aoti_torch_get_dtype(tensor, &dtype), "dtype");
  for (int32_t mine : {MM_F32, MM_BF16, MM_F16, MM_I64, MM_U8, MM_I32}) {
    if (torch_dtype(mine) == dtype) return mine;
  }
  throw Failure{"a tensor of an element type this bridge does not use: " + std::to_string(dtype)};
}

std::vector<int64_t> sizes_of(AtenTensorHandle tensor) {
  int64_t ndim = 0;
  int64_t* sizes = nullptr;
  check(aoti_torch_get_dim(tensor, &ndim), "dim");
  check(aoti_torch_get_sizes(tensor, &sizes), "sizes");
  return {sizes, sizes + ndim};
}

std::vector<int64_t> strides_of(AtenTensorHandle tensor) {
  int64_t ndim = 0;
  int64_t* strides = nullptr;
  check(aoti_torch_get_dim(tensor, &ndim), "dim");
  check(aoti_torch_get_strides(tensor, &strides), "strides");
  return {strides, strides + ndim};
}

std::vector<int64_t> contiguous_strides(const int64_t* sizes, size_t ndim) {
  std::vector<int64_t> strides(ndim);
  int64_t step = 1;
  for (size_t i = ndim; i-- > 0;) {
    strides[i] = step;
    step *= sizes[i];
  }
  return strides;
}

int64_t rows_of(const std::vector<int64_t>& sizes) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) rows *= sizes[i];
  return rows;
}

Handle empty_like_shape(AtenTensorHandle like, const std::vector<int64_t>& sizes) {
  int32_t dtype = 0, type = 0, index = 0;
  check(aoti_torch_get_dtype(like, &dtype), "dtype");
  check(aoti_torch_get_device_type(like, &type), "device");
  check(aoti_torch_get_device_index(like, &index), "device");
  const auto strides = contiguous_strides(sizes.data(), sizes.size());
  Handle out;
  check(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                                 type, index, out.out()),
        "an empty tensor");
  return out;
}

Handle view(AtenTensorHandle tensor, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
            int64_t offset) {
  Handle out;
  check(aoti_torch__reinterpret_tensor(tensor, static_cast<int64_t>(sizes.size()), sizes.data(),
                                       strides.data(), offset, out.out()),
        "a view");
  return out;
}

void require_contiguous(AtenTensorHandle tensor, const char* what) {
  bool contiguous = false;
  check(aoti_torch_is_contiguous(tensor, &contiguous), "is_contiguous");
  if (!contiguous) throw Failure{std::string(what) + ": the tensor must be contiguous"};
}

Handle reshape(AtenTensorHandle tensor, const std::vector<int64_t>& sizes) {
  require_contiguous(tensor, "reshape");
  int64_t numel = 0, wanted = 1;
  check(aoti_torch_get_numel(tensor, &numel), "numel");
  for (int64_t size : sizes) wanted *= size;
  if (numel != wanted) {
    throw Failure{"reshape: " + std::to_string(numel) + " elements into " + std::to_string(wanted)};
  }
  return view(tensor, sizes, contiguous_strides(sizes.data(), sizes.size()), 0);
}

Handle share(AtenTensorHandle tensor) {
  Handle copy;
  check(aoti_torch_new_tensor_handle(tensor, copy.out()), "a new tensor handle");
  return copy;
}

void copy(AtenTensorHandle destination, AtenTensorHandle source, bool background) {
  launched(background ? "upload" : "copy");
  check(aoti_torch_copy_(destination, source, background), "a copy");
}

Handle scalar(double value) {
  Handle host;
  check(aoti_torch_scalar_to_tensor_float64(value, host.out()), "a scalar tensor");
  return host;
}

void* data_of(AtenTensorHandle tensor) {
  void* data = nullptr;
  check(aoti_torch_get_data_ptr(tensor, &data), "data pointer");
  return data;
}

}  // namespace mm
