// How a product is cut into tasks for the cores of a machine: a function of its shape alone, so that no number
// of threads changes a bit. Pure.
#pragma once
#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace trainctl::kernels::cpu {

/// [m, k] times [k, n], m, n, k > 0. How the operands lie in memory decides which panels are fast.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  bool left_transposed = false, right_transposed = false;
  auto operator<=>(const ProductShape&) const = default;
};

/// Panels of rows x cols, each the sum of parts of `depth` of the sums' k, in order. A part of a panel is a
/// task. Panels at the bottom and at the right, and last parts, may be smaller.
struct ProductCut {
  ProductShape of;
  int64_t rows = 0, cols = 0, depth = 0;
  int64_t down() const { return (of.m + rows - 1) / rows; }
  int64_t across() const { return (of.n + cols - 1) / cols; }
  int64_t parts() const { return (of.k + depth - 1) / depth; }
  int64_t tasks() const { return down() * across() * parts(); }
  int64_t rows_at(int64_t i) const { return std::min(rows, of.m - i * rows); }
  int64_t cols_at(int64_t j) const { return std::min(cols, of.n - j * cols); }
  int64_t depth_at(int64_t part) const { return std::min(depth, of.k - part * depth); }
  /// The partial sums of all panels, in f32.
  size_t partial_bytes() const { return parts() == 1 ? 0 : size_t(tasks() * rows * cols) * sizeof(float); }
};

/// For a product that all threads share: enough tasks for 32 of them, unless they would be too small.
ProductCut cut_product(const ProductShape& shape);

/// For one of many products at once, which are tasks enough: the largest panels, and all of k in each.
ProductCut cut_coarsely(const ProductShape& shape);

/// The most tasks of a product that is cut in k.
constexpr int64_t kMostPartialTasks = 64;

}  // namespace trainctl::kernels::cpu
