#include "kernels/cpu/product_cut.h"

#include <limits>

#include "kernels/product_memory.h"

namespace trainctl::kernels::cpu {

namespace {

// Of oneDNN's innermost tile.
constexpr int64_t kInnerRows = 16, kInnerCols = 48;

// The largest panels: packing costs a few percent, and what is packed fits a cache (measured on Zen 4).
constexpr int64_t kPanelRows = 512;
constexpr int64_t kPanelCols = 384;
constexpr int64_t kGradientRows = 384;
// A vocabulary's weights and their gradients: larger ones pack less (two AVX2 cores, GPT-2's 50,257 tokens: the
// products 71 -> 73, the gradients 65 -> 73 GFLOP/s).
constexpr int64_t kVocabulary = 16384;
constexpr int64_t kVocabularyPanel = 1536;

/// Panels are cut up to so many times finer each way, to no less than kSmallest, and parts to no less than
/// kLeastDepth.
constexpr int64_t kFiner = 4, kSmallest = 96, kLeastDepth = 384;

// What a task costs in addition to its multiplications, in multiplications: each number of an operand that is
// packed, each partial sum that is written and read again, and its start. Measured on two Sapphire Rapids cores.
constexpr int64_t kPackedLeft = 10, kPackedRight = 12, kPackedRightTransposed = 36;
constexpr int64_t kPartial = 64, kStart = 300000;

/// Cuts n into about `pieces`, as equal as multiples of `tile` allow. The last is never a single row or
/// column: for those oneDNN uses a matrix-vector product, whose sums depend on strides.
int64_t piece(int64_t n, int64_t pieces, int64_t tile) {
  const int64_t even = (n + pieces - 1) / pieces;
  int64_t size = (even + tile - 1) / tile * tile;
  while (size < n && n % size == 1) size += tile;
  return std::min(n, size);
}

int64_t pieces_of(int64_t n, int64_t limit) { return (n + limit - 1) / limit; }

struct Limits {
  int64_t rows, cols;
};
Limits limits_of(const ProductShape& s) {
  return {.rows = !s.left_transposed  ? kPanelRows
                  : s.m < kVocabulary ? kGradientRows
                                      : kVocabularyPanel,
          .cols = s.right_transposed && s.n >= kVocabulary ? kVocabularyPanel : kPanelCols};
}

/// The time of the product with 2, 8, 16 and 32 threads, each over an even share of the work, added up.
int64_t cost_of(const ProductCut& cut) {
  const int64_t area = cut.rows * cut.cols;
  const int64_t packed =
      kPackedLeft * cut.rows + (cut.of.right_transposed ? kPackedRightTransposed : kPackedRight) * cut.cols;
  const int64_t task = (area + packed) * cut.depth + kStart + (cut.parts() > 1 ? kPartial * area : 0);
  int64_t sum = 0;
  for (const int64_t threads : {2, 8, 16, 32}) sum += (cut.tasks() + threads - 1) / threads * threads * task;
  return sum;
}

}  // namespace

ProductCut cut_coarsely(const ProductShape& s) {
  const Limits limits = limits_of(s);
  return {.of = s,
          .rows = piece(s.m, pieces_of(s.m, limits.rows), kInnerRows),
          .cols = piece(s.n, pieces_of(s.n, limits.cols), kInnerCols),
          .depth = s.k};
}

ProductCut cut_product(const ProductShape& s) {
  constexpr int64_t kPlenty = 256;
  const ProductCut coarse = cut_coarsely(s);
  if (coarse.tasks() >= kPlenty) return coarse;
  ProductCut best = coarse;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t d = coarse.down(); d <= kFiner * coarse.down(); ++d) {
    ProductCut cut{.of = s, .rows = piece(s.m, d, kInnerRows)};
    if (cut.rows < kSmallest && d > coarse.down()) break;
    for (int64_t a = coarse.across(); a <= kFiner * coarse.across(); ++a) {
      cut.cols = piece(s.n, a, kInnerCols);
      if (cut.cols < kSmallest && a > coarse.across()) break;
      for (int64_t parts = 1; parts == 1 || d * a * parts <= kMostPartialTasks; ++parts) {
        cut.depth = piece(s.k, parts, kInnerCols);
        if (parts > 1 && (cut.depth < kLeastDepth || cut.parts() != parts)) break;
        if (const int64_t cost = cost_of(cut); cost < least) least = cost, best = cut;
      }
    }
  }
  return best;
}

}  // namespace trainctl::kernels::cpu

namespace trainctl::kernels {

size_t partial_sum_bytes(int64_t rows, int64_t n, int64_t k) {
  using cpu::cut_product;
  return std::max({cut_product({.m = rows, .n = n, .k = k, .right_transposed = true}).partial_bytes(),
                   cut_product({.m = rows, .n = k, .k = n}).partial_bytes(),
                   cut_product({.m = n, .n = k, .k = rows, .left_transposed = true}).partial_bytes()});
}

}  // namespace trainctl::kernels
