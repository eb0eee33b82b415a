#include <type_traits>

#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

void copy(const Copy& op) {
  if (op.src.dtype == op.dst.dtype) {
    for (int64_t r = 0; r < op.src.rows; ++r) {
      const int64_t element = int64_t(size_of(op.src.dtype));
      std::memcpy(row<char>(op.dst, r * element), row<char>(op.src, r * element), size_t(op.src.cols * element));
    }
    return;
  }
  with_type(op.src.dtype, [&](auto s) {
    with_type(op.dst.dtype, [&](auto d) {
      using S = decltype(s);
      using D = decltype(d);
      for (int64_t r = 0; r < op.src.rows; ++r) {
        const S* from = row<S>(op.src, r);
        D* to = row<D>(op.dst, r);
        for_lanes(op.src.cols, [&](int64_t c, auto lanes) { store(to + c, load(from + c, lanes), lanes); });
      }
    });
  });
}

void add(const Add& op) {
  with_type(op.src.dtype, [&](auto s) {
    with_type(op.dst.dtype, [&](auto d) {
      using S = decltype(s);
      using D = decltype(d);
      for (int64_t r = 0; r < op.src.rows; ++r) {
        const S* from = row<S>(op.src, r);
        D* to = row<D>(op.dst, r);
        for_lanes(op.src.cols,
                  [&](int64_t c, auto lanes) { store(to + c, load(to + c, lanes) + load(from + c, lanes), lanes); });
      }
    });
  });
}

void scaled_copy(const Copy& op, float scale) {
  with_type(op.src.dtype, [&](auto s) {
    with_type(op.dst.dtype, [&](auto d) {
      for (int64_t r = 0; r < op.src.rows; ++r) {
        const auto* from = row<decltype(s)>(op.src, r);
        auto* to = row<decltype(d)>(op.dst, r);
        for_lanes(op.src.cols,
                  [&](int64_t c, auto lanes) { store(to + c, load(from + c, lanes) * scale, lanes); });
      }
    });
  });
}

void add_times(const Add& op, float scale) {
  with_type(op.src.dtype, [&](auto s) {
    with_type(op.dst.dtype, [&](auto d) {
      for (int64_t r = 0; r < op.src.rows; ++r) {
        const auto* from = row<decltype(s)>(op.src, r);
        auto* to = row<decltype(d)>(op.dst, r);
        for_lanes(op.src.cols, [&](int64_t c, auto lanes) {
          store(to + c, load(to + c, lanes) + load(from + c, lanes) * scale, lanes);
        });
      }
    });
  });
}

void combine_rows(const CombineRows& op) {
  with_type(op.out.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t k = op.top_k();
    for (int64_t m = 0; m < op.out.rows; ++m) {
      const auto* rows = op.rows.as<int32_t>() + m * k;
      T* to = row<T>(op.out, m);
      for_lanes(op.out.cols, [&](int64_t c, auto lanes) {
        V sum = splat(0);
        for (int64_t j = 0; j < k; ++j)
          if (rows[j] >= 0) sum = sum + load(row<T>(op.x, rows[j]) + c, lanes);
        store(to + c, sum, lanes);
      });
    }
  });
}

void sum_parts(const PartialSums& sums) {
  with_type(sums.out.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < sums.out.rows; ++r) {
      const float* parts = sums.parts + r * sums.stride;
      T* to = row<T>(sums.out, r);
      for_lanes(sums.out.cols, [&](int64_t c, auto lanes) {
        V sum = load(parts + c, lanes);
        for (int64_t i = 1; i < sums.count; ++i) sum = sum + load(parts + i * sums.part_size + c, lanes);
        store(to + c, sums.accumulate ? load(to + c, lanes) + sum : sum, lanes);
      });
    }
  });
}

void tree_sum(const void* const* inputs, size_t input_count, void* out, DType dtype, int64_t begin, int64_t n) {
  with_type(dtype, [&](auto t) {
    using T = decltype(t);
    for_lanes(n, [&](int64_t c, auto lanes) {
      // A binary counter: level k holds the sum of 2^k neighbours, waiting for the next 2^k.
      V waiting[64];
      int depth = 0;
      for (size_t i = 0; i < input_count; ++i) {
        V carry = load(static_cast<const T*>(inputs[i]) + begin + c, lanes);
        for (size_t bit = i; bit & 1; bit >>= 1) {
          carry = waiting[--depth] + carry;
        }
        waiting[depth++] = carry;
      }
      V total = waiting[--depth];
      while (depth > 0) {
        total = waiting[--depth] + total;
      }
      store(static_cast<T*>(out) + begin + c, total, lanes);
    });
  });
}

void add_rounded(const AddRounded& op) {
  with_type(op.left.dtype, [&](auto s) {
    with_type(op.out.dtype, [&](auto d) {
      using S = decltype(s);
      using D = decltype(d);
      const auto operand = [](const S* p, auto lanes) {
        if constexpr (std::is_same_v<S, float>)
          return rounded_to_bf16(load(p, lanes));
        else
          return load(p, lanes);
      };
      for (int64_t r = 0; r < op.out.rows; ++r) {
        const S *a = row<S>(op.left, r), *b = row<S>(op.right, r);
        D* to = row<D>(op.out, r);
        for_lanes(op.out.cols, [&](int64_t c, auto lanes) {
          store(to + c, operand(a + c, lanes) + operand(b + c, lanes), lanes);
        });
      }
    });
  });
}

void scaled_add(const ScaledAdd& op) {
  with_type(op.x.dtype, [&](auto s) {
    using S = decltype(s);
    for (int64_t r = 0; r < op.out.rows; ++r) {
      const S* x = row<S>(op.x, r);
      float* out = row<float>(op.out, r);
      if (op.beta == 0)
        for_lanes(op.out.cols,
                  [&](int64_t c, auto lanes) { store(out + c, load(x + c, lanes) * op.alpha, lanes); });
      else
        for_lanes(op.out.cols, [&](int64_t c, auto lanes) {
          store(out + c, load(x + c, lanes) * op.alpha + load(out + c, lanes) * op.beta, lanes);
        });
    }
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
