#include "runtime/supervise/preflight/job_mix.h"

#include "data/dataset.h"
#include "runtime/train/trainer.h"

namespace trainctl {

data::Mix mix_of_job(const JobSpec& job, std::optional<uint64_t> tokens) {
  const data::DatasetOptions options = dataset_options(job.data, job.model.vocab_size, false);
  std::vector<data::MixSource> sources;
  for (const data::SourceOptions& source : options.sources) {
    sources.push_back({.name = source.name.empty() ? source.path : source.name,
                       .tokens = data::open_source(source)->token_count(),
                       .weight = source.weight});
    if (!options.packed) continue;
    data::DatasetOptions one = options;
    one.sources = {source};
    one.sources[0].weight = 1;
    const auto packed = data::open_dataset(one);
    sources.back().samples = packed->samples_per_epoch();
    sources.back().padding = packed->padding();
  }
  const auto seq_len = uint64_t(options.seq_len), step = uint64_t(job.batch.global_sequences);
  const uint64_t steps =
      tokens ? (*tokens + step * seq_len - 1) / (step * seq_len) : uint64_t(job.schedule.total_steps);
  return data::mix_of(sources, seq_len, steps * step);
}

std::unique_ptr<data::Dataset> open_training_data(const DataSpec& data, int64_t vocab_size) {
  return data::open_dataset(dataset_options(data, vocab_size, false));
}

}  // namespace trainctl
