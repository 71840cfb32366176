// The CUDA library's operators, where it is open, and which of them are in use.
#include "cuda.h"

#include <atomic>

#include "common.h"

namespace mm {
namespace {

std::atomic<const MmCudaOps*> library{nullptr};
std::atomic<uint32_t> kernels{0};
thread_local int64_t thread_kernels = -1;

}  // namespace

void set_cuda(const MmCudaOps* ops) { library.store(ops, std::memory_order_release); }
void set_cuda_kernels(uint32_t mask) { kernels.store(mask, std::memory_order_relaxed); }
void set_thread_kernels(int64_t mask) { thread_kernels = mask; }

int32_t cuda_device_type() {
  const MmCudaOps* ops = library.load(std::memory_order_acquire);
  return ops ? ops->device_type() : aoti_torch_device_type_cuda();
}

bool on_cuda(AtenTensorHandle tensor) {
  int32_t type = 0;
  check(aoti_torch_get_device_type(tensor, &type), "device");
  return type == cuda_device_type();
}

int32_t device_index(AtenTensorHandle tensor) {
  int32_t index = 0;
  check(aoti_torch_get_device_index(tensor, &index), "device");
  // Types of one device alone, which stand for CUDA under test, have no numbers.
  return index < 0 ? 0 : index;
}

const MmCudaOps* fused_cuda(AtenTensorHandle tensor, MmCudaKernel kernel) {
  const MmCudaOps* ops = library.load(std::memory_order_acquire);
  if (!ops || plain()) return nullptr;
  const int64_t mask = thread_kernels >= 0 ? thread_kernels : kernels.load(std::memory_order_relaxed);
  return (mask >> kernel & 1) && on_cuda(tensor) ? ops : nullptr;
}

void check_cuda(int32_t status) {
  if (status) throw Failure{library.load(std::memory_order_acquire)->last_error(), status == 2};
}

void launched(const char* what) {
  const MmCudaOps* ops = library.load(std::memory_order_acquire);
  if (ops && ops->launched) ops->launched(what);
}

void uploaded(int64_t bytes) {
  const MmCudaOps* ops = library.load(std::memory_order_acquire);
  if (ops && ops->uploaded) ops->uploaded(bytes);
}

}  // namespace mm
