#include "runtime/model/placement_groups.h"

#include <fmt/format.h>

namespace trainctl {

using kernels::Matrix;
using parallel::Placement;
using namespace parallel::placements;
using enum parallel::Placement;

PlacementExchange::PlacementExchange(Placements& placements, Moves moves, int rank, int size)
    : placements_(placements),
      moves_(moves),
      rank_(rank),
      size_(size),
      name_(moves == Moves::context   ? "context"
            : moves == Moves::experts ? "expert"
                                      : "other") {}

Placement PlacementExchange::arriving(Placement in, bool to_all) {
  if (moves_ == Moves::others) return in;
  if (moves_ == Moves::context && to_all && in == cut_rows) return replicated;
  if (moves_ == Moves::context && !to_all && in == partial) return cut_rows;
  if (moves_ == Moves::experts && (in == varying || in == cut_rows)) {
    home_ = in;
    return at_experts;
  }
  if (moves_ == Moves::experts && in == at_experts) return home_;
  throw Misplaced{
      fmt::format("the {} group {} what is {}", name_, to_all ? "gathers" : "exchanges", word_of(in))};
}

parallel::Ticket PlacementExchange::exchange(std::span<const parallel::Transfer> transfers,
                                             kernels::Stream*) {
  Placement in = none;
  const void* first = nullptr;
  bool to_all = true;  // the same to each rank
  for (const parallel::Transfer& t : transfers) {
    if (t.kind != parallel::Transfer::send) continue;
    in = alike("what a group exchanges", in, placements_.at(t.data));
    to_all &= !first || first == t.data;
    first = t.data;
  }
  const Placement arrives = arriving(in, to_all);
  for (const parallel::Transfer& t : transfers)
    if (t.kind == parallel::Transfer::send && !to_all) placements_.fill(t.data, t.bytes, sent);
  for (const parallel::Transfer& t : transfers)
    if (t.kind == parallel::Transfer::receive) placements_.fill(t.data, t.bytes, arrives);
  return parallel::Ticket(std::make_unique<parallel::Ticket::State>());
}

Matrix PlacementTensorParallel::enter(Matrix local, Matrix full) {
  if (!cuts_rows()) return local;
  gather(local, full);
  return full;
}

void PlacementTensorParallel::gather(Matrix own, Matrix all) {
  const Placement in = placements_.of(own);
  if (!is_tensor_axis_) return placements_.set(all, in);
  if (in != cut_rows && in != cut_cols)
    throw Misplaced{fmt::format("the tensor group gathers what is {}", word_of(in))};
  placements_.set(all, replicated);
}

void PlacementTensorParallel::gather_near(Matrix all, int ranks) {
  const Placement in = placements_.of(own_part(all, ranks));
  if (!is_tensor_axis_) return placements_.set(all, in);
  if (in != cut_cols)
    throw Misplaced{fmt::format("neighbours of the tensor group gather what is {}", word_of(in))};
  placements_.set(all, shared_cols);
}

void PlacementTensorParallel::add_near(Matrix parts, Matrix, int ranks) {
  const Placement in = placements_.of(parts);
  if (is_tensor_axis_ && in != shared_part)
    throw Misplaced{fmt::format("neighbours of the tensor group add what is {}", word_of(in))};
  placements_.set(own_part(parts, ranks), is_tensor_axis_ ? cut_cols : in);
}

void PlacementTensorParallel::complete(std::span<const Matrix> lists) {
  Placement in = none;
  for (const Matrix& list : lists)
    if (const Part own = part_of(list.rows, rank()); own.rows > 0)
      in =
          alike("parts of lists that are completed", in, placements_.of(list.row_range(own.first, own.rows)));
  if (is_tensor_axis_ && size() > 1 && in != none && in != replicated)
    throw Misplaced{fmt::format("the tensor group completes lists that are {}", word_of(in))};
  for (const Matrix& list : lists)
    if (list.rows > 0) placements_.set(list, in);
}

Matrix PlacementTensorParallel::own_rows(Matrix whole) {
  const Matrix own = TensorParallel::own_rows(whole);
  if (is_tensor_axis_ && placements_.of(whole) == replicated) placements_.set_view(own, cut_rows);
  return own;
}

void PlacementTensorParallel::clear_others(Matrix whole) {
  const Placement in = placements_.of(TensorParallel::own_rows(whole));
  if (is_tensor_axis_ && in != cut_rows)
    throw Misplaced{fmt::format("the tensor group takes for its own rows what is {}", word_of(in))};
  placements_.set(whole, is_tensor_axis_ ? partial : in);
}

void PlacementTensorParallel::add(Matrix sums) {
  const Placement in = placements_.of(sums);
  if (!is_tensor_axis_ || size() == 1) return;
  if (in != partial) throw Misplaced{fmt::format("the tensor group adds what is {}", word_of(in))};
  placements_.set(sums, replicated);
}

Matrix PlacementTensorParallel::leave(Matrix part, Matrix local) {
  const Placement in = placements_.of(part);
  const Matrix out = size() > 1 && cuts_rows() ? local : part;
  if (!is_tensor_axis_ || size() == 1) {
    placements_.set(out, in);
    return out;
  }
  if (in != partial) throw Misplaced{fmt::format("the tensor group adds what is {}", word_of(in))};
  placements_.set(out, cuts_rows() ? cut_rows : replicated);
  return out;
}

}  // namespace trainctl
