#include "parallel/state_digest.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/base/ensure.h"
#include "runtime/base/hash.h"

namespace trainctl::parallel {
namespace {

/// The number of this rank among the replicas along `axes`, and how many there are.
struct Among {
  uint64_t rank = 0, size = 1;
};
Among among(const AxisLines& lines, AxisSet axes) {
  Among a;
  for (const AxisLine& line : lines) {
    if (!(line.axis & axes)) continue;
    a.rank += a.size * uint64_t(line.rank);
    a.size *= uint64_t(line.size);
  }
  return a;
}

uint64_t factor_of(const Among& a) { return replica_factor(a.rank, a.size); }

uint64_t tensor_number(const std::string& name, const StateRow& row) {
  return xxh3(name + "/" + name_of(row.role));
}

}  // namespace

StateDigests::StateDigests(const ShardedParams& params, const AxisLines& lines, kernels::Backend& backend,
                           kernels::Stream& stream)
    : params_(params), backend_(backend), stream_(stream), lines_(lines) {
  const std::vector<ParamUse>& uses = params.uses();
  // Several uses of a parameter on one rank have one copy.
  std::set<int> seen;
  for (size_t use = 0; use < uses.size() && !params.shards_weights(); ++use) {
    if (!seen.insert(uses[use].param).second) continue;
    if (among(lines_, uses[use].replicated).size > 1)
      part(uses[use].replicated, false).numbers.push_back(copies_.size());
    else
      continue;
    kernels::Matrix weight = params.weight(int(use));
    copies_.push_back({.data = weight, .tensor = xxh3(uses[use].layout.name), .row_step = weight.cols});
  }
  for (const ShardedParams::StateChunk& chunk : params.state_chunks()) {
    first_of_chunk_.push_back(state_.size());
    const ParamUse& use = uses[size_t(chunk.use)];
    const AxisSet axes = use.replicated & ~params.dealt_axis(chunk.use);
    const bool compared = among(lines_, axes).size > 1;
    for (size_t row = 0; row < chunk.rows.size(); ++row) {
      if (!chunk.rows[row].saved || (!compared && !chunk.saved_here)) continue;
      const Box box = chunk.box_of(chunk.rows[row]);
      const int64_t cols = chunk.rows[row].of_blocks ? 1 : use.layout.cols;
      kernels::DigestBox part_of{
          .data = chunk.rows[row].of_blocks
                      ? kernels::matrix(chunk.states[row], chunk.rows[row].dtype, box.rows(), box.cols())
                      : chunk.values(row),
          .tensor = tensor_number(use.layout.name, chunk.rows[row]),
          .first = box.row_begin * cols + box.col_begin,
          .row_step = cols};
      // Whole rows follow one another: one long row.
      if (box.cols() == cols && part_of.data.contiguous())
        part_of.data = kernels::matrix(chunk.states[row], part_of.data.dtype, 1, box.count());
      if (compared) part(axes, true).numbers.push_back(state_.size());
      if (chunk.saved_here) {
        counted_.push_back(state_.size());
        form_ += kernels::digest_element(part_of.tensor, int64_t(chunk.rows[row].dtype), 0) *
                 uint64_t(box.count());
      }
      state_.push_back(part_of);
    }
  }
  first_of_chunk_.push_back(state_.size());
  numbers_ =
      backend.allocate_host(std::max<size_t>(1, copies_.size() + 2 * state_.size()) * sizeof(uint64_t));
}

StateDigests::Part& StateDigests::part(AxisSet axes, bool is_state) {
  // Along an axis of this rank alone there is no replica.
  AxisSet there = 0;
  for (const AxisLine& line : lines_)
    if (line.size > 1) there |= line.axis & axes;
  for (Part& p : parts_)
    if (p.of.axes == there && p.of.is_state == is_state) return p;
  ENSURE(parts_.size() < kMostReplicas);
  parts_.push_back({.of = {.axes = there, .is_state = is_state}, .factor = factor_of(among(lines_, there))});
  return parts_.back();
}

void StateDigests::read_copies() {
  if (!copies_.empty()) backend_.run(stream_, kernels::Digest{.boxes = copies_, .out = numbers_of(false)});
}

void StateDigests::read_state_into(uint64_t* numbers) {
  params_.with_state(StateAccess::read, [&](std::span<const ShardedParams::StateChunk> chunks) {
    const auto of = size_t(chunks.data() - params_.state_chunks().data());
    const size_t begin = first_of_chunk_[of], end = first_of_chunk_[of + chunks.size()];
    const auto boxes = std::span<const kernels::DigestBox>(state_).subspan(begin, end - begin);
    if (!boxes.empty()) backend_.run(stream_, kernels::Digest{.boxes = boxes, .out = numbers + begin});
  });
}

void StateDigests::read_state() { read_state_into(numbers_of(true)); }
void StateDigests::read_resting_state() { read_state_into(numbers_of(true) + state_.size()); }

bool StateDigests::has_rested() const {
  const uint64_t* const before = numbers_of(true);
  return std::equal(before, before + state_.size(), before + state_.size());
}

uint64_t StateDigests::digest_of(const Part& part) const {
  uint64_t digest = 0;
  for (const size_t i : part.numbers) digest += numbers_of(part.of.is_state)[i];
  return digest;
}

DigestSums StateDigests::sums() const {
  DigestSums s;
  for (const size_t i : counted_) s.state.value += numbers_of(true)[i];
  s.state.form = form_;
  for (const Part& p : parts_) s.disagreement += p.factor * digest_of(p);
  return s;
}

std::vector<Replica> StateDigests::replicas() const {
  std::vector<Replica> found;
  for (const Part& p : parts_) {
    found.push_back(p.of);
    found.back().digest = digest_of(p);
  }
  return found;
}

/// Odd, so that no difference of two digests is lost, but for the first one of an odd number of replicas.
uint64_t replica_factor(uint64_t rank, uint64_t size) {
  const auto odd = [](uint64_t i) { return kernels::digest_element(0, int64_t(i), 0) | 1; };
  if (rank > 0) return odd(rank);
  uint64_t others = 0;
  for (uint64_t i = 1; i < size; ++i) others += odd(i);
  return 0 - others;
}

Disagreement find_disagreement(std::vector<ReplicaOfRank> replicas) {
  std::map<uint64_t, std::vector<ReplicaOfRank>> parts;
  for (const ReplicaOfRank& replica : replicas) parts[replica.part].push_back(replica);
  Disagreement found;
  for (const auto& [number, of_part] : parts) {
    std::map<uint64_t, size_t> votes;
    for (const ReplicaOfRank& replica : of_part) ++votes[replica.digest];
    if (votes.size() < 2) continue;
    const auto most = std::max_element(votes.begin(), votes.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    const bool decided = 2 * most->second > of_part.size();
    if (!found.ranks.empty() && (found.is_decided || !decided)) continue;
    found = {.is_decided = decided,
             .is_state = of_part[0].is_state,
             .replicas = int(of_part.size()),
             .part = number};
    for (const ReplicaOfRank& replica : of_part)
      if (!decided || replica.digest != most->first) found.ranks.push_back(replica.rank);
    std::sort(found.ranks.begin(), found.ranks.end());
  }
  return found;
}

}  // namespace trainctl::parallel
