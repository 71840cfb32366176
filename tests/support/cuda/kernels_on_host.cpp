// The kernels of cuda/ on the CPU: the same bodies and the same launch geometry, thread after thread. Needs
// g++ alone.
#include "kernels_on_host.h"

#include "bodies.h"

using namespace mm::cuda;

namespace {

// One thread that stands for a team.
struct Alone {
  template <class Body>
  void each(int64_t n, const Body& body) const {
    take(0, 1, n, body);
  }
  template <class Body>
  float sum(int64_t n, const Body& body) const {
    float total = 0.0f;
    each(n, [&](int64_t i) { total += body(i); });
    return total;
  }
};

template <template <class> class Body, class Job>
void elements(const Job& job, int32_t dtype) {
  const int64_t count = Body<float>::count(job);
  const Launch launch = flat_launch(count);
  const int64_t threads = int64_t{launch.blocks} * launch.threads;
  for (int64_t thread = 0; thread < threads; ++thread) {
    take(thread, threads, count, [&](int64_t i) {
      dtype == 0 ? Body<float>::run(job, i) : dtype == 1 ? Body<Bf16>::run(job, i) : Body<F16>::run(job, i);
    });
  }
}

template <template <class> class Body, class Job>
void teams(const Job& job, int32_t dtype, int64_t takers, int64_t units) {
  Alone team;
  for (int64_t taker = 0; taker < takers; ++taker) {
    take(taker, takers, units, [&](int64_t i) {
      dtype == 0   ? Body<float>::run(job, i, team)
      : dtype == 1 ? Body<Bf16>::run(job, i, team)
                   : Body<F16>::run(job, i, team);
    });
  }
}

}  // namespace

extern "C" {

void host_norm(const MmCudaNorm* job, int32_t dtype) {
  teams<NormRow>(*job, dtype, row_launch(job->rows, job->columns).blocks, job->rows);
}

void host_rotary(const MmCudaRotary* job, int32_t dtype) {
  const int64_t units = RotaryHead<float>::units(*job);
  const Launch launch = warp_launch(units);
  teams<RotaryHead>(*job, dtype, int64_t{launch.blocks} * launch.threads / WARP, units);
}

void host_gated(const MmCudaGated* job, int32_t dtype) { elements<GatedElement>(*job, dtype); }

void host_activation(const MmCudaActivation* job, int32_t dtype) { elements<ActivationElement>(*job, dtype); }

void host_positions(const MmCudaPositions* job, int32_t dtype) { elements<PositionElement>(*job, dtype); }

void host_patches(const MmCudaPatches* job, int32_t dtype) {
  const int32_t run = patch_run(job->side);
  const int64_t columns = 3 * job->side * job->side / run;
  const int64_t takers = row_launch(job->rows, columns).blocks;
  run == 1 ? teams<PatchSamples>(*job, dtype, takers, job->rows)
           : teams<PatchRuns>(*job, dtype, takers, job->rows);
}

int32_t host_patch_run(int32_t side) { return patch_run(side); }

void host_round(const float* from, void* to, int64_t count, int32_t dtype) {
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == 1) static_cast<Bf16*>(to)[i] = store<Bf16>(from[i]);
    if (dtype == 2) static_cast<F16*>(to)[i] = store<F16>(from[i]);
  }
}

void host_widen(const void* from, float* to, int64_t count, int32_t dtype) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = dtype == 1 ? load(static_cast<const Bf16*>(from)[i]) : load(static_cast<const F16*>(from)[i]);
  }
}

// kind 0: an element a thread, 1: a row of `columns` a block, 2: a unit a warp.
void host_launch(int32_t kind, int64_t count, int64_t columns, uint32_t* blocks, uint32_t* threads) {
  const Launch launch = kind == 0   ? flat_launch(count)
                        : kind == 1 ? row_launch(count, columns)
                                    : warp_launch(count);
  *blocks = launch.blocks;
  *threads = launch.threads;
}

// Adds 1 to each unit that taker number `taker` of `takers` takes.
void host_taken(int64_t taker, int64_t takers, int64_t count, uint8_t* times) {
  take(taker, takers, count, [&](int64_t i) { ++times[i]; });
}
}
