#include "parallel/sharded_params.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "parallel/sharding_plan.h"
#include "parallel/tree_sum.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {

using kernels::Matrix;
using namespace sharding;

struct ShardedParams::Impl {
  const Layout layout;
  const std::vector<ParamUse>& uses = layout.uses;
  const ShardingOptions& options = layout.options;
  const Plan& plan = layout.plan;
  Communicator& dp;
  Communicator& tp;
  Communicator* tied_peer;
  kernels::Backend& backend;
  kernels::Stream& stream;

  std::unique_ptr<kernels::Buffer> weights, gradients;
  struct GroupState {
    std::unique_ptr<kernels::Buffer> master, first_moment, second_moment;  // own run (ZeRO-0: all), f32
    std::unique_ptr<kernels::Buffer> packed;    // gradients in flat order, f32 [size]
    std::unique_ptr<kernels::Buffer> received;  // [dp - 1][own] contributions of the other dp ranks, where they are added here
    std::unique_ptr<kernels::Buffer> params;    // compute copies in flat order
    size_t ready = 0;      // chunks whose gradient is complete (a prefix)
    size_t launched = 0;   // chunks whose exchange has started
    struct Pending {
      Ticket ticket;
      size_t begin = 0, end = 0;  // chunks
    };
    std::vector<Pending> pending;
  };
  std::array<GroupState, kGroups> groups;
  std::unique_ptr<kernels::Buffer> tied_received, tp_scratch;
  std::unique_ptr<kernels::Buffer> squares;     // host: sum of squares of each state chunk's gradient
  std::vector<bool> use_complete;
  bool summed = false;   // no step since the gradients were summed
  std::vector<StateChunk> state_chunks;
  std::vector<kernels::AdamWBox> boxes;
  int next_tag = 1;

  Impl(Layout l, Communicator& dp_comm, Communicator& tp_comm, Communicator* tied, kernels::Backend& b,
       kernels::Stream& s)
      : layout(std::move(l)), dp(dp_comm), tp(tp_comm), tied_peer(tied), backend(b), stream(s) {
    ENSURE(dp.size() == layout.dp && dp.rank() == layout.dp_rank && tp.size() == options.tp &&
               tp.rank() == options.tp_rank,
           "a layout of dp {} of {}, tp {} of {} on dp {} of {}, tp {} of {}", layout.dp_rank, layout.dp,
           options.tp_rank, options.tp, dp.rank(), dp.size(), tp.rank(), tp.size());
    ENSURE(layout.has_tied_peer == (tied_peer != nullptr));
    ENSURE(!options.fast_reduction || dp.reduces(), "the dp group makes no sums");
    weights = backend.allocate(plan.weight_bytes);
    gradients = backend.allocate(size_t(plan.gradient_elements * plan.levels) * 4);
    use_complete.assign(uses.size(), false);
    for (int g = 0; g < kGroups; ++g) allocate_group(g);
    build_state_chunks();
    plan_gathers();
    squares = backend.allocate_host(state_chunks.size() * sizeof(double));
  }

  bool shared_head() const { return !plan.groups[tied_head].chunks.empty() && !plan.groups[tied_embedding].chunks.empty(); }
  void allocate_group(int g) {
    const GroupBytes bytes = layout.group_bytes(g);
    GroupState& state = groups[g];
    const auto take = [&](std::unique_ptr<kernels::Buffer>& buffer, size_t n) {
      if (n > 0) buffer = backend.allocate(n);
    };
    for (auto* moment : {&state.master, &state.first_moment, &state.second_moment})
      take(*moment, bytes.moment);
    take(state.packed, bytes.packed);
    take(state.received, bytes.received);
    take(state.params, bytes.params);
    take(tp_scratch, bytes.partial);
    take(tied_received, bytes.tied);
  }

  Matrix weight(int use) const {
    const Placement& p = plan.places[size_t(use)];
    if (shares_weight(uses, uses[size_t(use)]))
      for (size_t u = 0; u < uses.size(); ++u)
        if (uses[u].tie == ParamUse::tied_first) return weight(int(u));
    return kernels::matrix(static_cast<char*>(weights->data()) + p.weight_offset, uses[size_t(use)].dtype, p.rows, p.cols);
  }
  Matrix gradient_at_level(int use, int level) const {
    const Placement& p = plan.places[size_t(use)];
    float* base = static_cast<float*>(gradients->data()) + plan.gradient_elements * level + p.gradient_offset;
    return kernels::matrix(base, DType::f32, p.rows, p.cols);
  }
  Matrix chunk_in(Matrix local, const FlatChunk& c) const {
    return local.row_range(c.where.local_row, c.where.global.rows()).columns(c.where.local_col, c.where.global.cols());
  }
  Matrix chunk_gradient(const FlatChunk& c) const { return chunk_in(gradient_at_level(c.use, 0), c); }
  float* packed_at(int g, int64_t offset) const { return static_cast<float*>(groups[g].packed->data()) + offset; }

  void build_state_chunks() {
    for (const auto& [g, c, saved_here] : layout.owned_chunks()) {
      const int64_t at = c.offset - layout.state_begin(g);
      StateChunk s{c.where.param, c.where.chunk, c.where.global};
      s.master = static_cast<float*>(groups[size_t(g)].master->data()) + at;
      s.first_moment = static_cast<float*>(groups[size_t(g)].first_moment->data()) + at;
      s.second_moment = static_cast<float*>(groups[size_t(g)].second_moment->data()) + at;
      if (packs_gradients(g, dp.size())) {
        s.gradient = packed_at(g, c.offset);
        s.gradient_stride = s.box.cols();
      } else {
        s.gradient = chunk_gradient(c).as<float>();
        s.gradient_stride = plan.places[size_t(c.use)].cols;
      }
      s.saved_here = saved_here;
      state_chunks.push_back(s);
      kernels::AdamWBox box{s.master, s.first_moment, s.second_moment, s.gradient, s.gradient_stride};
      box.weight_decay = uses[size_t(c.use)].weight_decay;
      box.param = groups[size_t(g)].params ? flat_param(g, c) : chunk_in(weight(c.use), c);
      boxes.push_back(box);
    }
  }
  Matrix flat_param(int g, const FlatChunk& c) const {
    const GroupPlan& group = plan.groups[g];
    char* at = static_cast<char*>(groups[g].params->data()) + c.offset * int64_t(size_of(group.dtype));
    return kernels::matrix(at, group.dtype, c.where.global.rows(), c.where.global.cols());
  }

  // ---- lanes ------------------------------------------------------------------------------------------

  void merge_lane(int use, int lane) {
    const int64_t n = plan.places[size_t(use)].rows * plan.places[size_t(use)].cols;
    int level = std::popcount(unsigned(lane));
    for (int merges = std::countr_one(unsigned(lane)); merges > 0; --merges, --level) {
      const void* inputs[2] = {gradient_at_level(use, level - 1).data, gradient_at_level(use, level).data};
      backend.tree_sum(stream, inputs, gradient_at_level(use, level - 1).data, DType::f32, n);
    }
  }

  // ---- data-parallel reduction ------------------------------------------------------------------------

  /// Starts the exchange of every bucket that is full, and of what is left of a group whose last gradient is
  /// here.
  void launch_ready() {
    for (int g = 0; g < kGroups; ++g) {
      const GroupPlan& group = plan.groups[g];
      GroupState& state = groups[g];
      while (state.ready < group.chunks.size() && use_complete[size_t(group.chunks[state.ready].use)]) ++state.ready;
      if (state.launched == state.ready) continue;
      const bool full = group.elements(state.launched, state.ready) >= group.bucket_elements(options.bucket_elements, dp.size());
      if (!full && state.ready < group.chunks.size()) continue;
      launch(g, state.launched, state.ready);
      state.launched = state.ready;
    }
  }

  /// An owner's part of some chunks, in flat order.
  struct Run {
    int64_t begin = 0, count = 0;
  };
  std::vector<Run> runs_of(const GroupPlan& group, size_t begin, size_t end) const {   // by owner
    std::vector<Run> runs(static_cast<size_t>(dp.size()));
    for (size_t i = begin; i < end; ++i) {
      Run& run = runs[size_t(group.chunks[i].owner)];
      if (run.count == 0) run.begin = group.chunks[i].offset;
      run.count += group.chunks[i].where.global.count();
    }
    return runs;
  }
  int take_tag() { return next_tag = next_tag % 1000 + 1; }
  /// Begins with the neighbour, so that not all send to rank 0 first.
  template <typename Each>
  void for_each_peer(Each each) const {
    for (int i = 1; i < dp.size(); ++i) each((dp.rank() + i) % dp.size());
  }

  /// Packs chunks [begin, end) of group g and starts sending each to its owner, or adding it there.
  void launch(int g, size_t begin, size_t end) {
    if (!packs_gradients(g, dp.size())) return;
    const GroupPlan& group = plan.groups[g];
    GroupState& state = groups[g];
    for (size_t i = begin; i < end; ++i) {
      const FlatChunk& c = group.chunks[i];
      const Box& box = c.where.global;
      backend.copy(stream, chunk_gradient(c), kernels::matrix(packed_at(g, c.offset), DType::f32, box.rows(), box.cols()));
    }
    if (dp.size() == 1) return;
    const std::vector<Run> runs = runs_of(group, begin, end);
    if (adds_in_transport(g, options, dp.size())) {
      std::vector<Reduction> sums;
      for (int owner = 0; owner < dp.size(); ++owner)
        if (const Run run = runs[size_t(owner)]; run.count > 0) sums.push_back({packed_at(g, run.begin), run.count, owner});
      state.pending.push_back({dp.reduce(sums, &stream), begin, end});
      return;
    }
    const Run mine = runs[size_t(dp.rank())];
    const int tag = take_tag();
    std::vector<Transfer> transfers;
    for_each_peer([&](int peer) {
      const Run theirs = runs[size_t(peer)];
      if (theirs.count > 0) transfers.push_back({Transfer::send, peer, packed_at(g, theirs.begin), size_t(theirs.count) * 4, tag});
      if (mine.count > 0)
        transfers.push_back({Transfer::receive, peer, received_at(g, peer, mine.begin), size_t(mine.count) * 4, tag});
    });
    if (!transfers.empty()) state.pending.push_back({dp.exchange(transfers, &stream), begin, end});
  }

  float* received_at(int g, int peer, int64_t offset) const {
    const GroupPlan& group = plan.groups[g];
    const int slot = peer < dp.rank() ? peer : peer - 1;
    return static_cast<float*>(groups[g].received->data()) + group.own(dp.rank()) * slot +
           (offset - group.owner_begin[size_t(dp.rank())]);
  }

  void finish_reduction() {
    ENSURE(std::find(use_complete.begin(), use_complete.end(), false) == use_complete.end(),
           "use {} was not reduced",
           std::find(use_complete.begin(), use_complete.end(), false) - use_complete.begin());
    for (int g = 0; g < kGroups; ++g) {
      const GroupPlan& group = plan.groups[g];
      GroupState& state = groups[g];
      ENSURE(state.launched == group.chunks.size(), "group {}: {} of {} chunks were reduced", g, state.launched,
             group.chunks.size());
      for (auto& pending : state.pending) dp.wait(pending.ticket, "reduce gradients", stream);
      state.pending.clear();
      state.ready = state.launched = 0;
      if (state.received && group.own(dp.rank()) > 0) sum_own(g);
    }
    std::fill(use_complete.begin(), use_complete.end(), false);
    summed = true;
    finish_partial();
    finish_tied();
    if (options.zero_stage == 0 && dp.size() > 1)
      for (int g = 0; g < kGroups; ++g)
        if (!plan.groups[g].chunks.empty() && owns_state(plan, g))
          gather_flat(g, groups[g].packed->data(), DType::f32);
  }

  void sum_own(int g) {
    const int64_t begin = plan.groups[g].owner_begin[size_t(dp.rank())];
    std::vector<float*> inputs;
    for (int r = 0; r < dp.size(); ++r)
      inputs.push_back(r == dp.rank() ? packed_at(g, begin) : received_at(g, r, begin));
    tree_sum_of_any(backend, stream, inputs, packed_at(g, begin), plan.groups[g].own(dp.rank()));
  }

  void finish_partial() {
    const GroupPlan& group = plan.groups[replicated_partial];
    if (tp.size() == 1 || group.chunks.empty() || group.own(dp.rank()) == 0) return;
    all_reduce(tp, backend, stream, packed_at(replicated_partial, group.owner_begin[size_t(dp.rank())]),
               tp_scratch->data(), DType::f32, group.own(dp.rank()));
  }

  /// Own run of a tied group's summed gradient (a tied use is cut by rows, so it is contiguous where it stands).
  float* tied_run(int g) const {
    const GroupPlan& group = plan.groups[g];
    if (packs_gradients(g, dp.size())) return packed_at(g, group.owner_begin[size_t(dp.rank())]);
    return chunk_gradient(group.chunks.front()).as<float>();
  }

  void finish_tied() {
    const int mine = !plan.groups[tied_embedding].chunks.empty() ? tied_embedding : tied_head;
    const GroupPlan& group = plan.groups[mine];
    const int64_t n = group.chunks.empty() ? 0 : group.own(dp.rank());
    if (shared_head()) {
      const void* inputs[2] = {tied_run(tied_embedding), tied_run(tied_head)};
      if (n > 0) backend.tree_sum(stream, inputs, tied_run(tied_embedding), DType::f32, n);
    } else if (tied_peer && n > 0) {
      const int peer = 1 - tied_peer->rank();
      float* other = static_cast<float*>(tied_received->data());
      const Transfer transfers[2] = {{Transfer::send, peer, tied_run(mine), size_t(n) * 4},
                                     {Transfer::receive, peer, other, size_t(n) * 4}};
      tied_peer->exchange_and_wait(transfers, "add the tied embedding's gradients", stream);
      const void* inputs[2] = {mine == tied_embedding ? tied_run(mine) : other,
                               mine == tied_embedding ? other : tied_run(mine)};
      backend.tree_sum(stream, inputs, tied_run(mine), DType::f32, n);
    }
  }

  void gather_flat(int g, void* flat, DType dtype) {
    const GroupPlan& group = plan.groups[g];
    std::vector<size_t> bytes;
    for (int r = 0; r < dp.size(); ++r) bytes.push_back(size_t(group.own(r)) * size_of(dtype));
    char* own = static_cast<char*>(flat) + group.owner_begin[size_t(dp.rank())] * int64_t(size_of(dtype));
    all_gather_v(dp, stream, own, flat, bytes);
  }

  // ---- compute copies ---------------------------------------------------------------------------------

  /// Compute copies on their way from the flat parts of their owners to everyone's matrices: chunks [begin, end) of group.
  struct Gather {
    Ticket ticket;
    int group = 0;
    size_t begin = 0, end = 0;
    int first_use = 0;   // the least that has a chunk in it
  };
  std::vector<Gather>
      gathers;   // of all that AdamW does not write in place, in the order in which a forward pass wants them
  size_t begun = 0, awaited = 0;   // gathers; those in between are under way

  void plan_gathers() {
    for (int g = 0; g < kGroups; ++g) {
      if (!groups[g].params) continue;
      const GroupPlan& group = plan.groups[g];
      const int64_t bucket = group.bucket_elements(options.bucket_elements, dp.size());
      for (size_t end = group.chunks.size(); end > 0;) {
        size_t begin = end - 1;
        while (begin > 0 && group.elements(begin, end) < bucket) --begin;
        gathers.push_back({{}, g, begin, end, group.chunks[end - 1].use});
        end = begin;
      }
    }
    std::stable_sort(gathers.begin(), gathers.end(),
                     [](const Gather& a, const Gather& b) { return a.first_use < b.first_use; });
    begun = awaited = gathers.size();
  }

  /// The compute copies changed at their owners.
  void weights_changed() { begun = awaited = 0; }

  void gather(int begin, int end) {
    for (; begun < gathers.size() && gathers[begun].first_use < end; ++begun) {
      ENSURE(gathers[begun].first_use >= begin, "use {} was not gathered before use {}",
             gathers[begun].first_use, begin);
      gathers[begun].ticket = exchange_params(gathers[begun]);
    }
  }

  Ticket exchange_params(const Gather& gather) {
    const GroupPlan& group = plan.groups[gather.group];
    const std::vector<Run> runs = runs_of(group, gather.begin, gather.end);
    const int tag = take_tag();
    const size_t element = size_of(group.dtype);
    char* flat = static_cast<char*>(groups[gather.group].params->data());
    std::vector<Transfer> transfers;
    const auto add = [&](Transfer::Kind kind, int peer, Run run) {
      if (run.count > 0) transfers.push_back({kind, peer, flat + size_t(run.begin) * element, size_t(run.count) * element, tag});
    };
    for_each_peer([&](int peer) {
      add(Transfer::send, peer, runs[size_t(dp.rank())]);
      add(Transfer::receive, peer, runs[size_t(peer)]);
    });
    return transfers.empty() ? Ticket() : dp.exchange(transfers, &stream);
  }

  /// Work given to the stream from now on sees the compute copies of all uses before `end`.
  void await(int end) {
    for (; awaited < gathers.size() && gathers[awaited].first_use < end; ++awaited) {
      ENSURE(awaited < begun, "use {} was not gathered since it changed", gathers[awaited].first_use);
      Gather& gather = gathers[awaited];
      if (gather.ticket) dp.wait(gather.ticket, "gather parameters", stream);
      for (size_t i = gather.begin; i < gather.end; ++i) {
        const FlatChunk& c = plan.groups[gather.group].chunks[i];
        backend.copy(stream, flat_param(gather.group, c), chunk_in(weight(c.use), c));
      }
    }
  }
};

namespace {

/// Sums are made here where the group makes none.
ShardingOptions made_here(ShardingOptions options, const Communicator& dp) {
  options.fast_reduction &= dp.reduces();
  return options;
}

}  // namespace

ShardedParams::ShardedParams(std::vector<ParamUse> uses, const std::vector<std::vector<Box>>& grids,
                             ShardingOptions options, Communicator& dp, Communicator& tp,
                             Communicator* tied_peer, kernels::Backend& backend, kernels::Stream& stream)
    : ShardedParams(make_layout(std::move(uses), grids, made_here(options, dp), dp.size(), dp.rank(),
                                tied_peer != nullptr),
                    dp, tp, tied_peer, backend, stream) {}
ShardedParams::ShardedParams(Layout layout, Communicator& dp, Communicator& tp, Communicator* tied_peer,
                             kernels::Backend& backend, kernels::Stream& stream)
    : impl_(std::make_unique<Impl>(std::move(layout), dp, tp, tied_peer, backend, stream)) {}
ShardedParams::~ShardedParams() = default;

int ShardedParams::use_count() const { return int(impl_->uses.size()); }
Matrix ShardedParams::weight(int use) const { return impl_->weight(use); }
Matrix ShardedParams::gradient(int use, int lane) const {
  return impl_->gradient_at_level(use, std::popcount(unsigned(lane)));
}

void ShardedParams::zero_gradient(int use, int lane) {
  const Matrix g = gradient(use, lane);
  impl_->backend.fill_zero(impl_->stream, g.data, size_t(g.count()) * 4);
}

void ShardedParams::merge_lane(int begin, int end, int lane) {
  for (int use = begin; use < end; ++use) impl_->merge_lane(use, lane);
}

void ShardedParams::reduce(int begin, int end) {
  for (int use = begin; use < end; ++use) {
    ENSURE(!impl_->use_complete[size_t(use)], "use {} was reduced before", use);
    impl_->use_complete[size_t(use)] = true;
  }
  impl_->launch_ready();
}

void ShardedParams::finish_reduction() { impl_->finish_reduction(); }

void ShardedParams::add_gradient_squares(std::span<const int64_t> first_chunk, std::span<double> squares) {
  std::vector<Matrix> boxes;
  std::vector<size_t> slots;
  for (const StateChunk& c : impl_->state_chunks) {
    if (!c.saved_here) continue;
    boxes.push_back({const_cast<float*>(c.gradient), DType::f32, c.box.rows(), c.box.cols(), c.gradient_stride});
    slots.push_back(size_t(first_chunk[size_t(c.param)] + c.chunk));
  }
  double* sums = static_cast<double*>(impl_->squares->data());
  impl_->backend.sum_squares(impl_->stream, boxes, sums);
  impl_->stream.synchronize();
  for (size_t i = 0; i < boxes.size(); ++i) squares[slots[i]] = sums[i];
}

void ShardedParams::step(const kernels::AdamWStep& step) {
  ENSURE(std::exchange(impl_->summed, false), "the gradients were not summed");
  ENSURE(impl_->awaited == impl_->gathers.size(), "parameters of the step before are on their way");
  impl_->backend.adamw(impl_->stream, impl_->boxes, step);
  impl_->weights_changed();
}

void ShardedParams::gather(int begin, int end) { impl_->gather(begin, end); }

void ShardedParams::await(int end) { impl_->await(end); }

void ShardedParams::publish() {
  await(use_count());
  for (const kernels::AdamWBox& box : impl_->boxes)
    impl_->backend.copy(impl_->stream, kernels::matrix(box.master, DType::f32, box.param.rows, box.param.cols), box.param);
  impl_->weights_changed();
  gather(0, use_count());
}

const std::vector<ShardedParams::StateChunk>& ShardedParams::state_chunks() const { return impl_->state_chunks; }

}  // namespace trainctl::parallel
