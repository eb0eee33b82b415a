#include "runtime/train/trainer.h"

#include <utility>

namespace trainctl {

data::DatasetOptions dataset_options(const DataSpec& spec, int64_t vocab_size, bool validation) {
  data::DatasetOptions o;
  for (const DataSource& s : validation ? spec.val : spec.train) {
    data::SourceOptions source{.path = s.path, .dtype = s.dtype, .weight = s.weight, .name = s.name};
    switch (s.format) {
      case TokenFormat::automatic: source.format = data::Format::automatic; break;
      case TokenFormat::megatron: source.format = data::Format::megatron; break;
      case TokenFormat::llmc: source.format = data::Format::llmc; break;
      case TokenFormat::raw: source.format = data::Format::raw; break;
    }
    o.sources.push_back(std::move(source));
  }
  o.seq_len = spec.seq_len;
  o.vocab_size = vocab_size;
  o.shuffle = validation ? false : spec.shuffle;
  o.seed = spec.shuffle_seed;
  o.documents = spec.masks_documents();
  o.packed = spec.packing == PackingKind::best_fit;
  o.loss = spec.weighs_targets() ? data::LossUse::weights
           : spec.reads_loss()   ? data::LossUse::mask
                                 : data::LossUse::all;
  for (data::SourceOptions& source : o.sources) source.loss = spec.reads_loss();
  return o;
}

}  // namespace trainctl
