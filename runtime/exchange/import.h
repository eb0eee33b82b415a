// `trainctl import`: a Hugging Face folder as a checkpoint of step 0, from which `launch --from` begins.
#pragma once
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

struct ImportRequest {
  std::string from, out;
  bool takes_tokenizer = true;  ///< false (--no-tokenizer): the folder's tokenizer is not looked at
};

struct ImportReport {
  std::string from, out;
  ModelSpec model;
  std::string architecture;
  uint64_t tensors = 0, parameters = 0;
  std::string root_hash, tokenizer;
  std::vector<std::string> left_out;  ///< tensors of the folder that are no parameters
  std::vector<std::string> notes;
  std::string text() const;
  std::string to_json() const;
};

/// Writes the weights of the folder `from` (in f32, bf16, f16 or f64), with moments of zero, as the
/// checkpoint folder `out`. Holds some chunks at a time, never the whole model. Error(kUsage): `from` is no
/// folder, or `out` is not free. Error(kData): config.json or the tokenizer is unknown, by the name of the
/// part. Error(kCheckpoint): tensors are missing, unknown, damaged or under two names. Error(kIo). After an
/// Error nothing is left.
ImportReport import_folder(FileSystem& fs, const ImportRequest& request);

}  // namespace trainctl
