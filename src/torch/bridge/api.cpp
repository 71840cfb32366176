// The table that Rust opens (see api.h).
#include "api.h"

#include "kernels.h"
#include "ops.h"
#include "results.h"
#include "schemas.h"
#include "tensor.h"

// LibTorch's own OpenMP runtime, which is among its dependencies; absent where LibTorch was built without.
extern "C" __attribute__((weak)) void omp_set_num_threads(int threads);
// MKL within LibTorch, which keeps a number of its own for each thread once torch.set_num_threads was called.
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int threads);

namespace mm {

const char* last_error();
int64_t live_tensors();
void set_plain(int32_t value);

namespace {

uint64_t torch_version() { return aoti_torch_abi_version(); }

void disable_gradients() {
  aoti_torch_grad_mode_set_enabled(false);
  // The thread takes over the process-wide number of compute threads here, before any operator.
  uint32_t threads = 0;
  static_cast<void>(torch_get_num_threads(&threads));
}

void share_threads(int32_t sharers) {
  uint32_t threads = 0;
  if (sharers < 2 || !omp_set_num_threads || torch_get_num_threads(&threads)) return;
  const uint32_t part = threads / static_cast<uint32_t>(sharers);
  const int own = part > 0 ? static_cast<int>(part) : 1;
  omp_set_num_threads(own);
  if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(own);
}

const MmSchema* schemas(uint64_t* count) {
#define MM_ROW(id, name, overload, schema) {name, overload, schema},
  static const MmSchema table[] = {MM_OPS(MM_ROW)};
#undef MM_ROW
  *count = sizeof(table) / sizeof(table[0]);
  return table;
}

const MmApi table = {
    MM_API_VERSION,
    sizeof(MmApi),
    last_error,
    torch_version,
    register_operators,
    disable_gradients,
    share_threads,
    set_plain,
    live_tensors,
    schemas,
    kernel_level,
    set_cuda,
    set_cuda_kernels,
    set_thread_kernels,
    tensor_empty,
    tensor_borrow_host,
    tensor_adopt_host,
    tensor_empty_staging,
    tensor_release,
    tensor_share,
    tensor_data,
    tensor_shape,
    tensor_dtype,
    tensor_device,
    tensor_on_host,
    tensor_view,
    tensor_contiguous,
    tensor_cast,
    tensor_copy_into,
    tensor_cat,
    tensor_index_rows,
    op_pack_linear,
    op_linear,
    op_activation,
    op_add,
    op_layer_norm,
    op_rms_norm,
    op_depthwise,
    op_add_norm,
    op_gated,
    op_rotary,
    op_attention,
    op_add_interpolated,
    op_expand_patches,
    op_resample_table,
    publish,
    discard,
};

}  // namespace
}  // namespace mm

extern "C" const MmApi* mm_torch_api(uint32_t version) {
  return version == MM_API_VERSION ? &mm::table : nullptr;
}
