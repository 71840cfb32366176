// Finished results on their way to Python (see api.h).
#pragma once

#include "common.h"

namespace mm {

int32_t register_operators();
int32_t publish(const MmTensor* tensors, int64_t count, int64_t* id);
void discard(int64_t id);

}  // namespace mm
