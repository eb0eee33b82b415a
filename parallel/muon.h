// Muon: a matrix moves along its momentum, made orthogonal by a few products. What of it follows from a
// parameter's global shape alone: its parts, their scale, their cost, the memory. Pure.
//
//   M = momentum * M + G;   N = G + momentum * M                               (Nesterov)
//   X = N / |N|, |N| the Frobenius norm;   then, for each step:  A = X^T X (X X^T where X is wide)
//   X = a X + X (b A + c A A)
//   W = (1 - lr * weight_decay) W - lr * scale * X,   lr the step's times the parameter's factor
//
// Everything is f32. A fused weight (q | k | v) is several matrices, one for each of ParamLayout::sections,
// or one for each head where the layout has ParamLayout::head_rows. Source: K. Jordan, Muon
// (kellerjordan.github.io/posts/muon); scale, decay: Moonlight, arXiv:2502.16982.
#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tensor.h"
#include "parallel/layout.h"
#include "runtime/base/words.h"

namespace trainctl::parallel {

/// How long a step is for a matrix of n rows and m columns.
///   match_rms   0.2 sqrt(max(n, m)): an update of AdamW's usual size, so that its learning rate fits
///   spectral    sqrt(max(1, n / m))
enum class MuonScale : uint8_t { match_rms, spectral };
}  // namespace trainctl::parallel
template <>
struct trainctl::Words<trainctl::parallel::MuonScale> {
  static constexpr std::string_view list[] = {"match_rms", "spectral"};
};
namespace trainctl::parallel {

struct MuonOptions {
  int steps = 5;
  MuonScale scale = MuonScale::match_rms;
};

/// Factors of one step.
struct MuonStep {
  float lr = 0, momentum = 0.95f, grad_scale = 1;
};

/// One step of the iteration. The first five are Jordan's, which bring singular values near 1 fast and leave
/// them between about 0.7 and 1.2; later ones (15/8, -10/8, 3/8) bring them to 1.
struct MuonFactors {
  float a = 0, b = 0, c = 0;
};
MuonFactors muon_factors(int step);

/// The rows of the matrices of which a parameter consists, from its first row on.
std::vector<int64_t> muon_sections(const ParamLayout& param);
double muon_scale(MuonScale scale, int64_t rows, int64_t cols);
/// What an update multiplies, in proportion: the sum of n * m * min(n, m) over the sections.
int64_t muon_cost(const ParamLayout& param);

/// The memory of updates, which are made one after another: two matrices of the largest parameter, two of
/// the smaller side of the largest section. Elements.
struct MuonScratch {
  int64_t matrix = 0, gram = 0;
  std::set<std::pair<std::vector<int64_t>, int64_t>> shapes = {};  ///< the sections and columns of each kind
  void add(const ParamLayout& param);
  size_t bytes() const;
  /// The lists of sections whose norms are taken.
  std::vector<kernels::BoxListShape> square_sums() const;
};

}  // namespace trainctl::parallel
