// Launch geometry: pure functions, so that a test on the CPU can show that every element is taken once.
#pragma once

#include <cstdint>

#include "arithmetic.h"

namespace mm::cuda {

constexpr int WARP = 32;
constexpr int MOST_THREADS = 256;
// A grid of one axis; more units than this are taken in turns by the same blocks.
constexpr int64_t MOST_BLOCKS = 1 << 20;

struct Launch {
  uint32_t blocks, threads;
};

MM_BOTH int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// One thread an element.
MM_BOTH Launch flat_launch(int64_t count) {
  const int64_t blocks = (count + MOST_THREADS - 1) / MOST_THREADS;
  return Launch{static_cast<uint32_t>(least(blocks, MOST_BLOCKS)), MOST_THREADS};
}

// One block a row; as many warps as there is work for.
MM_BOTH Launch row_launch(int64_t rows, int64_t columns) {
  const int64_t warps = (columns + WARP - 1) / WARP;
  return Launch{static_cast<uint32_t>(least(rows, MOST_BLOCKS)),
                static_cast<uint32_t>(least(warps * WARP, MOST_THREADS))};
}

// One warp a unit, several units a block.
MM_BOTH Launch warp_launch(int64_t units) {
  const int64_t each = MOST_THREADS / WARP;
  return Launch{static_cast<uint32_t>(least((units + each - 1) / each, MOST_BLOCKS)), MOST_THREADS};
}

// Levels of a patch of this side that one thread of the kernel `patches` takes at once.
MM_BOTH int32_t patch_run(int32_t side) { return side % 2 == 0 ? 4 : 1; }

// The units of one taker among `takers`: every unit of [0, count) belongs to exactly one.
template <class Body>
MM_BOTH void take(int64_t taker, int64_t takers, int64_t count, const Body& body) {
  for (int64_t unit = taker; unit < count; unit += takers) body(unit);
}

}  // namespace mm::cuda
