// Shared by the bridge's files: errors, tensor handles, and calls through LibTorch's dispatcher.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api.h"
#include "cuda.h"

namespace mm {

// Carries the text of a failure to the C boundary, where `guarded` turns it into a status.
struct Failure {
  std::string text;
  bool out_of_memory = false;
};

// Throws with the operator's name and LibTorch's own text where this LibTorch gives it (2.13 and newer).
[[noreturn]] void fail_torch(const char* what);

inline void check(AOTITorchError status, const char* what) {
  if (status != AOTI_TORCH_SUCCESS) fail_torch(what);
}

void set_last_error(const std::string& text);
void count_live(int64_t by);

// Runs `body`, keeping every exception on this side of the boundary.
template <class Body>
int32_t guarded(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const Failure& failure) {
    set_last_error(failure.text);
    return failure.out_of_memory ? 2 : 1;
  } catch (const std::bad_alloc&) {
    set_last_error("host memory ran out");
    return 2;
  } catch (const std::exception& error) {
    set_last_error(error.what());
  } catch (...) {
    set_last_error("an unknown C++ exception");
  }
  return 1;
}

// An owned handle inside the bridge.
class Handle {
 public:
  Handle() = default;
  explicit Handle(AtenTensorHandle raw) : raw_(raw) {}
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (raw_) aoti_torch_delete_tensor_object(raw_);
  }
  AtenTensorHandle get() const { return raw_; }
  AtenTensorHandle* out() { return &raw_; }
  // Gives the reference to Rust.
  MmTensor give() {
    count_live(1);
    return std::exchange(raw_, nullptr);
  }

 private:
  AtenTensorHandle raw_ = nullptr;
};

inline AtenTensorHandle raw(MmTensor tensor) { return static_cast<AtenTensorHandle>(tensor); }

// A tensor argument of a dispatcher call: the call consumes a reference of its own.
struct Arg {
  AtenTensorHandle tensor;
};
// An optional tensor argument; null is None.
struct OptionalArg {
  AtenTensorHandle tensor;
};

template <class T>
StableIValue ivalue(const T& value) {
  return torch::stable::detail::from(value);
}
inline StableIValue ivalue(const Arg& arg) {
  AtenTensorHandle copy = nullptr;
  check(aoti_torch_new_tensor_handle(arg.tensor, &copy), "a new tensor handle");
  return torch::stable::detail::from(copy);
}
inline StableIValue ivalue(const OptionalArg& arg) {
  if (!arg.tensor) return torch::stable::detail::from(std::nullopt);
  return torch::stable::detail::from(new StableIValue(ivalue(Arg{arg.tensor})));
}

// An ATen operator as this bridge calls it; a test compares `schema` with the running Torch.
struct Op {
  const char* name;
  const char* overload;
  const char* schema;
};

// Calls `op`, which gives `results` tensors, with every schema argument in order, defaults included; returns
// the first.
template <size_t results = 1, class... Args>
Handle call(const Op& op, const Args&... args) {
  static_assert(results <= sizeof...(Args));
  launched(op.name);
  std::array<StableIValue, sizeof...(Args)> stack{ivalue(args)...};
  check(torch_call_dispatcher(op.name, op.overload, stack.data(), TORCH_ABI_VERSION), op.name);
  for (size_t i = 1; i < results; ++i) Handle(torch::stable::detail::to<AtenTensorHandle>(stack[i]));
  return Handle(torch::stable::detail::to<AtenTensorHandle>(stack[0]));
}

int32_t torch_dtype(int32_t dtype);
int32_t dtype_of(AtenTensorHandle tensor);
// Bytes of an element.
int64_t element_size(int32_t dtype);
std::vector<int64_t> sizes_of(AtenTensorHandle tensor);
std::vector<int64_t> strides_of(AtenTensorHandle tensor);
std::vector<int64_t> contiguous_strides(const int64_t* sizes, size_t ndim);
int64_t rows_of(const std::vector<int64_t>& sizes);
Handle empty_like_shape(AtenTensorHandle like, const std::vector<int64_t>& sizes);
// `offset` counts elements from the tensor's own first element.
Handle view(AtenTensorHandle tensor, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
            int64_t offset);
Handle reshape(AtenTensorHandle tensor, const std::vector<int64_t>& sizes);
Handle share(AtenTensorHandle tensor);
// Both give the tensor itself where nothing is to be done.
Handle cast(AtenTensorHandle tensor, int32_t dtype);
Handle dense(AtenTensorHandle tensor);
void copy(AtenTensorHandle destination, AtenTensorHandle source, bool background = false);
void require_contiguous(AtenTensorHandle tensor, const char* what);
void* data_of(AtenTensorHandle tensor);
// A zero-dimensional host tensor: the form in which a number reaches a boxed operator on any device.
Handle scalar(double value);
bool plain();

// True when `tensor` lives on the host and fused CPU kernels may run on it.
inline bool fused_cpu(AtenTensorHandle tensor) { return !on_cuda(tensor) && !plain(); }

}  // namespace mm
