#include "runtime/train/run_tasks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>

#include "runtime/model/stage_program.h"
#include "runtime/train/forward_run.h"

namespace trainctl {
namespace {

TaskFiles files_of(const JobSpec& job, FileSystem& fs) {
  return read_task_files(fs, job.eval.tasks, tokenizer_of(job.data), job.model.vocab_size,
                         job.eval.max_examples);
}

size_t counted(const PackedTexts& sequence) {
  size_t count = 0;
  for (const PackedTexts::Text& text : sequence.texts) count += text.end - text.begin;
  return count;
}

}  // namespace

RunTasks::RunTasks(FileSystem& fs, RankResources& rank) : rank_(rank), tasks_(files_of(rank.job, fs)) {
  for (const TaskFile& file : tasks_.files) add(file);
  parallel::SequenceCut cut = rank.tables.shape.cut;
  cut.rank = rank.at.cp;
  const int together = evaluated_together(rank.job);
  tokens_ = cut.tokens_of(cut.rank);
  feed_ = std::make_unique<TokenFeed>(task_rows(rank.plan.batch), together * rank.job.batch.micro_sequences,
                                      cut, false, rank.backend);
  if (rank.plan.batch.last)
    losses_ = rank.backend.allocate_host(size_t(together) * size_t(rank.tables.shape.rows) * sizeof(float));
}

void RunTasks::add(const TaskFile& file) {
  pack_task(file, tasks_.start_token, rank_.job.data.seq_len, [&](const PackedTexts& packed) {
    sequences_.push_back(packed);
    for (PackedTexts::Text& text : sequences_.back().texts) text.number += endings_;
    targets_before_.push_back(targets_before_.back() + counted(packed));
  });
  endings_ += size_t(ending_count(file));
}

void RunTasks::check(const JobSpec& job, FileSystem& fs) {
  const TaskFiles tasks = files_of(job, fs);
  for (const TaskFile& file : tasks.files)
    pack_task(file, tasks.start_token, job.data.seq_len, [](const PackedTexts&) {});
}

bool RunTasks::follow(int64_t step) const {
  const EvalSpec& eval = rank_.job.eval;
  const int64_t every = eval.tasks_every_steps > 0 ? eval.tasks_every_steps : eval.every_steps;
  return (every > 0 && step % every == 0) || step == rank_.job.schedule.total_steps;
}

/// Sequences beyond the last one are of documents of one token, of which none counts.
void RunTasks::upload(int64_t first, int count) {
  const int64_t micro = rank_.job.batch.micro_sequences;
  const size_t t = size_t(rank_.job.data.seq_len), n = size_t(count * micro);
  PerField<std::vector<int32_t>> all;
  for (size_t i = 0; i < n; ++i) {
    const size_t number = size_t(first * micro) + i;
    const PackedTexts none, &sequence = number < sequences_.size() ? sequences_[number] : none;
    PerField<std::vector<int32_t>> rows = padded_rows(sequence.tokens, sequence.targets, sequence.starts, t);
    for (const int32_t target : rows[BatchField::targets])
      rows[BatchField::weights].push_back(std::bit_cast<int32_t>(target < 0 ? 0.f : 1.f));
    for (const BatchRow& row : kBatchRows)
      all[row.field].insert(all[row.field].end(), rows[row.field].begin(), rows[row.field].end());
  }
  feed_->upload(all, n, *rank_.stream);
}

/// Sets, of the targets that count in order, the losses that this rank has.
void RunTasks::take(int64_t first, int count, std::span<float> losses) const {
  const int64_t micro = rank_.job.batch.micro_sequences;
  const size_t t = size_t(rank_.job.data.seq_len), rows = tokens_.size();
  const auto* computed = static_cast<const float*>(losses_->data());
  for (int i = 0; i < count; ++i) {
    std::vector<float> whole(size_t(micro) * t);
    for (size_t row = 0; row < rows; ++row) whole[size_t(tokens_[row])] = computed[size_t(i) * rows + row];
    for (size_t s = 0; s < size_t(micro); ++s) {
      const size_t number = size_t((first + i) * micro) + s;
      if (number >= sequences_.size()) return;
      size_t at = targets_before_[number];
      for (const PackedTexts::Text& text : sequences_[number].texts)
        for (size_t place = text.begin; place < text.end; ++place) losses[at++] = whole[s * t + place];
    }
  }
}

std::vector<TaskScore> RunTasks::score(Executor& executor, RankActivity& activity) {
  const int64_t micro = rank_.job.batch.micro_sequences;
  std::vector<float> losses(targets_before_.back());
  run_forward(
      {.micro_batches = (int64_t(sequences_.size()) + micro - 1) / micro,
       .together = evaluated_together(rank_.job),
       .tokens = feed_.get(),
       .upload = [&](int64_t first, int count) { upload(first, count); },
       .passed =
           [&](int at) {
             if (losses_)
               rank_.model->copy_losses(static_cast<float*>(losses_->data()) + size_t(at) * tokens_.size());
           },
       .done =
           [&](int64_t first, int count) {
             if (rank_.owns_losses()) take(first, count, losses);
           }},
      rank_, executor, activity);
  rank_.comms.sum_parts(losses);
  std::vector<Likelihood> of_endings(endings_);
  std::span<const float> left = losses;
  for (const PackedTexts& sequence : sequences_) {
    std::vector<float> of_tokens(sequence.tokens.size());
    for (const PackedTexts::Text& text : sequence.texts) {
      std::copy_n(left.begin(), text.end - text.begin, of_tokens.begin() + ptrdiff_t(text.begin));
      left = left.subspan(text.end - text.begin);
    }
    sequence.take(of_tokens, of_endings);
  }
  return scores_of(of_endings);
}

std::vector<TaskScore> RunTasks::scores_of(std::span<const Likelihood> of_endings) const {
  std::vector<TaskScore> scores;
  for (const TaskFile& file : tasks_.files) {
    const std::span own = of_endings.first(size_t(ending_count(file)));
    of_endings = of_endings.subspan(own.size());
    TaskScore score{.name = std::filesystem::path(file.path).filename().string(),
                    .examples = int64_t(file.examples.size())};
    // A model that has diverged has no likeliest ending.
    if (std::all_of(own.begin(), own.end(), [](const Likelihood& l) { return std::isfinite(l.log); })) {
      const RightEndings right = right_endings(file, own);
      score.accuracy = double(right.by_mean) / double(score.examples);
      score.accuracy_of_sums = double(right.by_sum) / double(score.examples);
    }
    scores.push_back(std::move(score));
  }
  return scores;
}

}  // namespace trainctl
