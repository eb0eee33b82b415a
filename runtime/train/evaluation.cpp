#include "runtime/train/evaluation.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/model/batch.h"
#include "runtime/model/stage_program.h"
#include "runtime/train/forward_run.h"

namespace trainctl {
namespace {

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
      counts_boundaries_(job.data.count_boundary_targets),
      micro_sequences_(job.batch.micro_sequences),
      seq_len_(job.data.seq_len),
      together_(evaluated_together(job)),
      last_step_(job.schedule.total_steps) {}

int64_t Evaluation::sequences(int64_t available) const {
  if (spec_.max_sequences > 0) available = std::min(available, spec_.max_sequences);
  return std::max(micro_sequences_, available / micro_sequences_ * micro_sequences_);
}

double Evaluation::loss(data::Dataset& validation, RankResources& rank, Executor& executor,
                        RankActivity& activity) const {
  const int64_t micro = micro_sequences_;
  EvaluationSums sums;
  const size_t width = size_t(seq_len_) + 1;
  run_forward({.micro_batches = sequences(int64_t(validation.samples_per_epoch())) / micro,
               .together = together_,
               .tokens = rank.tokens.get(),
               .upload =
                   [&](int64_t first, int count) {
                     data::SampleBatch samples =
                         data::SampleBatch::of(validation, size_t(count * micro), width);
                     for (int64_t s = 0; s < count * micro; ++s)
                       samples.read(validation, uint64_t(first * micro + s), size_t(s), width);
                     rank.tokens->upload(samples, *rank.stream);
                   },
               .done =
                   [&](int64_t, int count) {
                     if (!rank.owns_losses()) return;
                     for (int i = 0; i < count * rank.model->losses(); ++i)
                       sums.loss.add(rank.loss_sums()[i]);
                     sums.targets += rank.tokens->targets_weight();
                   }},
              rank, executor, activity);
  if (rank.tokens) validation.require_unchanged();
  rank.comms.sum(sums);
  return sums.loss.value() / double(sums.targets);
}

bool Evaluation::follows(int64_t step) const {
  return spec_.every_steps > 0 && (step % spec_.every_steps == 0 || step == last_step_);
}

void Evaluation::check(const data::Dataset& validation,
                       const std::function<void(uint64_t, uint64_t)>& progress) const {
  if (validation.samples_per_epoch() < uint64_t(micro_sequences_))
    throw Error(
        ErrorCode::kData,
        fmt::format(
            "the validation set holds {} sequences of {} tokens, fewer than batch.micro_sequences = {}; "
            "give it more text or set eval.every_steps = 0",
            validation.samples_per_epoch(), seq_len_, micro_sequences_));
  if (!validation.has_documents() && !validation.has_weights()) return;
  data::SampleBatch read = data::SampleBatch::of(validation, 1, size_t(seq_len_) + 1);
  const SampleTokens sample{.tokens = read.tokens,
                            .document_start = read.document_starts,
                            .weights = read.weights,
                            .counts_boundaries = counts_boundaries_};
  const int64_t count = sequences(int64_t(validation.samples_per_epoch()));
  for (int64_t i = 0; i < count; ++i) {
    if (progress && i % 256 == 0) progress(uint64_t(i), uint64_t(count));
    read.read(validation, uint64_t(i), 0, size_t(seq_len_) + 1);
    for (size_t t = 0; t < size_t(seq_len_); ++t)
      if (sample.weight(t) > 0) return;
  }
  throw Error(ErrorCode::kData,
              fmt::format("no target of the {} sequences of {} tokens that are evaluated counts "
                          "(data.documents, data.loss); give the validation set other text or set "
                          "eval.every_steps = 0",
                          count, seq_len_));
}

}  // namespace trainctl
