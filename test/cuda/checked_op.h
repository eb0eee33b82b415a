// What the tests of launchers of ops on matrices share: an op by the reference and by the GPU, whose matrices are contiguous, columns of
// wider ones on 16 bytes, and columns off 16 bytes; poisoned outputs and scratch, several orders of threads.
#pragma once
#include <utility>

#include "launched.h"

namespace trainctl::kernels::test {

using cuda::Queue;

inline constexpr double kInput = -1;  ///< instead of a tolerance: nothing may change
inline constexpr double kExact = 0;

struct Argument {
  Storage content;  ///< without padding
  double tolerance = kInput;
  bool contiguous = false;  ///< whatever the layout
};

enum class Layout { contiguous, aligned_columns, odd_columns };

/// `content` as the columns of a wider matrix of large values.
inline std::pair<Storage, Window> framed_rows(const Storage& content, Layout layout) {
  const int64_t cols = content->cols;
  if (layout == Layout::contiguous) return {content, {0, cols, 0}};
  const Window w = windows(cols)[layout == Layout::aligned_columns ? 0 : 1];
  Storage wide(content->dtype, content->rows, w.width(), 8);
  wide.fill(1e4f);
  for (int64_t r = 0; r < content->rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) wide.set(r, w.first + c, content.get(r, c));
  }
  return {wide, w};
}

/// The window alone.
inline Storage cut_out(const Storage& wide, const Window& w) {
  Storage content(wide->dtype, wide->rows, w.cols, 0);
  for (int64_t r = 0; r < wide->rows; ++r) {
    for (int64_t c = 0; c < w.cols; ++c) content.set(r, c, wide.get(r, w.first + c));
  }
  return content;
}

using Matrices = std::vector<Matrix>;
using ByReference = std::function<void(Backend&, Stream&, const Matrices&)>;
using ByGpu = std::function<void(const Queue&, const Matrices&, void* scratch)>;

struct Check {
  size_t scratch_bytes = 0;
  std::vector<std::pair<size_t, size_t>> same_bits = {};  ///< arguments that must be equal afterwards
  int seeds = 1;
};

/// Runs the op by the reference on the contents, and by the GPU in every layout under every order of threads.
inline void check_op(const std::vector<Argument>& arguments, const ByReference& by_reference,
                     const ByGpu& by_gpu, const Check& check = {}) {
  std::vector<Storage> expected;
  Matrices on_host;
  for (const Argument& a : arguments) expected.push_back(a.content);
  for (const Storage& s : expected) on_host.push_back(s);
  const auto stream = reference().create_stream();
  by_reference(reference(), *stream, on_host);

  std::vector<std::vector<char>> first(arguments.size());
  for (const Layout layout : {Layout::contiguous, Layout::aligned_columns, Layout::odd_columns}) {
    INFO("layout " << int(layout));
    std::vector<std::pair<Storage, Window>> initial;
    for (const Argument& a : arguments)
      initial.push_back(framed_rows(a.content, a.contiguous ? Layout::contiguous : layout));
    each_order(check.seeds, [&](const Queue& queue) {
      OnDevice device(queue);
      Matrices wide, matrices;
      for (const auto& [storage, window] : initial) {
        wide.push_back(device.copy_of(storage));
        matrices.push_back(window(wide.back()));
      }
      by_gpu(queue, matrices, device.poisoned(check.scratch_bytes));
      std::vector<std::vector<char>> bits;
      for (size_t i = 0; i < arguments.size(); ++i) {
        INFO("argument " << i << " [" << matrices[i].rows << ", " << matrices[i].cols << "] "
                         << name_of(matrices[i].dtype));
        const auto& [before, window] = initial[i];
        Storage after = before;
        device.bring_back(wide[i], after);
        bits.push_back(window_bits(window, after));
        if (arguments[i].tolerance > 0) {
          CHECK(relative_error(cut_out(after, window), expected[i]) < arguments[i].tolerance);
        } else {
          CHECK(bits[i] == expected[i].content());
        }
        CHECK(unchanged_around(window, before, after));
        if (first[i].empty()) first[i] = bits[i];
        CHECK(bits[i] == first[i]);
      }
      for (const auto& [a, b] : check.same_bits) CHECK(bits[a] == bits[b]);
    });
  }
}

/// One op: `op_of` makes it of its arguments.
template <typename OpOf>
inline void check_op(const std::vector<Argument>& arguments, OpOf op_of, const Check& check = {}) {
  check_op(
      arguments, [&](Backend& b, Stream& s, const Matrices& m) { b.run(s, op_of(m)); },
      [&](const Queue& q, const Matrices& m, void* scratch) {
        const auto op = op_of(m);
        if constexpr (requires { cuda::scratch_bytes(op); })
          cuda::enqueue(q, op, scratch);
        else
          cuda::enqueue(q, op);
      },
      check);
}

struct Shape {
  int64_t rows, cols;
};
inline const Shape kShapes[] = {{1, 1}, {3, 31}, {65, 64}, {130, 97}, {3, 1000}, {2, 2056}};

inline Argument input(Storage content) { return {std::move(content)}; }
inline Argument poisoned(DType dtype, int64_t rows, int64_t cols, double tolerance) {
  Argument a{Storage(dtype, rows, cols, 0), tolerance};
  a.content.fill(kPoison);
  return a;
}
inline Argument contiguous(Argument a) {
  a.contiguous = true;
  return a;
}

}  // namespace trainctl::kernels::test
