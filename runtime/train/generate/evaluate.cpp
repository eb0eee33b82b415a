#include "runtime/train/generate/evaluate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "data/loss_file.h"
#include "data/sidecar.h"
#include "runtime/base/error.h"
#include "runtime/model/batch.h"
#include "runtime/train/generate/asked_format.h"
#include "runtime/train/trainer.h"

namespace trainctl {
namespace {

int64_t at_most(int64_t available, int64_t limit) {
  return limit > 0 ? std::min(available, limit) : available;
}

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename(); }

/// Bits of the text for each byte, for a loss in nats a token.
std::optional<double> bits_per_byte(double loss, const std::string& path) {
  const std::optional<data::Sidecar> sidecar = data::read_sidecar(path);
  if (!sidecar || sidecar->text_bytes == 0 || sidecar->tokens == 0) return std::nullopt;
  return loss / std::log(2.0) * double(sidecar->tokens) / double(sidecar->text_bytes);
}

SourceResult evaluate_source(Generator& generator, const data::Dataset& dataset, const DataSpec& spec,
                             int64_t limit, const std::function<void(int64_t, int64_t)>& each) {
  const size_t t = size_t(generator.seq_len());
  SourceResult result{.available = int64_t(dataset.samples_per_epoch())};
  result.sequences = at_most(result.available, limit);
  data::SampleBatch read = data::SampleBatch::of(dataset, 1, t + 1);
  const SampleTokens sample{.tokens = read.tokens,
                            .document_start = read.document_starts,
                            .weights = read.weights,
                            .counts_boundaries = spec.count_boundary_targets};
  const std::span starts =
      std::span<const int32_t>(read.document_starts).first(read.document_starts.empty() ? 0 : t);
  std::vector<int32_t> targets(t);
  double sum = 0;
  for (int64_t i = 0; i < result.sequences; ++i) {
    read.read(dataset, uint64_t(i), 0, t + 1);
    kBatchRows[size_t(BatchField::targets)].fill(sample, targets.data());
    const std::vector<float> losses = generator.losses(std::span(read.tokens).first(t), targets, starts);
    for (size_t j = 0; j < t; ++j) {
      sum += sample.weight(j) * double(losses[j]);
      result.targets += sample.weight(j);
    }
    each(i + 1, result.sequences);
  }
  dataset.require_unchanged();
  if (result.targets == 0)
    throw Error(ErrorCode::kData,
                fmt::format("no target of the first {} sequences counts (data.documents, data.loss)",
                            result.sequences));
  result.loss = sum / double(result.targets);
  if (!std::isfinite(result.loss))
    throw Error(ErrorCode::kCheckpoint, "the loss is not finite: the model's weights have diverged");
  return result;
}

/// Whether the source knows where its documents begin, where the run kept them apart.
bool keeps_documents(const DataSpec& spec, const data::SourceOptions& source) {
  return spec.masks_documents() && data::open_source(source)->document_count() > 0;
}

bool has_loss_file(FileSystem& fs, const data::SourceOptions& source) {
  const std::vector<std::string> paths = data::resolve(source).paths;
  return std::any_of(paths.begin(), paths.end(),
                     [&](const std::string& path) { return fs.exists(data::loss_path(path)); });
}

std::vector<SourceResult> evaluate_sources(FileSystem& fs, Generator& generator, const JobSpec& job,
                                           const EvaluateRequest& request,
                                           const std::function<void(const std::string&)>& each) {
  DataSpec spec = job.data;
  if (!request.data.empty()) spec.val.clear();
  for (const std::string& path : request.data) {
    DataSource source;
    source.path = path;
    spec.val.push_back(std::move(source));
  }
  std::vector<SourceResult> results;
  const data::DatasetOptions all = dataset_options(spec, job.model.vocab_size, true);
  for (const data::SourceOptions& source : all.sources) {
    const double begin = real_clock().monotonic_s();
    const std::string name = source.name.empty() ? source.path : source.name;
    data::DatasetOptions one = all;
    one.sources = {source};
    one.documents = keeps_documents(spec, source);
    one.packed &= one.documents;
    if (!has_loss_file(fs, source)) {  // others of the run have one
      one.sources[0].loss = false;
      one.loss = data::LossUse::all;
    }
    const auto dataset = data::open_dataset(one);
    SourceResult result = evaluate_source(
        generator, *dataset, spec, request.most_sequences,
        [&](int64_t done, int64_t of) { each(fmt::format("{}: {} of {} sequences", name, done, of)); });
    result.name = name;
    if (one.loss == data::LossUse::all) result.bits_per_byte = bits_per_byte(result.loss, source.path);
    result.seconds = real_clock().monotonic_s() - begin;
    results.push_back(std::move(result));
  }
  return results;
}

/// Error(kData): one of the token sets was made with another tokenizer, so that its loss would mean nothing.
void refuse_other_tokenizer(FileSystem& fs, const std::vector<std::string>& sets,
                            const data::TokenizerChoice& choice) {
  for (const std::string& set : sets)
    for (const std::string& path : data::resolve({.path = set}).paths)
      if (const auto sidecar = data::read_sidecar(path))
        if (const Problem problem = data::other_tokenizer(fs, *sidecar, path, choice); problem.exists())
          throw Error(ErrorCode::kData, problem.text());
}

/// Error(kCheckpoint).
void require_finite(const TaskFile& file, std::span<const Likelihood> of_endings) {
  for (size_t i = 0; i < file.examples.size(); ++i) {
    const size_t count = file.examples[i].endings.size();
    for (const Likelihood& ending : of_endings.first(count))
      if (!std::isfinite(ending.log))
        throw Error(
            ErrorCode::kCheckpoint,
            fmt::format(
                "an ending of {}, example {} has a likelihood that is not finite: the model's weights have "
                "diverged",
                file.path, i + 1));
    of_endings = of_endings.subspan(count);
  }
}

TaskResult evaluate_task(Generator& generator, const TaskFile& file, std::optional<int32_t> start_token,
                         const std::function<void(const std::string&)>& each) {
  const double begin = real_clock().monotonic_s();
  TaskResult result{
      .path = file.path, .examples = int64_t(file.examples.size()), .available = file.available};
  const TaskLikelihoods likelihoods = task_likelihoods(generator, file, start_token, [&](int64_t done) {
    each(fmt::format("{}: {} of {} examples", file_name(file.path), done, result.examples));
  });
  require_finite(file, likelihoods.of_endings);
  const RightEndings right = right_endings(file, likelihoods.of_endings);
  result.right_by_mean = right.by_mean, result.right_by_sum = right.by_sum;
  result.cut = likelihoods.cut;
  result.seconds = real_clock().monotonic_s() - begin;
  return result;
}

}  // namespace

TaskLikelihoods task_likelihoods(Generator& generator, const TaskFile& file,
                                 std::optional<int32_t> start_token,
                                 const std::function<void(int64_t examples)>& each) {
  TaskLikelihoods all;
  all.of_endings.resize(size_t(ending_count(file)));
  all.cut = pack_task(
      file, start_token, generator.seq_len(),
      [&](const PackedTexts& packed) {
        packed.take(generator.losses(packed.tokens, packed.targets, packed.starts), all.of_endings);
      },
      each);
  return all;
}

EvaluateResult evaluate(FileSystem& fs, TrainedModel& model, const EvaluateRequest& request,
                        const std::function<void(const std::string&)>& each) {
  JobSpec job = in_format(model.job, request.compute);
  if (request.seq_len > job.model.max_seq_len)
    throw Error(ErrorCode::kUsage, fmt::format("sequences of {} tokens are longer than the model allows, {}",
                                               request.seq_len, job.model.max_seq_len));
  if (request.seq_len > 0) job.data.seq_len = request.seq_len;
  if (request.tasks.empty() && request.data.empty() && job.data.val.empty())
    throw Error(ErrorCode::kData,
                fmt::format("{} has no validation data; give --tasks FILE or --data PATH", model.path));
  // All files, before the model is loaded.
  const data::TokenizerChoice tokenizer = tokenizer_for(fs, job.data, request.tokenizer);
  refuse_other_tokenizer(fs, request.data, tokenizer);
  const TaskFiles tasks =
      read_task_files(fs, request.tasks, tokenizer, job.model.vocab_size, request.most_examples);
  const auto backend = one_device(job, request.threads);
  const std::unique_ptr<Generator> generator = model.on(*backend, job);
  EvaluateResult result{.step = model.step, .tasks = {}, .sources = {}};
  for (const TaskFile& file : tasks.files)
    result.tasks.push_back(evaluate_task(*generator, file, tasks.start_token, each));
  if (request.tasks.empty() || !request.data.empty())
    result.sources = evaluate_sources(fs, *generator, job, request, each);
  return result;
}

}  // namespace trainctl
