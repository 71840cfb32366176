// The table of finished results, and the operator through which Python takes them as real tensors.
#include "results.h"

#include <mutex>
#include <unordered_map>

namespace mm {
namespace {

class Results {
 public:
  int64_t put(std::vector<AtenTensorHandle> tensors) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t id = ++last_;
    waiting_.emplace(id, std::move(tensors));
    return id;
  }
  // Empty when nothing waits under `id`.
  std::vector<AtenTensorHandle> take(int64_t id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return {};
    auto tensors = std::move(found->second);
    waiting_.erase(found);
    return tensors;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<int64_t, std::vector<AtenTensorHandle>> waiting_;
  int64_t last_ = 0;
};

// Never destroyed: a worker or an interpreter at exit may still reach it.
Results& results() {
  static Results* const table = new Results;
  return *table;
}

// take(int id) -> Tensor[]; the list owns the tensors from here on.
void take_kernel(StableIValue* stack, uint64_t, uint64_t) {
  const auto id = torch::stable::detail::to<int64_t>(stack[0]);
  const auto tensors = results().take(id);
  if (tensors.empty()) throw std::runtime_error("no result waits under this id; it was taken or discarded");
  StableListHandle list = nullptr;
  check(torch_new_list_reserve_size(tensors.size(), &list), "take");
  for (AtenTensorHandle tensor : tensors) {
    check(torch_list_push_back(list, torch::stable::detail::from(tensor)), "take");
  }
  count_live(-static_cast<int64_t>(tensors.size()));
  stack[0] = torch::stable::detail::from(list);
}

}  // namespace

int32_t register_operators() {
  static std::once_flag once;
  static std::string problem;
  return guarded([] {
    std::call_once(once, [] {
      // Both libraries live as long as the process: their destruction would unregister the operator.
      TorchLibraryHandle definitions = nullptr, kernels = nullptr;
      if (aoti_torch_library_init_fragment("mm_libtorch_encoder", __FILE__, __LINE__, &definitions) ||
          aoti_torch_library_def(definitions, "take(int id) -> Tensor[]") ||
          aoti_torch_library_init_impl("mm_libtorch_encoder", "CompositeExplicitAutograd", __FILE__, __LINE__,
                                       &kernels) ||
          torch_library_impl(kernels, "take", &take_kernel, TORCH_ABI_VERSION)) {
        problem =
            "the operator mm_libtorch_encoder::take could not be registered; is another copy of this "
            "package loaded in the process?";
      }
    });
    if (!problem.empty()) throw Failure{problem};
  });
}

int32_t publish(const MmTensor* tensors, int64_t count, int64_t* id) {
  return guarded([&] {
    std::vector<AtenTensorHandle> own;
    own.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) own.push_back(raw(tensors[i]));
    *id = results().put(std::move(own));
  });
}

void discard(int64_t id) {
  guarded([&] {
    for (AtenTensorHandle tensor : results().take(id)) {
      aoti_torch_delete_tensor_object(tensor);
      count_live(-1);
    }
  });
}

}  // namespace mm
