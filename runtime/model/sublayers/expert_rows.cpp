#include "runtime/model/sublayers/expert_rows.h"

#include <chrono>
#include <cmath>

#include "parallel/back_off.h"

namespace trainctl {

using kernels::Matrix;

namespace {

/// A matrix of `rows` rows as one column, or one row.
Matrix column(const Matrix& m) { return kernels::matrix(m.data, m.dtype, m.count(), 1); }

/// i32 of Life::host.
int32_t* numbers(const Matrix& m) { return m.as<int32_t>(); }

size_t bytes_of(const Matrix& m) { return size_t(m.count()) * size_of(m.dtype); }

}  // namespace

void ExpertRows::declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n,
                         const Dispatch& dispatch, int64_t width) {
  const bool tokens = dispatch.sends_tokens(s.expert_ranks);
  const int64_t blocks = s.cut.blocks_here(), sources = blocks * s.expert_ranks, experts = dispatch.experts,
                rows = own_rows(s, dispatch), offsets = experts + 1 + (tokens ? s.expert_ranks + 1 : 0),
                of_source = tokens_of_source(s);
  list.push_back({n.offsets, Life::activation, DType::i32, blocks, offsets});
  list.push_back({n.slots, Life::activation, DType::i32, 1, rows});
  list.push_back({n.rows, Life::activation, DType::i32, 1, blocks * of_source * dispatch.top_k});
  if (s.expert_ranks == 1) return;
  const int64_t here = most_rows(s, dispatch);
  list.push_back({n.offsets_of_sources, Life::scratch, DType::i32, sources, offsets});
  list.push_back({n.offsets_here, Life::activation, DType::i32, sources, experts / s.expert_ranks + 1});
  list.push_back({n.on_host, Life::host, DType::i32, sources, offsets});
  list.push_back({n.here_on_host, Life::host, DType::i32, sources, experts / s.expert_ranks + 1});
  list.push_back({n.row_weights, Life::scratch, DType::f32, rows, 1});
  list.push_back({n.weights_here, Life::activation, DType::f32, here, 1});
  list.push_back({n.weight_gradients_here, Life::scratch, DType::f32, here, 1});
  if (!tokens) return;
  list.push_back(
      {n.tokens, Life::activation, DType::i32, 1, blocks * dispatch.tokens_to(of_source, s.expert_ranks)});
  list.push_back({n.places, Life::activation, DType::i32, 1, rows});
  list.push_back({n.places_here, Life::activation, DType::i32, here, 1});
  list.push_back(
      {n.arrived, Life::scratch, s.compute, sources * dispatch.tokens_at(of_source, s.expert_ranks), width});
}

ExpertRows::ExpertRows(const LayerContext& c, const Numbers& n, const Dispatch& dispatch)
    : n_(n),
      ranks_{c.experts},
      blocks_(c.shape.cut.blocks_here()),
      parts_(c.shape.token_parts),
      dispatch_(dispatch) {
  ENSURE(dispatch.experts % ranks_.size() == 0 && ranks_.size() == c.shape.expert_ranks,
         "{} experts on {} ranks", dispatch.experts, ranks_.size());
  if (ranks_.size() > 1 && !c.backend.is_host()) counted_ = c.backend.create_event();
}

void ExpertRows::arrange(const LayerContext& c, Tensors& t, Matrix weights, bool again) const {
  // Behind a cache of keys there are fewer tokens than in a sequence.
  const int64_t tokens = t[size_t(n_.ids)].rows / blocks_ / parts_;
  const auto shorten = [&](int number, int64_t of_block) {
    t[size_t(number)] = t[size_t(number)].columns(0, blocks_ * of_block);
  };
  shorten(n_.slots, dispatch_.rows(tokens));
  shorten(n_.rows, tokens * dispatch_.top_k);
  if (sends_tokens()) {
    shorten(n_.places, dispatch_.rows(tokens));
    shorten(n_.tokens, dispatch_.tokens_to(tokens, ranks_.size()));
  }
  order(c, t, weights);
  if (ranks_.size() == 1) return;
  if (!again) exchange_counts(c, t);
  const Matrix here = t[size_t(n_.here_on_host)];
  c.backend.copy_to_device(c.stream, t[size_t(n_.offsets_here)].data, here.data, bytes_of(here));
}

/// Own rows in the order of experts, and the tokens of each rank.
void ExpertRows::order(const LayerContext& c, const Tensors& t, Matrix weights) const {
  const Matrix ids = t[size_t(n_.ids)];
  const int64_t slots = slots_of_block(t), rows = rows_of_block(t);
  for (int block = 0; block < blocks_; ++block) {
    const Matrix offsets = t[size_t(n_.offsets)].row_range(block, 1),
                 of_experts = offsets.columns(0, dispatch_.experts + 1),
                 row_of_slot = t[size_t(n_.rows)].columns(block * slots, slots);
    kernels::SortByExpert op{.ids = own(c, ids, block),
                             .offsets = of_experts,
                             .slots = t[size_t(n_.slots)].columns(block * rows, rows),
                             .rows = row_of_slot,
                             .capacity = c.trains ? dispatch_.capacity : dispatch_.sequence_capacity,
                             .groups = c.trains ? 1 : dispatch_.sequences};
    if (dispatch_.capacity > 0 && dispatch_.by_weight) op.weights = own(c, weights, block);
    c.backend.run(c.stream, op);
    if (!sends_tokens()) continue;
    const int64_t sent = tokens_of_block(t);
    c.backend.run(c.stream,
                  kernels::TokensOfRanks{.rows = row_of_slot,
                                         .offsets = of_experts,
                                         .firsts = offsets.columns(of_experts.cols, ranks_.size() + 1),
                                         .tokens = t[size_t(n_.tokens)].columns(block * sent, sent),
                                         .places = t[size_t(n_.places)].columns(block * rows, rows),
                                         .top_k = dispatch_.top_k});
  }
}

/// Every rank learns how many rows of each source each expert has.
void ExpertRows::exchange_counts(const LayerContext& c, Tensors& t) const {
  const Matrix own = t[size_t(n_.offsets)], all = t[size_t(n_.offsets_of_sources)],
               on_host = t[size_t(n_.on_host)];
  parallel::all_gather(*ranks_.comm, c.stream, own.data, all.data, bytes_of(own));
  if (!c.backend.computes() || (c.rehearses && *c.rehearses)) {
    assume_equal(t);
  } else {
    c.backend.copy_to_host(c.stream, on_host.data, all.data, bytes_of(on_host));
    if (counted_) await_counts(c);
  }
  const int64_t first = ranks_.rank() * experts_here(), rows = rows_of_block(t);
  for (int source = 0; source < sources(); ++source) {
    const int32_t* const from = numbers(on_host.row_range(source, 1));
    int32_t* const to = numbers(t[size_t(n_.here_on_host)].row_range(source, 1));
    const int32_t all = from[dispatch_.experts];
    ENSURE(from[0] == 0 && (may_drop() ? all >= 0 && all <= rows : all == rows),
           "{}: rows {} to {} of source {} instead of {}", ranks_.comm->name(), from[0], all, source, rows);
    for (int64_t e = 0; e <= experts_here(); ++e) to[e] = from[first + e] - from[first];
  }
}

/// Exchanges with lost peers end, at their deadline, with anything in the memory that they fill.
void ExpertRows::await_counts(const LayerContext& c) const {
  constexpr std::chrono::microseconds kLate{20};  // the device has nothing to do until the host goes on
  c.stream.record(*counted_);
  for (parallel::BackOff back_off(kLate); !counted_->reached(); back_off.pause())
    if (c.check_exchanges) c.check_exchanges();
  if (c.check_exchanges) c.check_exchanges();
}

/// Where nothing is exchanged: as if all experts had equally many rows, and tokens chose each by chance.
void ExpertRows::assume_equal(Tensors& t) const {
  const int64_t rows = rows_of_block(t), experts = dispatch_.experts, ranks = ranks_.size();
  const double tokens = double(slots_of_block(t) / dispatch_.top_k);
  const double of_rank = sends_tokens() ? tokens * dispatch_.share_of_tokens(int64_t(tokens), int(ranks)) : 0;
  for (int source = 0; source < sources(); ++source) {
    int32_t* const to = numbers(t[size_t(n_.on_host)].row_range(source, 1));
    for (int64_t e = 0; e <= experts; ++e) to[e] = int32_t(rows * e / experts);
    if (!sends_tokens()) continue;
    for (int64_t d = 0; d <= ranks; ++d) to[experts + 1 + d] = int32_t(std::llround(of_rank * double(d)));
  }
}

/// How many rows of a source are of the experts of rank `rank`, or how many of its tokens have some.
int64_t ExpertRows::sent(const Tensors& t, int source, int rank, Sent what) const {
  const int32_t* const offsets = numbers(t[size_t(n_.on_host)].row_range(source, 1));
  if (what == Sent::tokens) {
    const int32_t* const firsts = offsets + dispatch_.experts + 1;
    return firsts[rank + 1] - firsts[rank];
  }
  return offsets[(rank + 1) * experts_here()] - offsets[rank * experts_here()];
}

std::vector<ExpertRows::Source> ExpertRows::sources_here(const Tensors& t) const {
  std::vector<Source> list;
  int64_t first = 0;
  for (int i = 0; i < sources(); ++i) {
    const bool alone = ranks_.size() == 1;
    const int64_t count = alone ? rows_of_block(t) : sent(t, i, ranks_.rank());
    list.push_back({first, count, t[size_t(alone ? n_.offsets : n_.offsets_here)].row_range(i, 1)});
    first += count;
  }
  return list;
}

RowsOfExperts ExpertRows::rows_of(const LayerContext& c, int source, const Source& s) const {
  const RowsPlace::Peer peer{c.context_rank(), c.tp.rank(), parts_, source / blocks_ - ranks_.rank()};
  return {s.offsets, ranks_.rank() * experts_here(), c.rows.of_source(c.shape.cut, peer, source % blocks_)};
}

std::vector<ExpertRows::Turn> ExpertRows::turns(LanePlace at) const {
  const int lanes = sources() / parts_;
  std::vector<Turn> list;
  for (int lane = 0; lane < lanes; ++lane)
    for (int part = 0; part < parts_; ++part)
      list.push_back({.source = (lane / blocks_ * parts_ + part) * blocks_ + lane % blocks_,
                      .at = {at.lane / blocks_ * lanes + lane, at.first && part == 0},
                      .last = part == parts_ - 1});
  return list;
}

Matrix ExpertRows::own(const LayerContext& c, Matrix of_tokens, int block) const {
  const int64_t rows = of_tokens.rows / blocks_;
  const Matrix of_block = of_tokens.row_range(block * rows, rows);
  return parts_ > 1 ? c.tp.own_rows(of_block) : of_block;
}

void ExpertRows::clear_others(const LayerContext& c, Matrix of_tokens) const {
  if (parts_ == 1) return;
  const int64_t rows = of_tokens.rows / blocks_;
  for (int block = 0; block < blocks_; ++block) c.tp.clear_others(of_tokens.row_range(block * rows, rows));
}

Matrix ExpertRows::here(const Tensors& t, Matrix most) const {
  const Source last = sources_here(t).back();
  return most.row_range(0, last.first + last.count);
}

/// From home to the ranks of experts, or back.
void ExpertRows::add_transfers(const LayerContext& c, const Tensors& t, const Moved& moved, int first_tag,
                               std::vector<parallel::Transfer>& transfers) const {
  const Matrix &home = moved.home, &here = moved.here;
  ENSURE(home.contiguous() && here.contiguous());
  const size_t row = size_t(home.cols) * size_of(home.dtype);
  const auto of_home = moved.back ? parallel::Transfer::receive : parallel::Transfer::send;
  const auto of_here = moved.back ? parallel::Transfer::send : parallel::Transfer::receive;
  const auto add = [&](parallel::Transfer::Kind kind, int peer, const Matrix& m, int64_t first, int64_t count,
                       int block) {
    if (count > 0)
      transfers.push_back(
          {kind, peer, m.row_range(first, count).data, size_t(count) * row, first_tag + block});
  };
  int64_t at_here = 0;
  for (int block = 0; block < blocks_; ++block) {
    int64_t at_home = block * (moved.what == Sent::rows ? rows_of_block(t) : tokens_of_block(t));
    for (int peer = 0; peer < ranks_.size(); ++peer) {
      const int64_t count = sent(t, ranks_.rank() * blocks_ + block, peer, moved.what);
      const Part part = part_of(c, count, peer, moved.what);
      add(of_home, peer, home, at_home + part.first, part.rows, block);
      at_home += count;
    }
  }
  for (int source = 0; source < sources(); ++source) {
    const int64_t count = sent(t, source, ranks_.rank(), moved.what);
    const Part part = part_of(c, count, source / blocks_, moved.what);
    add(of_here, source / blocks_, here, at_here + part.first, part.rows, source % blocks_);
    at_here += count;
  }
}

/// A wait at once is cheaper where nothing is to be done in the meantime.
void ExpertRows::exchange(const LayerContext& c, const std::vector<parallel::Transfer>& transfers,
                          const char* what, const Meanwhile& meanwhile) const {
  if (!meanwhile) {
    if (!transfers.empty()) ranks_.comm->exchange_and_wait(transfers, what, c.stream);
    return;
  }
  parallel::Ticket ticket;
  if (!transfers.empty()) ticket = ranks_.comm->exchange(transfers, &c.stream);
  meanwhile();
  if (ticket) ranks_.comm->wait(ticket, what, c.stream);
}

/// home: the rows of tokens in the order of own rows.
void ExpertRows::gather(const LayerContext& c, const Tensors& t, Matrix of_tokens, Matrix home) const {
  const int64_t rows = rows_of_block(t);
  for (int block = 0; block < blocks_; ++block) {
    const Matrix x = own(c, of_tokens, block);
    c.backend.run(c.stream, kernels::GatherRows{.x = x,
                                                .slots = t[size_t(n_.slots)].columns(block * rows, rows),
                                                .out = home.row_range(block * rows, rows),
                                                .top_k = slots_of_block(t) / x.rows});
  }
}

/// Tensor ranks have the same tokens: each has got its part of those of other ranks, and gives it to the
/// others.
void ExpertRows::complete_tokens(const LayerContext& c, const Tensors& t) const {
  std::vector<Matrix> lists;
  int64_t first = 0;
  for (int source = 0; source < sources(); ++source) {
    const int64_t tokens = sent(t, source, ranks_.rank(), Sent::tokens);
    if (source / blocks_ != ranks_.rank()) lists.push_back(t[size_t(n_.arrived)].row_range(first, tokens));
    first += tokens;
  }
  c.tp.complete(lists);
}

/// The tokens that have arrived become the rows here.
void ExpertRows::expand(const LayerContext& c, const Tensors& t, Matrix here) const {
  const Matrix arrived = t[size_t(n_.arrived)], places = t[size_t(n_.places_here)];
  int source = 0;
  int64_t first = 0;
  for (const Source& s : sources_here(t)) {
    const int64_t tokens = sent(t, source++, ranks_.rank(), Sent::tokens);
    const Matrix place = places.row_range(s.first, s.count);
    c.backend.run(c.stream, kernels::GatherRows{.x = arrived.row_range(first, tokens),
                                                .slots = kernels::matrix(place.data, DType::i32, 1, s.count),
                                                .out = here.row_range(s.first, s.count)});
    first += tokens;
  }
}

Matrix ExpertRows::send(const LayerContext& c, Tensors& t, Matrix of_tokens, Matrix home, Matrix here,
                        const Meanwhile& meanwhile) const {
  std::vector<parallel::Transfer> transfers;
  if (sends_tokens()) {
    const int64_t sent = tokens_of_block(t);
    for (int block = 0; block < blocks_; ++block)
      c.backend.run(c.stream, kernels::GatherRows{.x = own(c, of_tokens, block),
                                                  .slots = t[size_t(n_.tokens)].columns(block * sent, sent),
                                                  .out = home.row_range(block * sent, sent)});
    add_transfers(c, t, {home, t[size_t(n_.arrived)], Sent::tokens}, 0, transfers);
  } else {
    gather(c, t, of_tokens, home);
    if (ranks_.size() > 1) add_transfers(c, t, {home, this->here(t, here)}, 0, transfers);
  }
  exchange(c, transfers, "send rows to their experts", meanwhile);
  if (ranks_.size() == 1) return home;
  here = this->here(t, here);
  if (sends_tokens()) {
    if (c.tp.size() > 1 && parts_ == 1) complete_tokens(c, t);
    expand(c, t, here);
  }
  return here;
}

void ExpertRows::give_back(const LayerContext& c, Tensors& t, Matrix here, Matrix home) const {
  if (ranks_.size() == 1) return;
  std::vector<parallel::Transfer> transfers;
  add_transfers(c, t, {home, here, Sent::rows, true}, 0, transfers);
  exchange(c, transfers, "give rows of experts back");
}

void ExpertRows::combine(const LayerContext& c, Tensors& t, Matrix home, Matrix out) const {
  const int64_t rows = rows_of_block(t), slots = slots_of_block(t);
  for (int block = 0; block < blocks_; ++block)
    c.backend.run(c.stream, kernels::CombineRows{.x = home.row_range(block * rows, rows),
                                                 .rows = t[size_t(n_.rows)].columns(block * slots, slots),
                                                 .out = own(c, out, block)});
  clear_others(c, out);
}

void ExpertRows::send_weights(const LayerContext& c, Tensors& t, Matrix weights) const {
  if (ranks_.size() == 1) return;
  const Matrix home = t[size_t(n_.row_weights)];
  gather(c, t, column(weights), home);
  std::vector<parallel::Transfer> transfers;
  add_transfers(c, t, {home, here(t, t[size_t(n_.weights_here)])}, 0, transfers);
  if (sends_tokens())
    add_transfers(c, t, {column(t[size_t(n_.places)]), here(t, t[size_t(n_.places_here)])}, blocks_,
                  transfers);
  exchange(c, transfers, "send weights of rows to their experts");
}

ExpertRows::Weights ExpertRows::weights_of(const Tensors& t, int source, const Source& s, Matrix at_home,
                                           int here) const {
  if (ranks_.size() == 1) {
    const int64_t tokens = at_home.rows / blocks_;
    return {at_home.row_range(source * tokens, tokens), t[size_t(n_.slots)].columns(s.first, s.count)};
  }
  return {t[size_t(here)].row_range(s.first, s.count), {}};
}

/// Weights that have come lie in the order of rows, of all sources alike.
std::vector<ExpertRows::Source> ExpertRows::scaled_at_once(const Tensors& t) const {
  const std::vector<Source> all = sources_here(t);
  if (ranks_.size() == 1) return all;
  return {{0, all.back().first + all.back().count, {}}};
}

void ExpertRows::scale(const LayerContext& c, Tensors& t, Matrix weights, Matrix x, Matrix y) const {
  int source = 0;
  for (const Source& s : scaled_at_once(t)) {
    const Weights w = weights_of(t, source++, s, weights, n_.weights_here);
    c.backend.run(c.stream, kernels::ScaleRows{.x = x.row_range(s.first, s.count),
                                               .weights = w.of,
                                               .slots = w.slots,
                                               .y = y.row_range(s.first, s.count)});
  }
}

void ExpertRows::scale_backward(const LayerContext& c, Tensors& t, Matrix weights, Matrix x, Matrix dy,
                                Matrix dweights) const {
  int source = 0;
  for (const Source& s : scaled_at_once(t)) {
    const Weights w = weights_of(t, source, s, weights, n_.weights_here);
    const Matrix rows = dy.row_range(s.first, s.count);
    c.backend.run(c.stream, kernels::ScaleRowsBackward{
                                .x = x.row_range(s.first, s.count),
                                .weights = w.of,
                                .slots = w.slots,
                                .dy = rows,
                                .dweights = weights_of(t, source++, s, dweights, n_.weight_gradients_here).of,
                                .dx = rows});
  }
}

void ExpertRows::give_weights_back(const LayerContext& c, Tensors& t, Matrix dweights) const {
  if (ranks_.size() == 1) return;
  const Matrix home = t[size_t(n_.row_weights)];
  const int64_t rows = rows_of_block(t), slots = slots_of_block(t);
  give_back(c, t, here(t, t[size_t(n_.weight_gradients_here)]), home);
  for (int block = 0; block < blocks_; ++block)
    c.backend.run(c.stream, kernels::GatherRows{.x = home.row_range(block * rows, rows),
                                                .slots = t[size_t(n_.rows)].columns(block * slots, slots),
                                                .out = column(own(c, dweights, block))});
  clear_others(c, dweights);
}

void ExpertRows::add_bias(const LayerContext& c, Tensors& t, Matrix x, int bias, Matrix weights) const {
  int source = 0;
  for (const Source& s : sources_here(t)) {
    kernels::AddExpertBias op{
        .x = x.row_range(s.first, s.count),
        .bias = kernels::matrix(c.params.weight(bias).data, DType::f32, experts_here(), x.cols),
        .offsets = s.offsets};
    if (weights) {
      const Weights w = weights_of(t, source, s, weights, n_.weights_here);
      op.weights = w.of, op.slots = w.slots;
    }
    ++source;
    c.backend.run(c.stream, op);
  }
}

void ExpertRows::bias_weights(const LayerContext& c, Tensors& t, Matrix dy, int bias, Matrix dweights) const {
  int source = 0;
  for (const Source& s : sources_here(t)) {
    const Weights w = weights_of(t, source++, s, dweights, n_.weight_gradients_here);
    c.backend.run(c.stream,
                  kernels::ExpertBiasWeights{.dy = dy.row_range(s.first, s.count),
                                             .bias = kernels::matrix(c.params.weight(bias).data, DType::f32,
                                                                     experts_here(), dy.cols),
                                             .offsets = s.offsets,
                                             .slots = w.slots,
                                             .dweights = w.of});
  }
}

void ExpertRows::bias_gradient(const LayerContext& c, Tensors& t, Matrix dy, int bias, Matrix weights,
                               LanePlace at) const {
  const std::vector<Source> all = sources_here(t);
  for (const Turn& turn : turns(at)) {
    const Source& s = all[size_t(turn.source)];
    kernels::ExpertBiasBackward op{.dy = dy.row_range(s.first, s.count), .offsets = s.offsets};
    if (weights) {
      const Weights w = weights_of(t, turn.source, s, weights, n_.weights_here);
      op.weights = w.of, op.slots = w.slots;
    }
    op.dbias =
        kernels::matrix(c.params.gradient(bias, turn.at.lane).data, DType::f32, experts_here(), dy.cols);
    op.accumulate = !turn.at.first;
    c.backend.run(c.stream, op);
    if (turn.last) complete_gradient(c, bias, op.dbias.count(), turn.at.lane);
  }
}

void ExpertRows::multiply(const LayerContext& c, Tensors& t, Matrix x, const Linear& w, Matrix y) const {
  const kernels::PackedWeight& weight = w.weight(c, t);  // once: it may be rounded for this product
  int source = 0;
  for (const Source& s : sources_here(t))
    c.backend.run(c.stream, kernels::GroupedForward{
                                .x = w.seen(c, t, x.row_range(s.first, s.count), rows_of(c, source++, s)),
                                .offsets = s.offsets,
                                .w = &weight,
                                .y = y.row_range(s.first, s.count)});
}

void ExpertRows::multiply_backward(const LayerContext& c, Tensors& t, Matrix dy, const Linear& w,
                                   Matrix dx) const {
  const kernels::PackedWeight& weight = w.weight_of_gradient(c, t);
  int source = 0;
  for (const Source& s : sources_here(t))
    c.backend.run(c.stream,
                  kernels::GroupedBackwardInput{
                      .dy = w.seen_gradient(c, t, dy.row_range(s.first, s.count), rows_of(c, source++, s)),
                      .offsets = s.offsets,
                      .w = &weight,
                      .dx = dx.row_range(s.first, s.count)});
}

void ExpertRows::weight_gradient(const LayerContext& c, Tensors& t, Matrix dy, Matrix x, const Linear& w,
                                 LanePlace at) const {
  const std::vector<Source> all = sources_here(t);
  for (const Turn& turn : turns(at)) {
    const Source& s = all[size_t(turn.source)];
    const auto [seen_dy, seen_x] = w.seen_by_weight(
        c, t, dy.row_range(s.first, s.count), x.row_range(s.first, s.count), rows_of(c, turn.source, s));
    c.backend.run(c.stream, kernels::GroupedBackwardWeight{.dy = seen_dy,
                                                           .x = seen_x,
                                                           .offsets = s.offsets,
                                                           .dw = w.gradient(c, turn.at),
                                                           .accumulate = !turn.at.first});
    if (turn.last) w.complete_gradient(c, turn.at.lane);
  }
}

}  // namespace trainctl
