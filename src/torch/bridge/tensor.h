// Tensor entries of the table (see api.h).
#pragma once

#include "common.h"

namespace mm {

int32_t tensor_empty(int64_t ndim, const int64_t* sizes, int32_t dtype, int32_t cuda, int32_t index,
                     MmTensor* out);
int32_t tensor_borrow_host(const void* data, int64_t ndim, const int64_t* sizes, int32_t dtype,
                           MmTensor* out);
int32_t tensor_adopt_host(void* data, int64_t ndim, const int64_t* sizes, int32_t dtype,
                          void (*deleter)(void* data, void* context), void* context, MmTensor* out);
int32_t tensor_empty_staging(int64_t ndim, const int64_t* sizes, int32_t dtype, MmTensor* out);
void tensor_release(MmTensor tensor);
int32_t tensor_share(MmTensor tensor, MmTensor* out);
int32_t tensor_data(MmTensor tensor, void** out);
int32_t tensor_shape(MmTensor tensor, int64_t* ndim, const int64_t** sizes, const int64_t** strides);
int32_t tensor_dtype(MmTensor tensor, int32_t* out);
int32_t tensor_device(MmTensor tensor, int32_t* out);
int32_t tensor_on_host(MmTensor tensor, int32_t* out);
int32_t tensor_view(MmTensor tensor, int64_t ndim, const int64_t* sizes, const int64_t* strides,
                    int64_t offset, MmTensor* out);
int32_t tensor_contiguous(MmTensor tensor, MmTensor* out);
int32_t tensor_cast(MmTensor tensor, int32_t dtype, MmTensor* out);
int32_t tensor_copy_into(MmTensor destination, MmTensor source, int32_t background);
int32_t tensor_cat(const MmTensor* tensors, int64_t count, int64_t dim, MmTensor* out);
int32_t tensor_index_rows(MmTensor tensor, MmTensor index, MmTensor* out);

}  // namespace mm
