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
  const Handle dense = call(op::contiguous, Arg{ordered.get()}, torch::headeronly::MemoryFormat::Contiguous);
  return reshape(dense.get(), {rows, p.width()});
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
    check(aoti_torch_copy_(place.get(), rounded.get(), 0), "attention");
  }
  return joined;
}

// x * cos + turned(x) * sin in float32, for one of q and k, composed of plain operators and written back.
void rotate_plain(AtenTensorHandle qkv, const Packed& p, int64_t which, AtenTensorHandle cos,
                  AtenTensorHandle sin, AtenTensorHandle norm, double eps, bool neighbours) {
  const int64_t half = p.dim / 2, row = 3 * p.width();
  const Handle x = view(qkv, {p.rows, p.heads, p.dim}, {row, p.dim, 1}, which * p.width());
  Handle source = call(op::contiguous, Arg{x.get()}, torch::headeronly::MemoryFormat::Contiguous);
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
  check(aoti_torch_copy_(to_first.get(), first.get(), 0), "rotary");
  check(aoti_torch_copy_(to_second.get(), second.get(), 0), "rotary");
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
    rotate_plain(raw(qkv), p, 0, raw(cos), raw(sin), raw(q_norm), eps, neighbours);
    rotate_plain(raw(qkv), p, 1, raw(cos), raw(sin), raw(k_norm), eps, neighbours);
  });
}

int32_t op_attention(MmTensor qkv, const int64_t* edges, int64_t edge_count, double scale, int32_t math,
                     MmTensor* out) {
  return guarded([&] {
    const Packed p = packed_of(raw(qkv));
    const auto attend = math ? math_attention : segment_attention;
    if (edge_count < 2 || edges[0] != 0 || edges[edge_count - 1] != p.rows) {
      throw Failure{"attention: segment edges must run from 0 to the number of rows"};
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
      check(aoti_torch_copy_(place.get(), one.get(), 0), "attention");
    }
    *out = joined.give();
  });
}

}  // namespace mm
