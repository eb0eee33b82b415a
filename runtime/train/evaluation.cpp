#include "runtime/train/evaluation.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

/// A trace shows these of an evaluation; the others are alike.
constexpr int64_t kTracedMicroBatches = 8;

}  // namespace

int64_t evaluated_sequences(const JobSpec& job, int64_t available) {
  const int64_t unit = job.batch.micro_sequences;
  if (job.eval.max_sequences > 0) available = std::min(available, job.eval.max_sequences);
  return std::max<int64_t>(unit, available / unit * unit);
}

double evaluate(const JobSpec& job, data::Dataset& validation, RankResources& rank, Executor& executor,
                RankActivity& activity) {
  const int64_t micro = job.batch.micro_sequences;
  const int64_t sequences = evaluated_sequences(job, int64_t(validation.samples_per_epoch()));
  // Any share will do: the sum is exact.
  const int64_t all_mb = sequences / micro, begin = rank.at.dp * all_mb / rank.mesh.dp,
                end = (rank.at.dp + 1) * all_mb / rank.mesh.dp;
  ExactSum loss;
  const size_t t = size_t(job.data.seq_len);
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
    std::vector<int32_t> samples(size_t(micro) * (t + 1));
    MicroBatch mb;
    if (rank.tokens) {
      for (int64_t s = 0; s < micro; ++s)
        validation.sample(uint64_t(index * micro + s),
                          std::span(samples).subspan(size_t(s) * (t + 1), t + 1));
      rank.tokens->upload(samples, *rank.stream);
      mb.tokens = rank.tokens->inputs(0);
      mb.targets = rank.tokens->targets(0);
    }
    executor.evaluate(mb, rank.loss_sums());
    rank.stream->synchronize();
    rank.comms.check();
    if (rank.owns_losses() && begin + turn < end) loss.add(*rank.loss_sums());
    activity.progress(uint64_t(turn + 1), uint64_t(turns), false);
  }
  if (rank.tokens) validation.require_unchanged();
  activity.record_details(true);
  rank.comms.sum(loss);
  return loss.value() / double(sequences * job.data.seq_len);
}

bool is_evaluated(const JobSpec& job, int64_t step) {
  return job.eval.every_steps > 0 && (step % job.eval.every_steps == 0 || step == job.schedule.total_steps);
}

void check_validation_size(const data::Dataset& validation, const JobSpec& job) {
  const uint64_t unit = uint64_t(job.batch.micro_sequences);
  if (validation.samples_per_epoch() >= unit) return;
  throw Error(
      ErrorCode::kData,
      fmt::format(
          "the validation set holds {} sequences of {} tokens, fewer than batch.micro_sequences = {}; "
          "give it more text or set eval.every_steps = 0",
          validation.samples_per_epoch(), job.data.seq_len, job.batch.micro_sequences));
}

}  // namespace trainctl
