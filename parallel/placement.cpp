#include "parallel/placement.h"

#include <fmt/format.h>

namespace trainctl::parallel::placements {
namespace {

using enum Placement;

[[noreturn]] void refuse(std::string what) { throw Misplaced{std::move(what)}; }

/// Of which each rank has all columns.
bool has_whole_rows(Placement p) { return p != cut_cols && p != shared_cols && p != shared_part; }

}  // namespace

Placement product(Placement x, Placement w) {
  if (w == replicated && has_whole_rows(x) && x != at_experts) return x;
  if (w == cut_rows && x == replicated) return cut_cols;
  if (w == cut_cols && x == cut_cols) return partial;
  if (w == at_experts && x == at_experts) return x;
  refuse(fmt::format("a product of {} with a weight of which each rank has {}", word_of(x), word_of(w)));
}

Placement input_gradient(Placement dy, Placement w) {
  if (w == replicated && has_whole_rows(dy) && dy != at_experts) return dy;
  if (w == cut_rows && dy == cut_cols) return partial;
  if (w == cut_cols && dy == replicated) return cut_cols;
  if (w == at_experts && dy == at_experts) return dy;
  refuse(fmt::format("the gradient of a product's input from {} and a weight of which each rank has {}",
                     word_of(dy), word_of(w)));
}

Placement weight_gradient(Placement dy, Placement x) {
  if (dy == cut_cols && x == replicated) return cut_rows;
  if (dy == replicated && x == cut_cols) return cut_cols;
  if (dy == x && dy != partial && has_whole_rows(dy)) return row_sum(dy);
  if ((dy == partial && x == replicated) || (dy == replicated && x == partial)) return partial;
  refuse(fmt::format("the gradient of a weight from outputs' gradients that are {} and inputs that are {}",
                     word_of(dy), word_of(x)));
}

Placement alike(std::string_view what, Placement a, Placement b) {
  if (a == none) return b;
  if (b == none || a == b) return a;
  refuse(fmt::format("{}: {} meets {}", what, word_of(a), word_of(b)));
}

Placement nonlinear(std::string_view what, Placement x) {
  if (x == partial || x == shared_part)
    refuse(fmt::format("{} reads a part of a sum: the sum over the ranks is missing before it", what));
  return x;
}

Placement gradient_through(std::string_view what, Placement dy, Placement x) {
  if (dy == shared_part && x == shared_cols) return dy;
  return alike(what, dy, x);
}

Placement row_sum(Placement x) {
  switch (x) {
    case cut_rows:
    case varying:
    case shared_part: return partial;
    case cut_cols: return cut_rows;  // as a vector
    case none:
    case replicated:
    case shared_cols:
    case at_experts:  // of its own experts
    case sent:
    case partial: break;
  }
  return x;
}

void added(std::string_view what, Placement vector, Placement y, int rank) {
  if (vector == none) return;
  if (y == partial && vector == replicated) {
    if (rank == 0) return;
    refuse(fmt::format("{} is added by each rank to its part of a sum: the sum has it several times", what));
  }
  const bool fits = vector == replicated   ? has_whole_rows(y) && y != at_experts
                    : vector == at_experts ? y == at_experts
                                           : vector == cut_rows && y == cut_cols;
  if (!fits)
    refuse(fmt::format("{} of which each rank has {} is added to {}", what, word_of(vector), word_of(y)));
}

}  // namespace trainctl::parallel::placements
