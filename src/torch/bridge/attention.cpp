// Rotary embedding and attention over segments of packed qkv.
#include <algorithm>

#include "kernels.h"
#include "ops.h"
#include "schemas.h"

extern "C" AOTITorchError aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, double dropout, int32_t causal,
    AtenTensorHandle* mask, double* scale, AtenTensorHandle* out, AtenTensorHandle* log_sum);

namespace mm {
namespace {

constexpr int64_t ROTARY_GRAIN_ELEMENTS = 1 << 14;
// Rows of q that math_attention takes at a time: their scores are held whole.
constexpr int64_t MATH_ROWS = 64;
// LibTorch may choose to hold float32 scores on the device, a few times over: those of one call are at most
// this large.
constexpr int64_t CUDA_SCORE_BYTES = 1 << 28;
// FlashAttention reads 16 bytes at a time, in half precision, and takes heads up to this width.
constexpr int64_t FLASH_DIM_STEP = 8, FLASH_LARGEST_DIM = 256;
// The memory-efficient kernel reads 16 bytes at a time in every dtype.
constexpr int64_t EFFICIENT_READ_BYTES = 16;

struct Packed {
  int64_t rows, heads, dim;
  int64_t width() const { return heads * dim; }
};

Packed packed_of(AtenTensorHandle qkv) {
  const auto sizes = sizes_of(qkv);
  if (sizes.size() != 4 || sizes[1] != 3)
    throw Failure{"packed qkv must have the shape [rows, 3, heads, dim]"};
  require_contiguous(qkv, "packed qkv");
  return {sizes[0], sizes[2], sizes[3]};
}

// Part 0, 1 or 2 (q, k or v) of rows [begin, end) as [1, heads, rows, dim], sharing memory.
Handle part(AtenTensorHandle qkv, const Packed& p, int64_t which, int64_t begin, int64_t end) {
  return view(qkv, {1, p.heads, end - begin, p.dim}, {0, p.dim, 3 * p.width(), 1},
              begin * 3 * p.width() + which * p.width());
}

// [1, heads, rows, dim] in any layout to contiguous [rows, heads * dim]; free when it is laid out so already.
Handle merge_heads(AtenTensorHandle x, const Packed& p, int64_t rows) {
  const auto strides = strides_of(x);
  const Handle ordered = view(x, {rows, p.heads, p.dim}, {strides[2], strides[1], strides[3]}, 0);
  return reshape(dense(ordered.get()).get(), {rows, p.width()});
}

Handle segment_attention(AtenTensorHandle qkv, const Packed& p, int64_t begin, int64_t end, double scale) {
  const Handle q = part(qkv, p, 0, begin, end), k = part(qkv, p, 1, begin, end),
               v = part(qkv, p, 2, begin, end);
  Handle out;
  if (fused_cpu(qkv)) {
    Handle log_sum;
    check(aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
              q.get(), k.get(), v.get(), 0.0, 0, nullptr, &scale, out.out(), log_sum.out()),
          "attention");
  } else {
    out = call(op::attention, Arg{q.get()}, Arg{k.get()}, Arg{v.get()}, OptionalArg{nullptr}, 0.0, false,
               std::optional<double>{scale}, false);
  }
  return merge_heads(out.get(), p, end - begin);
}

// On the device with whatever kernel LibTorch chooses, which may hold scores: as many rows of q at a time as
// keep them within bounds. Rows of q do not see each other.
Handle bounded_attention(AtenTensorHandle qkv, const Packed& p, int64_t begin, int64_t end, double scale) {
  const int64_t rows = end - begin;
  const int64_t at_once = std::max<int64_t>(1, CUDA_SCORE_BYTES / 4 / p.heads / rows);
  if (rows <= at_once) return segment_attention(qkv, p, begin, end, scale);
  const Handle k = part(qkv, p, 1, begin, end), v = part(qkv, p, 2, begin, end);
  Handle joined = empty_like_shape(qkv, {rows, p.width()});
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(at_once, rows - first);
    const Handle q = part(qkv, p, 0, begin + first, begin + first + count);
    const Handle out = call(op::attention, Arg{q.get()}, Arg{k.get()}, Arg{v.get()}, OptionalArg{nullptr},
                            0.0, false, std::optional<double>{scale}, false);
    const Handle merged = merge_heads(out.get(), p, count);
    copy(view(joined.get(), {count, p.width()}, {p.width(), 1}, first * p.width()).get(), merged.get());
  }
  return joined;
}

// All segments in one launch that holds no scores; null where no such kernel takes this dtype and head width.
Handle cuda_attention(AtenTensorHandle qkv, const Packed& p, const int64_t* edges, int64_t edge_count,
                      AtenTensorHandle device_edges, double scale) {
  const auto* cuda = fused_cuda(qkv, MM_KERNEL_ATTENTION);
  if (!cuda || !device_edges) return Handle();
  const int32_t dtype = dtype_of(qkv);
  const bool flash = dtype != MM_F32 && p.dim % FLASH_DIM_STEP == 0 && p.dim <= FLASH_LARGEST_DIM;
  if (!flash && p.dim % (EFFICIENT_READ_BYTES / (dtype == MM_F32 ? 4 : 2)) != 0) return Handle();
  // FlashAttention takes [rows, heads, dim], the other [1, rows, heads, dim].
  std::vector<int64_t> sizes{1, p.rows, p.heads, p.dim},
      strides{p.rows * 3 * p.width(), 3 * p.width(), p.dim, 1};
  if (flash) {
    sizes.erase(sizes.begin());
    strides.erase(strides.begin());
  }
  Handle parts[3];
  for (int64_t i = 0; i < 3; ++i) parts[i] = view(qkv, sizes, strides, i * p.width());
  MmCudaAttention job{parts[0].get(), parts[1].get(), parts[2].get(), device_edges, 0, scale};
  for (int64_t i = 0; i + 1 < edge_count; ++i) job.longest = std::max(job.longest, edges[i + 1] - edges[i]);
  void* made[5] = {};
  launched(flash ? "flash_attention" : "efficient_attention");
  check((flash ? cuda->flash_attention : cuda->efficient_attention)(&job, made), "attention");
  Handle results[5];
  for (int i = 0; i < 5; ++i) results[i] = Handle(raw(made[i]));
  const auto given = strides_of(results[0].get());
  const Handle rows = view(results[0].get(), {p.rows, p.heads, p.dim},
                           {given.end()[-3], given.end()[-2], given.end()[-1]}, 0);
  return reshape(dense(rows.get()).get(), {p.rows, p.width()});
}

// The same with every step in float32, rounded once at the end. Rows of q do not see each other, so that
// taking some of them at a time bounds memory and changes no bit.
Handle math_attention(AtenTensorHandle qkv, const Packed& p, int64_t begin, int64_t end, double scale) {
  const int64_t rows = end - begin;
  Handle wide[3];
  for (int64_t i = 0; i < 3; ++i) wide[i] = cast(part(qkv, p, i, begin, end).get(), MM_F32);
  Handle joined = empty_like_shape(qkv, {rows, p.width()});
  const auto strides = strides_of(wide[0].get());
  for (int64_t first = 0; first < rows; first += MATH_ROWS) {
    const int64_t count = std::min(MATH_ROWS, rows - first);
    const Handle q = view(wide[0].get(), {1, p.heads, count, p.dim}, strides, first * strides[2]);
    const Handle out =
        call<2>(op::attention_math, Arg{q.get()}, Arg{wide[1].get()}, Arg{wide[2].get()},
                OptionalArg{nullptr}, 0.0, false, OptionalArg{nullptr}, std::optional<double>{scale}, false);
    const Handle rounded = merge_heads(out.get(), p, count);
    const Handle place = view(joined.get(), {count, p.width()}, {p.width(), 1}, first * p.width());
    copy(place.get(), rounded.get());
  }
  return joined;
}

// x * cos + turned(x) * sin in float32, for one of q and k, composed of plain operators and written back.
void rotate_plain(AtenTensorHandle qkv, const Packed& p, int64_t which, AtenTensorHandle cos,
                  AtenTensorHandle sin, AtenTensorHandle norm, double eps, bool neighbours) {
  const int64_t half = p.dim / 2, row = 3 * p.width();
  const Handle x = view(qkv, {p.rows, p.heads, p.dim}, {row, p.dim, 1}, which * p.width());
  Handle source = dense(x.get());
  if (norm) source = rms_norm(source.get(), norm, eps);
  const Handle wide = cast(source.get(), MM_F32);
  const int64_t step = neighbours ? 2 : 1, other = neighbours ? 1 : half;
  const std::vector<int64_t> sizes{p.rows, p.heads, half}, strides{p.width(), p.dim, step};
  const Handle a = view(wide.get(), sizes, strides, 0), b = view(wide.get(), sizes, strides, other);
  const Handle c = view(cos, {p.rows, 1, half}, {half, half, 1}, 0);
  const Handle s = view(sin, {p.rows, 1, half}, {half, half, 1}, 0);
  const Handle minus = call(op::neg, Arg{s.get()});
  const Handle ac = mul(a.get(), c.get()), bs = mul(b.get(), minus.get());
  const Handle bc = mul(b.get(), c.get()), as = mul(a.get(), s.get());
  const Handle first = add(ac.get(), bs.get()), second = add(bc.get(), as.get());
  const std::vector<int64_t> target{row, p.dim, step};
  const Handle to_first = view(qkv, sizes, target, which * p.width());
  const Handle to_second = view(qkv, sizes, target, which * p.width() + other);
  copy(to_first.get(), first.get());
  copy(to_second.get(), second.get());
}

}  // namespace

int32_t op_rotary(MmTensor qkv, MmTensor cos, MmTensor sin, MmTensor q_norm, MmTensor k_norm, double eps,
                  int32_t pairs) {
  return guarded([&] {
    const Packed p = packed_of(raw(qkv));
    const bool neighbours = pairs == MM_NEIGHBOURS;
    const auto table = sizes_of(raw(cos));
    if (table != sizes_of(raw(sin)) || table != std::vector<int64_t>{p.rows, p.dim / 2}) {
      throw Failure{"rotary: cos and sin must be float32 [rows, dim / 2]"};
    }
    if (fused_cpu(raw(qkv))) {
      const Rotary job{data_of(raw(qkv)),
                       static_cast<const float*>(data_of(raw(cos))),
                       static_cast<const float*>(data_of(raw(sin))),
                       q_norm ? data_of(raw(q_norm)) : nullptr,
                       k_norm ? data_of(raw(k_norm)) : nullptr,
                       p.heads,
                       p.dim,
                       static_cast<float>(eps),
                       neighbours};
      auto* run = kernels().rotary[dtype_of(raw(qkv))];
      parallel(p.rows, 1 + ROTARY_GRAIN_ELEMENTS / p.width(),
               [&](int64_t begin, int64_t end) { run(job, Rows{begin, end}); });
      return;
    }
    if (const auto* cuda = fused_cuda(raw(qkv), MM_KERNEL_ROTARY)) {
      const MmCudaRotary job{data_of(raw(qkv)),
                             static_cast<const float*>(data_of(raw(cos))),
                             static_cast<const float*>(data_of(raw(sin))),
                             q_norm ? data_of(raw(q_norm)) : nullptr,
                             k_norm ? data_of(raw(k_norm)) : nullptr,
                             p.rows,
                             p.heads,
                             p.dim,
                             static_cast<float>(eps),
                             neighbours};
      launched("rotary");
      if (p.rows > 0) check_cuda(cuda->rotary(&job, dtype_of(raw(qkv)), device_index(raw(qkv))));
      return;
    }
    rotate_plain(raw(qkv), p, 0, raw(cos), raw(sin), raw(q_norm), eps, neighbours);
    rotate_plain(raw(qkv), p, 1, raw(cos), raw(sin), raw(k_norm), eps, neighbours);
  });
}

int32_t op_attention(MmTensor qkv, const int64_t* edges, int64_t edge_count, MmTensor device_edges,
                     double scale, int32_t math, MmTensor* out) {
  return guarded([&] {
    const Packed p = packed_of(raw(qkv));
    const auto attend = math ? math_attention : on_cuda(raw(qkv)) ? bounded_attention : segment_attention;
    if (edge_count < 2 || edges[0] != 0 || edges[edge_count - 1] != p.rows) {
      throw Failure{"attention: segment edges must run from 0 to the number of rows"};
    }
    if (!math) {
      if (Handle all = cuda_attention(raw(qkv), p, edges, edge_count, raw(device_edges), scale); all.get()) {
        *out = all.give();
        return;
      }
    }
    if (edge_count == 2) {
      *out = attend(raw(qkv), p, 0, p.rows, scale).give();
      return;
    }
    Handle joined = empty_like_shape(raw(qkv), {p.rows, p.width()});
    for (int64_t i = 0; i + 1 < edge_count; ++i) {
      if (edges[i + 1] <= edges[i]) throw Failure{"attention: segment edges must increase"};
      const Handle one = attend(raw(qkv), p, edges[i], edges[i + 1], scale);
      const Handle place =
          view(joined.get(), {edges[i + 1] - edges[i], p.width()}, {p.width(), 1}, edges[i] * p.width());
      copy(place.get(), one.get());
    }
    *out = joined.give();
  });
}

}  // namespace mm
