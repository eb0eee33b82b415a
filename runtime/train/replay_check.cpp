#include "runtime/train/replay_check.h"

#include <algorithm>
#include <bit>

#include "parallel/state_digest.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/philox.h"
#include "runtime/machine/burn_in.h"

namespace trainctl {
namespace {

using kernels::DigestBox;

DigestBox digest_box(const kernels::Matrix& m, uint64_t number) {
  return {.data = m, .tensor = number * kernels::kDigestFactor, .row_step = m.cols};
}

/// A gradient that each data-parallel replica makes alike: not of experts that few ranks have, whose tokens
/// come from several replicas, and not the counts of a balance, which this micro-batch does not change.
bool is_compared(const parallel::ParamUse& use) {
  return (use.replicated & parallel::axes::data) != 0 && use.rule != parallel::UpdateRule::balance;
}

/// Whether this device computes products whose bits are known wrongly.
bool computes_wrongly(kernels::Backend& backend) {
  try {
    for (const ProductBits& bits : compute_products(backend, burn_in_products(true), 0))
      if (bits.times.size() != 1 || (bits.expected && bits.times.begin()->first != *bits.expected))
        return true;
  } catch (const Error&) {
    // No memory for them: they say nothing.
  }
  return false;
}

struct ReplaySums {
  uint64_t difference = 0;
  void add(const ReplaySums& other) { difference += other.difference; }
};

}  // namespace

ReplayedMicroBatch replayed_micro_batch(const JobSpec& job, int64_t step) {
  const Philox random(job.seed, RandomPurpose::kReplay, uint64_t(step));
  const StepCut cut = job;
  const int dp = int(random.bits64(0) % uint64_t(job.parallelism.data));
  return {.dp = dp, .index = int64_t(random.bits64(1) % uint64_t(cut.counted_micro_batches_of(dp)))};
}

ReplayCheck::ReplayCheck(RankResources& rank, Executor& executor, Control& control)
    : rank_(rank),
      executor_(executor),
      control_(control),
      stages_(virtual_stages_of(rank.plan.program.shape.pipeline)),
      every_steps_(rank.job.observability.replay_every_steps),
      seen_(ReplaySeen::of_rank(stages_)) {
  size_t numbers = 0;
  const std::vector<parallel::ParamUse>& uses = rank.params->uses();
  for (int v = 0; every_steps_ > 0 && v < stages_.each; ++v) {
    Place& place = places_.emplace_back();
    place.output = numbers++, place.input_gradient = numbers++, place.gradients = numbers;
    int& expert_group = expert_groups_.emplace_back(-1);
    for (int p = 0; p < rank.model->parts(v); ++p) {
      const StagePart& part = rank.model->part(v, p);
      std::vector<DigestBox>& boxes = place.parts.emplace_back();
      place.first_of_part.push_back(numbers);
      for (int use = part.begin; use < part.end; ++use) {
        if (uses[size_t(use)].replicated & parallel::axes::expert_data)
          expert_group = rank.plan.groups.experts.first;
        for (int lane = 0; is_compared(uses[size_t(use)]) && lane < rank.params->lanes_together(use); ++lane)
          boxes.push_back(digest_box(rank.params->gradient(use, lane), ++numbers));
      }
    }
    place.end = numbers;
  }
  numbers_ = rank.backend.allocate_host(std::max<size_t>(1, numbers) * sizeof(uint64_t));
  if (every_steps_ == 0 || rank.backend.is_host()) return;
  for (const Place& place : places_)  // loads its kernel
    for (size_t part = 0; part < place.parts.size(); ++part)
      digest(place.first_of_part[part], place.parts[part]);
  rank.stream->synchronize();
}

std::optional<int64_t> ReplayCheck::after_step(const TrainingState& state, const data::Dataset& dataset,
                                               const TargetCounts& targets, RankActivity& activity) {
  if (every_steps_ == 0 || state.step % every_steps_ != 0) return std::nullopt;
  const RecordSpan phase = activity.during(RunPhase::evaluating, state.step);
  MicroBatch mb{.last_of_lane = false, .counts = false};
  set_loss_factors(mb, rank_.job, targets, state.loss_scale.value, state.step);
  if (rank_.tokens) {
    upload(state, dataset);
    mb.arrays = rank_.tokens->arrays(0);
  }
  const bool alone = rank_.mesh.dp == 1;
  compute(mb, 0);
  if (alone) compute(mb, 1);
  if (!is_any_different(alone)) return rank_.mesh.dp;
  // What was packed for products may be what is wrong, and the next step would use it: it is packed again.
  rank_.model->weights_changed();
  if (!alone) compute(mb, 1);
  answer(state.step);
  return std::nullopt;
}

void ReplayCheck::upload(const TrainingState& state, const data::Dataset& dataset) {
  const JobSpec& job = rank_.job;
  const ReplayedMicroBatch of = replayed_micro_batch(job, state.step);
  const std::vector<uint64_t> samples =
      samples_of_step(state, job.batch, job.parallelism, state.step - 1, of.dp);
  const auto count = size_t(job.batch.micro_sequences), width = size_t(job.data.seq_len) + 1;
  data::SampleBatch batch = data::SampleBatch::of(dataset, count, width);
  for (size_t s = 0; s < count; ++s) batch.read(dataset, samples[size_t(of.index) * count + s], s, width);
  rank_.tokens->upload(batch, *rank_.stream);
}

void ReplayCheck::digest(size_t first, std::span<const DigestBox> boxes) {
  if (boxes.empty()) return;
  rank_.backend.run(*rank_.stream,
                    kernels::Digest{.boxes = boxes, .out = static_cast<uint64_t*>(numbers_->data()) + first});
}

void ReplayCheck::compute(const MicroBatch& mb, int round) {
  std::fill_n(static_cast<uint64_t*>(numbers_->data()), numbers_->bytes() / sizeof(uint64_t), 0);
  executor_.replay(
      mb, rank_.loss_sums(),
      {.output = [&](int v,
                     const kernels::Matrix& m) { digest(places_[size_t(v)].output, {{digest_box(m, 1)}}); },
       .gradients =
           [&](int v, int part) {
             const Place& place = places_[size_t(v)];
             digest(place.first_of_part[size_t(part)], place.parts[size_t(part)]);
           },
       .input_gradient =
           [&](int v, const kernels::Matrix& m) {
             digest(places_[size_t(v)].input_gradient, {{digest_box(m, 1)}});
           }});
  rank_.stream->synchronize();
  rank_.comms.check();
  take_digests(round);
}

uint64_t ReplayCheck::sum_of(size_t first, size_t count) const {
  const uint64_t* const numbers = static_cast<const uint64_t*>(numbers_->data()) + first;
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += kernels::digest_element(first + i, 0, numbers[i]);
  return sum;
}

void ReplayCheck::take_digests(int round) {
  for (int v = 0; v < stages_.each; ++v) {
    const Place& place = places_[size_t(v)];
    uint64_t* const of = &seen_[size_t(round * stages_.each + v) * 2];
    of[ReplaySeen::forward] = sum_of(place.output, 1);
    of[ReplaySeen::backward] =
        sum_of(place.input_gradient, 1) + sum_of(place.gradients, place.end - place.gradients);
    if (stages_.global_of(rank_.at.pp, v) + 1 < stages_.count()) continue;
    for (int i = 0; i < rank_.model->loss_sums(); ++i)
      of[ReplaySeen::forward] +=
          kernels::digest_element(uint64_t(i), 1, std::bit_cast<uint64_t>(rank_.loss_sums()[i]));
  }
}

/// both_rounds: whether a rank got other bits the second time; else whether replicas differ the first time.
bool ReplayCheck::is_any_different(bool both_rounds) const {
  const size_t of_round = seen_.size() / size_t(ReplaySeen::kRounds);
  ReplaySums sums;
  if (both_rounds) {
    sums.difference =
        !std::equal(seen_.begin(), seen_.begin() + ptrdiff_t(of_round), seen_.begin() + ptrdiff_t(of_round));
  } else {
    uint64_t digest = 0;
    for (size_t i = 0; i < of_round; ++i) digest += kernels::digest_element(i, 2, seen_[i]);
    sums.difference = parallel::replica_factor(uint64_t(rank_.at.dp), uint64_t(rank_.mesh.dp)) * digest;
  }
  rank_.comms.sum(sums);
  return sums.difference != 0;
}

std::set<int> ReplayCheck::failed_products(const ReplayVerdict& verdict) {
  const int own = rank_.world.rank();
  const bool is_asked = std::binary_search(verdict.ranks.begin(), verdict.ranks.end(), own);
  const uint8_t failed = is_asked && computes_wrongly(rank_.backend);
  std::vector<uint8_t> all(size_t(rank_.world.size()));
  parallel::all_gather(rank_.world.host(), &failed, all.data(), 1);
  std::set<int> ranks;
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r]) ranks.insert(int(r));
  return ranks;
}

void ReplayCheck::answer(int64_t step) {
  ReplaySeen seen{.mesh = rank_.mesh, .stages = stages_};
  seen.digests.resize(seen_.size() * size_t(rank_.world.size()));
  parallel::all_gather(rank_.world.host(), seen_.data(), seen.digests.data(),
                       seen_.size() * sizeof(uint64_t));
  seen.expert_groups.resize(expert_groups_.size() * size_t(rank_.world.size()));
  parallel::all_gather(rank_.world.host(), expert_groups_.data(), seen.expert_groups.data(),
                       expert_groups_.size() * sizeof(int));
  const ReplayVerdict verdict = verdict_on(seen);
  std::set<int> failed;
  if (wants_products(verdict, wrong_before_)) failed = failed_products(verdict);
  const ReplayDecision decision = decision_on(verdict, wrong_before_, failed, step);
  if (decision.answer == ReplayAnswer::none) return;
  if (rank_.world.rank() == 0)
    control_.event(EventKind::replay_differs, dump_json(Json{{"step", step},
                                                             {"answer", word_of(decision.answer)},
                                                             {"ranks", decision.ranks},
                                                             {"replicas", verdict.replicas},
                                                             {"text", decision.text}}));
  if (decision.answer == ReplayAnswer::go_on) {
    wrong_before_.insert(decision.ranks.begin(), decision.ranks.end());
    return;
  }
  parallel::barrier(rank_.world.host());  // the event is sent before a rank fails
  const bool named = std::binary_search(decision.ranks.begin(), decision.ranks.end(), rank_.world.rank());
  if (named)
    throw Error(decision.answer == ReplayAnswer::put_out ? ErrorCode::kDevice : ErrorCode::kHardware,
                decision.text);
  // The others wait in vain until the rank with the fault has failed: one that left before could cut it off.
  try {
    parallel::barrier(rank_.world.host());
  } catch (const Error&) {
  }
  throw Error(ErrorCode::kPeerLost, decision.text);
}

}  // namespace trainctl
