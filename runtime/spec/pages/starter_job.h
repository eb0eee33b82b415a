// The commented spec that `trainctl init` writes: a model, and what a first run of that model takes. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trainctl {

/// Fields and their values as JSON text.
using StarterFields = std::vector<std::pair<std::string, std::string>>;

/// The model of a starter.
struct StarterModel {
  std::string name;     ///< of the job
  std::string summary;  ///< "GPT-2 small"
  int64_t parameters = 0, seq_len = 0;
  StarterFields fields;                    ///< of the section `model`
  int tensor = 1, pipeline = 1, data = 1;  ///< a mesh that fits H100 GPUs with 80 GB
  bool needs_gpus = false;                 ///< no one machine trains it on its cores
};
/// nullopt: there is no such preset.
std::optional<StarterModel> starter_model(const std::string& preset);

struct StarterJob {
  StarterModel model;
  int64_t data_tokens = 0;  ///< of the training data; 0: not known
  StarterFields changes;    ///< in place of the starter's own or in addition; a value "" leaves the field out
  std::string note;         ///< a sentence for the head of the file
};
std::string starter_job(const StarterJob& starter);

/// What a first run of a model takes, by its number of parameters and of the tokens there are.
struct StarterScale {
  int64_t step_tokens, total_tokens, warmup_tokens;
  int64_t longest_sequence;  ///< small models learn more from more and shorter ones
  std::string lr, min_lr;
};
StarterScale starter_scale(int64_t parameters, int64_t data_tokens);

}  // namespace trainctl
