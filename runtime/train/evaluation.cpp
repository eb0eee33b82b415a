#include "runtime/train/evaluation.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

/// A trace shows these of an evaluation; the others are alike.
constexpr int64_t kTracedMicroBatches = 8;

struct EvaluationSums {
  ExactSum loss;
  int64_t targets = 0;  // their weights
  void add(const EvaluationSums& other) {
    loss.add(other.loss);
    targets += other.targets;
  }
};

}  // namespace

Evaluation::Evaluation(const JobSpec& job)
    : spec_(job.eval),
      micro_sequences_(job.batch.micro_sequences),
      seq_len_(job.data.seq_len),
      last_step_(job.schedule.total_steps) {}

int64_t Evaluation::sequences(int64_t available) const {
  if (spec_.max_sequences > 0) available = std::min(available, spec_.max_sequences);
  return std::max(micro_sequences_, available / micro_sequences_ * micro_sequences_);
}

double Evaluation::loss(data::Dataset& validation, RankResources& rank, Executor& executor,
                        RankActivity& activity) const {
  const int64_t micro = micro_sequences_;
  const int64_t sequences = this->sequences(int64_t(validation.samples_per_epoch()));
  // Any share will do: the sum is exact.
  const int64_t all_mb = sequences / micro, begin = rank.at.dp * all_mb / rank.mesh.dp,
                end = (rank.at.dp + 1) * all_mb / rank.mesh.dp;
  EvaluationSums sums;
  const size_t width = size_t(seq_len_) + 1;
  // Equally often on all ranks, which gather weights from each other: some compute a micro-batch that is
  // another's.
  const int64_t turns = (all_mb + rank.mesh.dp - 1) / rank.mesh.dp;
  for (int64_t turn = 0; turn < turns; ++turn) {
    const int64_t index = std::min(begin + turn, all_mb - 1);
    const bool is_traced = turn < kTracedMicroBatches;
    activity.record_details(is_traced);
    SpanRecorder* const spans = is_traced ? activity.spans() : nullptr;
    Span of_micro_batch = named_span(spans, SpanKind::part, "evaluate", -1);
    of_micro_batch.micro_batch = int32_t(turn);
    const RecordSpan span(spans, of_micro_batch);
    MicroBatch mb;
    if (rank.tokens) {
      data::SampleBatch samples = data::SampleBatch::of(validation, size_t(micro), width);
      for (int64_t s = 0; s < micro; ++s)
        validation.sample(uint64_t(index * micro + s), samples.rows(size_t(s), width));
      rank.tokens->upload(samples, *rank.stream);
      mb.arrays = rank.tokens->arrays(0);
    }
    executor.evaluate(mb, rank.loss_sums());
    rank.stream->synchronize();
    rank.comms.check();
    if (rank.owns_losses() && begin + turn < end) {
      for (int i = 0; i < rank.model->losses(); ++i) sums.loss.add(rank.loss_sums()[i]);
      sums.targets += rank.tokens->targets_weight();
    }
    activity.progress(uint64_t(turn + 1), uint64_t(turns), false);
  }
  if (rank.tokens) validation.require_unchanged();
  activity.record_details(true);
  rank.comms.sum(sums);
  return sums.loss.value() / double(sums.targets);
}

bool Evaluation::follows(int64_t step) const {
  return spec_.every_steps > 0 && (step % spec_.every_steps == 0 || step == last_step_);
}

void Evaluation::check_size(const data::Dataset& validation) const {
  if (validation.samples_per_epoch() >= uint64_t(micro_sequences_)) return;
  throw Error(
      ErrorCode::kData,
      fmt::format(
          "the validation set holds {} sequences of {} tokens, fewer than batch.micro_sequences = {}; "
          "give it more text or set eval.every_steps = 0",
          validation.samples_per_epoch(), seq_len_, micro_sequences_));
}

}  // namespace trainctl
