#include "parallel/gradient_reduction.h"

#include <algorithm>
#include <bit>

#include "parallel/tree_sum.h"
#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {

GradientReduction::GradientReduction(const ShardedMemory& memory, DpGroup& dp, Communicator& tp,
                                     Communicator* tied_peer, kernels::Backend& backend,
                                     kernels::Stream& stream)
    : memory_(memory),
      dp_(dp),
      tp_(tp),
      tied_peer_(tied_peer),
      backend_(backend),
      stream_(stream),
      use_complete_(memory.layout.uses.size(), false) {}

void GradientReduction::merge_lane(int use, int lane) {
  int level = std::popcount(unsigned(lane));
  for (int merges = std::countr_one(unsigned(lane)); merges > 0; --merges, --level) {
    const kernels::Matrix sum = memory_.gradient(use, level - 1);
    const void* inputs[2] = {sum.data, memory_.gradient(use, level).data};
    backend_.tree_sum(stream_, inputs, sum.data, DType::f32, sum.count());
  }
}

void GradientReduction::reduce(int begin, int end) {
  for (int use = begin; use < end; ++use) {
    ENSURE(!use_complete_[size_t(use)], "use {} was reduced before", use);
    use_complete_[size_t(use)] = true;
  }
  launch_ready();
}

/// Starts the exchange of every bucket that is full, and of what is left of a group whose last gradient is
/// here.
void GradientReduction::launch_ready() {
  for (int g = 0; g < kGroups; ++g) {
    const GroupPlan& group = memory_.group(g);
    Progress& progress = groups_[size_t(g)];
    while (progress.ready < group.chunks.size() && use_complete_[size_t(group.chunks[progress.ready].use)])
      ++progress.ready;
    if (progress.launched == progress.ready) continue;
    const int64_t bucket = group.bucket_elements(memory_.layout.options.bucket_elements, dp_.size());
    const bool full = group.elements(progress.launched, progress.ready) >= bucket;
    if (!full && progress.ready < group.chunks.size()) continue;
    launch(g, progress.launched, progress.ready);
    progress.launched = progress.ready;
  }
}

/// Packs chunks [begin, end) of group g and starts sending each to its owner, or adding it there.
void GradientReduction::launch(int g, size_t begin, size_t end) {
  if (!memory_.packs(g)) return;
  pack(g, begin, end);
  if (dp_.size() == 1) return;
  const std::vector<Run> runs = runs_of(memory_.group(g), begin, end);
  std::vector<Ticket>& pending = groups_[size_t(g)].pending;
  if (adds_in_transport(g, memory_.layout.options, dp_.size())) {
    std::vector<Reduction> sums;
    for (int owner = 0; owner < dp_.size(); ++owner)
      if (const Run run = runs[size_t(owner)]; run.count > 0)
        sums.push_back({memory_.packed(g, run.begin), run.count, owner});
    return pending.push_back(dp_.comm.reduce(sums, &stream_));
  }
  const std::vector<Transfer> transfers = transfers_to_owners(g, runs);
  if (!transfers.empty()) pending.push_back(dp_.comm.exchange(transfers, &stream_));
}

void GradientReduction::pack(int g, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const FlatChunk& c = memory_.group(g).chunks[i];
    const Box& box = c.where.global;
    backend_.copy(stream_, memory_.chunk_gradient(c),
                  kernels::matrix(memory_.packed(g, c.offset), DType::f32, box.rows(), box.cols()));
  }
}

std::vector<Transfer> GradientReduction::transfers_to_owners(int g, const std::vector<Run>& runs) {
  const Run mine = runs[size_t(dp_.rank())];
  const int tag = dp_.take_tag();
  std::vector<Transfer> transfers;
  dp_.for_each_peer([&](int peer) {
    const Run theirs = runs[size_t(peer)];
    if (theirs.count > 0)
      transfers.push_back(
          {Transfer::send, peer, memory_.packed(g, theirs.begin), size_t(theirs.count) * 4, tag});
    if (mine.count > 0)
      transfers.push_back(
          {Transfer::receive, peer, memory_.received(g, peer, mine.begin), size_t(mine.count) * 4, tag});
  });
  return transfers;
}

void GradientReduction::finish() {
  const auto missing = std::find(use_complete_.begin(), use_complete_.end(), false);
  ENSURE(missing == use_complete_.end(), "use {} was not reduced", missing - use_complete_.begin());
  for (int g = 0; g < kGroups; ++g) {
    Progress& progress = groups_[size_t(g)];
    ENSURE(progress.launched == memory_.group(g).chunks.size(), "group {}: {} of {} chunks were reduced", g,
           progress.launched, memory_.group(g).chunks.size());
    for (Ticket& ticket : progress.pending) dp_.comm.wait(ticket, "reduce gradients", stream_);
    progress = {};
    if (memory_.adds_received(g) && memory_.own(g) > 0) sum_own(g);
  }
  std::fill(use_complete_.begin(), use_complete_.end(), false);
  finish_partial();
  finish_tied();
  const Layout& layout = memory_.layout;
  if (layout.options.zero_stage > 0 || dp_.size() == 1) return;
  for (int g = 0; g < kGroups; ++g)
    if (!memory_.group(g).chunks.empty() && owns_state(layout.plan, g))
      gather_flat(g, memory_.packed(g, 0), DType::f32);
}

void GradientReduction::sum_own(int g) {
  const int64_t begin = memory_.own_begin(g);
  std::vector<float*> inputs;
  for (int r = 0; r < dp_.size(); ++r)
    inputs.push_back(r == dp_.rank() ? memory_.packed(g, begin) : memory_.received(g, r, begin));
  tree_sum_of_any(backend_, stream_, inputs, memory_.packed(g, begin), memory_.own(g));
}

void GradientReduction::finish_partial() {
  constexpr int g = replicated_partial;
  if (tp_.size() == 1 || memory_.group(g).chunks.empty() || memory_.own(g) == 0) return;
  all_reduce(tp_, backend_, stream_, memory_.packed(g, memory_.own_begin(g)), memory_.tp_scratch(),
             DType::f32, memory_.own(g));
}

/// Own run of a tied group's summed gradient (a tied use is cut by rows, so it is contiguous in its place).
float* GradientReduction::tied_run(int g) const {
  if (memory_.packs(g)) return memory_.packed(g, memory_.own_begin(g));
  return memory_.chunk_gradient(memory_.group(g).chunks.front()).as<float>();
}

void GradientReduction::finish_tied() {
  const bool embedding = !memory_.group(tied_embedding).chunks.empty();
  const bool head = !memory_.group(tied_head).chunks.empty();
  const int mine = embedding ? tied_embedding : tied_head;
  const int64_t n = memory_.group(mine).chunks.empty() ? 0 : memory_.own(mine);
  if (embedding && head) {
    const void* inputs[2] = {tied_run(tied_embedding), tied_run(tied_head)};
    if (n > 0) backend_.tree_sum(stream_, inputs, tied_run(tied_embedding), DType::f32, n);
  } else if (tied_peer_ && n > 0) {
    const int peer = 1 - tied_peer_->rank();
    float* other = memory_.tied_received();
    const Transfer transfers[2] = {{Transfer::send, peer, tied_run(mine), size_t(n) * 4},
                                   {Transfer::receive, peer, other, size_t(n) * 4}};
    tied_peer_->exchange_and_wait(transfers, "add the tied embedding's gradients", stream_);
    const void* inputs[2] = {embedding ? tied_run(mine) : other, embedding ? other : tied_run(mine)};
    backend_.tree_sum(stream_, inputs, tied_run(mine), DType::f32, n);
  }
}

void GradientReduction::gather_flat(int g, void* flat, DType dtype) {
  std::vector<size_t> bytes;
  for (int r = 0; r < dp_.size(); ++r) bytes.push_back(size_t(memory_.group(g).own(r)) * size_of(dtype));
  char* own = static_cast<char*>(flat) + memory_.own_begin(g) * int64_t(size_of(dtype));
  all_gather_v(dp_.comm, stream_, own, flat, bytes);
}

}  // namespace trainctl::parallel::sharding
