#include "runtime/train/state_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/record.h"

namespace trainctl {
namespace {

using parallel::AxisSet;
namespace axes = parallel::axes;

/// What ranks send to say who holds what.
struct SentReplica {
  uint64_t part = 0, digest = 0;
  uint8_t is_state = 0, is_there = 0;
};
using SentReplicas = std::array<SentReplica, parallel::StateDigests::kMostReplicas>;

/// Equal on the ranks that hold the same: their coordinates along the other axes.
uint64_t part_of(const parallel::Replica& replica, const RankResources& rank) {
  const auto has = [&](AxisSet axis) { return (replica.axes & axis) != 0; };
  const parallel::MeshPosition& at = rank.at;
  const int data = at.dp * rank.mesh.cp + at.cp;
  const int among_data = has(axes::data)          ? 0
                         : has(axes::expert_data) ? 1 + rank.comms.experts->rank()
                                                  : 1 + data;
  uint64_t part = replica.is_state;
  const auto add = [&](int bits, int coordinate) { part = part << bits | uint64_t(coordinate); };
  add(12, has(axes::tensor) ? 0 : 1 + at.tp);
  add(24, among_data);
  add(16, has(axes::uses) ? 0 : 1 + at.pp);
  add(8, int(replica.axes));
  return part;
}

std::string names_of(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 < ranks.size() ? ", " : " and ", ranks[i]);
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", text);
}

}  // namespace

StateWatch::StateWatch(RankResources& rank, Control& control, std::vector<ReplicaDispute> disputes,
                       std::vector<NodeRanks> nodes)
    : rank_(rank),
      control_(control),
      disputes_(std::move(disputes)),
      nodes_(std::move(nodes)),
      digests_(*rank.params, rank.comms.shared().lines(), rank.backend, *rank.stream),
      every_steps_(rank.job.observability.state_digest_every_steps) {
  if (every_steps_ == 0 || rank.backend.is_host()) return;
  digests_.read_state();
  rank.stream->synchronize();
}

bool StateWatch::is_due(int64_t step, int64_t last, const StepScalars& scalars) const {
  if (every_steps_ == 0) return false;
  if (step % every_steps_ == 0 || step == last || scalars.stop) return true;
  for (const ReplicaDispute& dispute : disputes_)
    if (dispute.step == step) return true;
  if (scalars.due.has(SaveTier::directory)) return true;
  // Copies in memory may be of every step. Where each rank updates all of the state, a flipped bit stays on
  // one of them and would get into these copies; elsewhere it is in the state of all.
  const CheckpointSpec& when = rank_.job.checkpoint;
  if (rank_.job.parallelism.zero_stage > 0 || rank_.mesh.dp * rank_.mesh.cp == 1 ||
      when.memory == MemoryCopies::off)
    return false;
  const int64_t memory = when.memory_when == EverySteps::automatic ? 0 : when.memory_every_steps;
  return !scalars.due.empty() || (memory > 0 && step % memory == 0);
}

void StateWatch::before_update(int64_t step, int64_t last, const StepScalars& scalars) {
  is_due_ = is_due(step, last, scalars);
  const bool finite = std::isfinite(scalars.line.loss) && std::isfinite(scalars.line.grad_norm);
  if (is_due_ || !finite) digests_.read_copies();
  if (finite || every_steps_ == 0) return;
  digests_.read_state();
  rank_.stream->synchronize();
  sum_of_replicas(step, step - 1);  // its update is not made yet
}

parallel::StateDigest StateWatch::agreed(int64_t step) {
  read_of_ = step;
  const parallel::StateDigest state = sum_of_replicas(step, step);
  settle_disputes(step);
  return state;
}

const ReplicaDispute* StateWatch::dispute_of(int64_t step, const std::string& part) const {
  for (const ReplicaDispute& dispute : disputes_)
    if (dispute.step == step && dispute.part == part) return &dispute;
  return nullptr;
}

bool StateWatch::settle_dispute(const ReplicaDispute& dispute, const std::vector<std::string>& recomputed) {
  const DisputeVerdict verdict = settle(dispute, recomputed);
  if (!verdict.is_answered) return false;
  Json wrong = Json::array();
  for (const DisputedReplica& replica : verdict.wrong) wrong.push_back(record_json(replica));
  control_.event(
      EventKind::replicas_judged,
      dump_json(
          Json{{"step", dispute.step}, {"part", dispute.part}, {"wrong", wrong}, {"text", verdict.text}}));
  return true;
}

/// One of the ranks that hold it.
bool StateWatch::speaks_for(const parallel::Replica& replica) const {
  for (const parallel::AxisLine& line : rank_.comms.shared().lines())
    if ((line.axis & replica.axes) != 0 && line.rank > 0) return false;
  return true;
}

/// Of this step, in which all replicas agree.
void StateWatch::settle_disputes(int64_t step) {
  if (disputes_.empty()) return;
  for (const parallel::Replica& replica : digests_.replicas())
    if (const ReplicaDispute* const of = dispute_of(step, hex64(part_of(replica, rank_)));
        of && speaks_for(replica))
      settle_dispute(*of, {hex64(replica.digest)});
}

/// By one rank: replicas differ and there is no majority, for the first time or again.
void StateWatch::report_dispute(const parallel::Disagreement& found,
                                const std::vector<parallel::ReplicaOfRank>& all, int64_t step) {
  ReplicaDispute dispute{.step = step, .part = hex64(found.part)};
  std::vector<std::string> digests;
  for (const parallel::ReplicaOfRank& replica : all) {
    if (replica.part != found.part) continue;
    DisputedReplica& of = dispute.replicas.emplace_back();
    of.rank = replica.rank, of.digest = hex64(replica.digest);
    for (const NodeRanks& node : nodes_)
      if (replica.rank >= node.first && replica.rank < node.first + node.count) of.node = node.name;
    digests.push_back(of.digest);
  }
  const ReplicaDispute* const before = dispute_of(step, dispute.part);
  if (before && settle_dispute(*before, digests)) return;
  Json fields = record_json(dispute);
  fields["text"] = state_problem(found, -1, step).text;
  control_.event(EventKind::replicas_differ, dump_json(fields));
}

parallel::StateDigest StateWatch::sum_of_replicas(int64_t step, int64_t state_step) {
  parallel::DigestSums sums = digests_.sums();
  rank_.comms.sum(sums);
  if (sums.disagreement != 0) name_ranks(step, state_step);
  return sums.state;
}

void StateWatch::name_ranks(int64_t step, int64_t state_step) {
  SentReplicas own{};
  size_t n = 0;
  for (const parallel::Replica& replica : digests_.replicas())
    own[n++] = {.part = part_of(replica, rank_),
                .digest = replica.digest,
                .is_state = replica.is_state,
                .is_there = 1};
  std::vector<SentReplicas> all(size_t(rank_.world.size()));
  parallel::all_gather(rank_.world.host(), &own, all.data(), sizeof own);
  std::vector<parallel::ReplicaOfRank> replicas;
  for (size_t r = 0; r < all.size(); ++r)
    for (const SentReplica& one : all[r])
      if (one.is_there)
        replicas.push_back(
            {.rank = int(r), .part = one.part, .is_state = one.is_state != 0, .digest = one.digest});
  const parallel::Disagreement found = parallel::find_disagreement(replicas);
  if (found.is_state) step = state_step;
  if (rank_.world.rank() == 0 && !found.ranks.empty() && !found.is_decided)
    report_dispute(found, replicas, step);
  if (!found.is_decided) parallel::barrier(rank_.world.host());  // the event is sent before a rank fails
  const StateProblem problem = state_problem(found, rank_.world.rank(), step);
  // The others wait in vain until the rank with the fault has failed: one that left before could cut it off.
  if (problem.code != ErrorCode::kHardware) try {
      parallel::barrier(rank_.world.host());
    } catch (const Error&) {
    }
  throw Error(problem.code, problem.text);
}

std::optional<parallel::StateDigest> StateWatch::require_recorded(
    const std::optional<parallel::StateDigest>& recorded, int64_t step) {
  if (every_steps_ == 0) return recorded;
  digests_.read_state();
  rank_.stream->synchronize();
  parallel::DigestSums sums = digests_.sums();
  rank_.comms.sum(sums);
  const parallel::StateDigest& found = sums.state;
  // Another optimizer, or moments in another format: it is not the state that was saved.
  if (recorded && recorded->form == found.form && recorded->value != found.value)
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("the loaded state has the digest {}, and {} was recorded when it was saved: its bits "
                    "have changed since; resume from an older checkpoint",
                    hex64(found.value), hex64(recorded->value)));
  read_of_ = step;
  return found;
}

void StateWatch::require_rested(int64_t step) const {
  if (read_of_ != step || digests_.has_rested()) return;
  throw Error(
      ErrorCode::kHardware,
      fmt::format("bits of the state of rank {} changed between step {} and the next one, in which nothing "
                  "writes it: the memory of its device is at fault",
                  rank_.world.rank(), step));
}

StateProblem state_problem(const parallel::Disagreement& found, int rank, int64_t step) {
  if (found.ranks.empty())  // what was compared is not what was sent: only a fault of this very exchange
    return {ErrorCode::kHardware,
            fmt::format("the digests of step {} do not agree, and no rank's differs", step)};
  const std::string what = found.is_state ? "state" : "copies of the parameters";
  const std::string text =
      found.is_decided
          ? fmt::format(
                "{} held other bits after step {} than most of the {} ranks with the same {}: the memory or "
                "the arithmetic of its device is at fault",
                names_of(found.ranks), step, found.replicas, what)
          : fmt::format(
                "{} have the same {}, and held different bits after step {}: the memory or the arithmetic "
                "of one of their devices is at fault; the bits do not say of which",
                names_of(found.ranks), what, step);
  const bool named = std::find(found.ranks.begin(), found.ranks.end(), rank) != found.ranks.end();
  return {named ? ErrorCode::kHardware : ErrorCode::kPeerLost, text};
}

}  // namespace trainctl
