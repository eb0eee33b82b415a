// Placement: what the ranks along one axis hold of a tensor. The rules of each op, as a type checker has
// them: a product of a cut weight is a part of a sum, a norm must not read one, a sum must not be made
// twice. Pure. Source of the idea: torchtitan's spmd_types, which found twelve wrong sums in Megatron-LM
// (issue 7452 there).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/words.h"

namespace trainctl::parallel {

enum class Placement : uint8_t {
  none,         ///< holds nothing yet, or zeros: as any other
  replicated,   ///< the same on each rank
  varying,      ///< each rank's own, of its own tokens
  partial,      ///< the sum over the ranks is meant
  cut_rows,     ///< each rank holds other rows of the whole
  cut_cols,     ///< each rank holds other columns of the whole
  shared_cols,  ///< each rank holds columns that its neighbours hold, too
  shared_part,  ///< of such columns the sum over the ranks that hold them is meant
  at_experts,   ///< each rank holds other experts, and rows of all ranks' tokens that have chosen these
  sent          ///< has gone to other ranks, and is read no more
};

}  // namespace trainctl::parallel

template <>
struct trainctl::Words<trainctl::parallel::Placement> {
  static constexpr std::string_view list[] = {"nothing",
                                              "the same on each rank",
                                              "each rank's own",
                                              "a part of a sum",
                                              "some of the rows",
                                              "some of the columns",
                                              "columns that neighbours hold, too",
                                              "a part of a sum over the ranks that hold the same columns",
                                              "of the ranks of its experts",
                                              "sent away"};
};

namespace trainctl::parallel::placements {

// Each returns the placement of the result, or throws Misplaced.

struct Misplaced {
  std::string what;
};

/// y = x w^T. `w` [N, K]: replicated, cut_rows (its outputs) or cut_cols (its inputs).
Placement product(Placement x, Placement w);
/// dx = dy w.
Placement input_gradient(Placement dy, Placement w);
/// dw = dy^T x, and the sum of dy's rows, where x is replicated or has dy's rows.
Placement weight_gradient(Placement dy, Placement x);
/// a + b, or an op that treats both alike and is linear in neither: they must agree.
Placement alike(std::string_view what, Placement a, Placement b);
/// f(x) that is not linear: of a part of a sum it is not a part of the result's sum.
Placement nonlinear(std::string_view what, Placement x);
/// The gradient of f's input, which is linear in that of its output dy, at the input x: that of columns which
/// several ranks hold is a part of a sum over them.
Placement gradient_through(std::string_view what, Placement dy, Placement x);
/// The sum over the rows of x, such as the gradient of a norm's weight.
Placement row_sum(Placement x);
/// A vector that is added to the rows of y; rank: of this rank along the axis.
void added(std::string_view what, Placement vector, Placement y, int rank);

}  // namespace trainctl::parallel::placements
