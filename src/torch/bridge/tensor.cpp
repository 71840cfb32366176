// Tensor entries of the table: creation, views, casts, copies.
#include "tensor.h"

#include "schemas.h"

namespace mm {

Handle cast(AtenTensorHandle tensor, int32_t dtype) {
  using torch::headeronly::ScalarType;
  if (dtype_of(tensor) == dtype) return share(tensor);
  ScalarType wanted;
  switch (dtype) {
    case MM_F32:
      wanted = ScalarType::Float;
      break;
    case MM_BF16:
      wanted = ScalarType::BFloat16;
      break;
    case MM_F16:
      wanted = ScalarType::Half;
      break;
    default:
      throw Failure{"cast: only to a floating type"};
  }
  return call(op::to_dtype, Arg{tensor}, wanted, false, false, std::nullopt);
}

int64_t element_size(int32_t dtype) {
  switch (dtype) {
    case MM_U8:
      return 1;
    case MM_BF16:
    case MM_F16:
      return 2;
    case MM_I64:
      return 8;
    default:
      return 4;
  }
}

Handle dense(AtenTensorHandle tensor) {
  bool contiguous = false;
  check(aoti_torch_is_contiguous(tensor, &contiguous), "is_contiguous");
  if (contiguous) return share(tensor);
  return call(op::contiguous, Arg{tensor}, torch::headeronly::MemoryFormat::Contiguous);
}

int32_t tensor_empty(int64_t ndim, const int64_t* sizes, int32_t dtype, int32_t cuda, int32_t index,
                     MmTensor* out) {
  return guarded([&] {
    const auto strides = contiguous_strides(sizes, static_cast<size_t>(ndim));
    Handle made;
    const int32_t type = cuda ? cuda_device_type() : aoti_torch_device_type_cpu();
    check(aoti_torch_empty_strided(ndim, sizes, strides.data(), torch_dtype(dtype), type, index, made.out()),
          "an empty tensor");
    *out = made.give();
  });
}

int32_t tensor_borrow_host(const void* data, int64_t ndim, const int64_t* sizes, int32_t dtype,
                           MmTensor* out) {
  return guarded([&] {
    const auto strides = contiguous_strides(sizes, static_cast<size_t>(ndim));
    Handle made;
    check(aoti_torch_create_tensor_from_blob_v2(const_cast<void*>(data), ndim, sizes, strides.data(), 0,
                                                torch_dtype(dtype), aoti_torch_device_type_cpu(), 0,
                                                made.out(), aoti_torch_layout_strided(), nullptr, 0),
          "a tensor over host memory");
    *out = made.give();
  });
}

int32_t tensor_adopt_host(void* data, int64_t ndim, const int64_t* sizes, int32_t dtype,
                          void (*deleter)(void* data, void* context), void* context, MmTensor* out) {
  return guarded([&] {
    const auto strides = contiguous_strides(sizes, static_cast<size_t>(ndim));
    Handle made;
    // The host has no index here: 0 would be another device than the memory's.
    check(torch_from_blob(data, ndim, sizes, strides.data(), 0, torch_dtype(dtype),
                          aoti_torch_device_type_cpu(), -1, made.out(), aoti_torch_layout_strided(), nullptr,
                          0, deleter, context),
          "a tensor over host memory");
    *out = made.give();
  });
}

int32_t tensor_empty_staging(int64_t ndim, const int64_t* sizes, int32_t dtype, MmTensor* out) {
  return guarded([&] {
    const auto strides = contiguous_strides(sizes, static_cast<size_t>(ndim));
    const int32_t cpu = aoti_torch_device_type_cpu();
    // Pinned, from LibTorch's allocator, which knows when the device has read it. Other device types have
    // none.
    const auto empty = cuda_device_type() == aoti_torch_device_type_cuda() ? aoti_torch_empty_strided_pinned
                                                                           : aoti_torch_empty_strided;
    Handle made;
    check(empty(ndim, sizes, strides.data(), torch_dtype(dtype), cpu, 0, made.out()), "pinned host memory");
    *out = made.give();
  });
}

void tensor_release(MmTensor tensor) {
  if (!tensor) return;
  aoti_torch_delete_tensor_object(raw(tensor));
  count_live(-1);
}

int32_t tensor_share(MmTensor tensor, MmTensor* out) {
  return guarded([&] {
    Handle copy;
    check(aoti_torch_new_tensor_handle(raw(tensor), copy.out()), "a new tensor handle");
    *out = copy.give();
  });
}

int32_t tensor_data(MmTensor tensor, void** out) {
  return guarded([&] { *out = data_of(raw(tensor)); });
}

int32_t tensor_shape(MmTensor tensor, int64_t* ndim, const int64_t** sizes, const int64_t** strides) {
  return guarded([&] {
    int64_t* own_sizes = nullptr;
    int64_t* own_strides = nullptr;
    check(aoti_torch_get_dim(raw(tensor), ndim), "dim");
    check(aoti_torch_get_sizes(raw(tensor), &own_sizes), "sizes");
    check(aoti_torch_get_strides(raw(tensor), &own_strides), "strides");
    *sizes = own_sizes;
    *strides = own_strides;
  });
}

int32_t tensor_dtype(MmTensor tensor, int32_t* out) {
  return guarded([&] { *out = dtype_of(raw(tensor)); });
}

int32_t tensor_device(MmTensor tensor, int32_t* out) {
  return guarded([&] { *out = on_cuda(raw(tensor)) ? device_index(raw(tensor)) : -1; });
}

int32_t tensor_on_host(MmTensor tensor, int32_t* out) {
  return guarded([&] {
    int32_t type = 0;
    check(aoti_torch_get_device_type(raw(tensor), &type), "device type");
    *out = type == aoti_torch_device_type_cpu();
  });
}

int32_t tensor_view(MmTensor tensor, int64_t ndim, const int64_t* sizes, const int64_t* strides,
                    int64_t offset, MmTensor* out) {
  return guarded(
      [&] { *out = view(raw(tensor), {sizes, sizes + ndim}, {strides, strides + ndim}, offset).give(); });
}

int32_t tensor_contiguous(MmTensor tensor, MmTensor* out) {
  return guarded([&] { *out = dense(raw(tensor)).give(); });
}

int32_t tensor_cast(MmTensor tensor, int32_t dtype, MmTensor* out) {
  return guarded([&] { *out = cast(raw(tensor), dtype).give(); });
}

int32_t tensor_copy_into(MmTensor destination, MmTensor source, int32_t background) {
  return guarded([&] {
    if (background) {
      int64_t elements = 0;
      check(aoti_torch_get_numel(raw(source), &elements), "numel");
      uploaded(elements * element_size(dtype_of(raw(source))));
    }
    copy(raw(destination), raw(source), background != 0);
  });
}

int32_t tensor_cat(const MmTensor* tensors, int64_t count, int64_t dim, MmTensor* out) {
  return guarded([&] {
    StableListHandle list = nullptr;
    check(torch_new_list_reserve_size(static_cast<size_t>(count), &list), "a list");
    for (int64_t i = 0; i < count; ++i)
      check(torch_list_push_back(list, ivalue(Arg{raw(tensors[i])})), "a list");
    *out = call(op::cat, list, dim).give();
  });
}

int32_t tensor_index_rows(MmTensor tensor, MmTensor index, MmTensor* out) {
  return guarded(
      [&] { *out = call(op::index_select, Arg{raw(tensor)}, int64_t{0}, Arg{raw(index)}).give(); });
}

}  // namespace mm
