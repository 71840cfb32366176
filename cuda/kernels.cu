// The kernels: bodies.h run by blocks and warps.
#include <cuda_runtime_api.h>

#include "bodies.h"
#include "library.h"

namespace mm::cuda {
namespace {

struct WarpTeam {
  int lane;

  template <class Body>
  __device__ void each(int64_t n, const Body& body) const {
    take(lane, WARP, n, body);
  }
  template <class Body>
  __device__ float sum(int64_t n, const Body& body) const {
    float own = 0.0f;
    take(lane, WARP, n, [&](int64_t i) { own += body(i); });
    for (int step = WARP / 2; step > 0; step /= 2) own += __shfl_xor_sync(~0u, own, step);
    return own;
  }
};

struct BlockTeam {
  float* partial;  // one for each warp, in shared memory

  template <class Body>
  __device__ void each(int64_t n, const Body& body) const {
    take(threadIdx.x, blockDim.x, n, body);
  }
  template <class Body>
  __device__ float sum(int64_t n, const Body& body) const {
    float own = 0.0f;
    each(n, [&](int64_t i) { own += body(i); });
    for (int step = WARP / 2; step > 0; step /= 2) own += __shfl_xor_sync(~0u, own, step);
    // Nobody may still be reading the sums of the call before.
    __syncthreads();
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = own;
    __syncthreads();
    float total = 0.0f;
    for (unsigned warp = 0; warp < blockDim.x / WARP; ++warp) total += partial[warp];
    return total;
  }
};

template <class Body>
__global__ void by_block(const typename Body::Job job, int64_t units) {
  __shared__ float partial[MOST_THREADS / WARP];
  BlockTeam team{partial};
  take(blockIdx.x, gridDim.x, units, [&](int64_t unit) { Body::run(job, unit, team); });
}

template <class Body>
__global__ void by_warp(const typename Body::Job job, int64_t units) {
  const int64_t warps = blockDim.x / WARP;
  WarpTeam team{static_cast<int>(threadIdx.x % WARP)};
  take(blockIdx.x * warps + threadIdx.x / WARP, gridDim.x * warps, units,
       [&](int64_t unit) { Body::run(job, unit, team); });
}

template <class Body>
__global__ void by_thread(const typename Body::Job job, int64_t count) {
  take(static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x,
       static_cast<int64_t>(gridDim.x) * blockDim.x, count, [&](int64_t i) { Body::run(job, i); });
}

template <template <class> class Body, class Job>
void elements(const Job& job, int32_t dtype, void* stream) {
  const int64_t count = Body<float>::count(job);
  const Launch launch = flat_launch(count);
  const auto queue = static_cast<cudaStream_t>(stream);
  switch (dtype) {
    case 0:
      by_thread<Body<float>><<<launch.blocks, launch.threads, 0, queue>>>(job, count);
      break;
    case 1:
      by_thread<Body<Bf16>><<<launch.blocks, launch.threads, 0, queue>>>(job, count);
      break;
    default:
      by_thread<Body<F16>><<<launch.blocks, launch.threads, 0, queue>>>(job, count);
  }
}

// A block a row, whose work is spread over `columns` threads at most.
template <template <class> class Body, class Job>
void rows(const Job& job, int64_t count, int64_t columns, int32_t dtype, void* stream) {
  const Launch launch = row_launch(count, columns);
  const auto queue = static_cast<cudaStream_t>(stream);
  switch (dtype) {
    case 0:
      by_block<Body<float>><<<launch.blocks, launch.threads, 0, queue>>>(job, count);
      break;
    case 1:
      by_block<Body<Bf16>><<<launch.blocks, launch.threads, 0, queue>>>(job, count);
      break;
    default:
      by_block<Body<F16>><<<launch.blocks, launch.threads, 0, queue>>>(job, count);
  }
}

}  // namespace

void launch_norm(const MmCudaNorm& job, int32_t dtype, void* stream) {
  rows<NormRow>(job, job.rows, job.columns, dtype, stream);
}

void launch_rotary(const MmCudaRotary& job, int32_t dtype, void* stream) {
  const int64_t units = RotaryHead<float>::units(job);
  const Launch launch = warp_launch(units);
  const auto queue = static_cast<cudaStream_t>(stream);
  switch (dtype) {
    case 0:
      by_warp<RotaryHead<float>><<<launch.blocks, launch.threads, 0, queue>>>(job, units);
      break;
    case 1:
      by_warp<RotaryHead<Bf16>><<<launch.blocks, launch.threads, 0, queue>>>(job, units);
      break;
    default:
      by_warp<RotaryHead<F16>><<<launch.blocks, launch.threads, 0, queue>>>(job, units);
  }
}

void launch_gated(const MmCudaGated& job, int32_t dtype, void* stream) {
  elements<GatedElement>(job, dtype, stream);
}

void launch_activation(const MmCudaActivation& job, int32_t dtype, void* stream) {
  elements<ActivationElement>(job, dtype, stream);
}

void launch_positions(const MmCudaPositions& job, int32_t dtype, void* stream) {
  elements<PositionElement>(job, dtype, stream);
}

void launch_patches(const MmCudaPatches& job, int32_t dtype, void* stream) {
  const int32_t run = patch_run(job.side);
  const int64_t columns = 3 * job.side * job.side / run;
  if (run == 1) {
    rows<PatchSamples>(job, job.rows, columns, dtype, stream);
  } else {
    rows<PatchRuns>(job, job.rows, columns, dtype, stream);
  }
}

}  // namespace mm::cuda
