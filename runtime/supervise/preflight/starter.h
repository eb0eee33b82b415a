// A starter job for this machine and the data on it: what `trainctl init` proposes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/plan/device_model.h"
#include "runtime/spec/pages/starter_job.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// A token set that `trainctl data tokenize` has written.
struct FoundTokens {
  std::string path;       ///< "data/train.idx"
  std::string val_path;   ///< its "data/train-val.idx"; "": there is none
  std::string tokenizer;  ///< as data.tokenizer has it, as seen from the current folder
  uint64_t tokens = 0;
  int64_t vocab_size = 0;
};
/// Those in `folder`, by name, without the ones that validate another. Damaged sidecars are left out.
std::vector<FoundTokens> find_tokens(FileSystem& fs, const std::string& folder);

/// Whether this tokenizer, a file or "bytes", made the tokens.
bool is_tokenizer_of(const FoundTokens& tokens, const std::string& tokenizer);

struct StarterMesh {
  int tensor = 1, pipeline = 1, data = 1;
  int context = 1;  ///< ranks that share each sequence
  int expert = 1;   ///< of data * context ranks that share experts
  int ranks() const { return tensor * pipeline * data * context; }
  bool operator==(const StarterMesh&) const = default;
};
/// Reads "1x2x4" (tensor, pipeline, data), "1x2x4xc2" (with context), "1x2x4xe4" or "1x2x4xc2xe4".
std::optional<StarterMesh> parse_starter_mesh(std::string_view text);
std::string text_of(const StarterMesh& mesh);

/// The starter's model that has this shape; its fields say the shape. `name`: of the job.
StarterModel starter_model_of(const ModelSpec& model, const std::string& name);

struct StarterChoice {
  std::string preset;
  std::optional<StarterModel> model;  ///< in place of the preset's
  std::optional<FoundTokens> tokens;  ///< nullopt: the starter's own data/train.idx, which is not there yet
  std::optional<StarterMesh> mesh;    ///< nullopt: the preset's own
  std::string begins_with;  ///< a folder of Hugging Face whose weights are the first; "": random weights
  std::string tokenizer;    ///< where no tokens say theirs; "": the starter's own
  StarterFields changes;    ///< further fields, as StarterJob has them
};
/// The commented spec, as a file in `folder`, to which its paths are relative.
std::string starter_text(const StarterChoice& choice, const std::string& folder);

/// How a starter job fits this machine.
struct StarterFit {
  bool valid = false;  ///< false: see `problem`
  bool known = false;  ///< the memory of the device is known
  bool fits = false;
  uint64_t needed = 0, room = 0;  ///< bytes on one device
  std::string device;
  std::string problem;  ///< why the spec is not valid, one sentence
};
/// `here`: the device of this machine for the job, as device_here makes it.
StarterFit fit_of_starter(const std::string& text, const DeviceModel& here);

/// What this machine trains on.
struct StarterMachine {
  int gpus = 0;  ///< 0: its CPU
  DeviceModel device;
};
StarterMachine starter_machine();
/// The largest preset that fits this machine and trains in reasonable time: on a CPU one that is made for it.
std::string proposed_preset(const StarterMachine& machine);
/// The starter with the fastest mesh of as many ranks as the machine has GPUs (on a CPU one) that fits; where
/// none does, the preset's own mesh, which does not fit here. Ranks share experts as far as the checks of a job
/// allow it, and sequences where the job does not fit without.
StarterChoice proposed_mesh(StarterChoice choice, const StarterMachine& machine);

}  // namespace trainctl
