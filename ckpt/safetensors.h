// The safetensors file format, strict in both directions.
// Source: the rules of the reference implementation, summarised in ckpt/FORMAT.md.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/layout.h"
#include "runtime/base/dtype.h"
#include "runtime/base/file_system.h"

namespace trainctl::ckpt {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                 ///< "F32", "BF16", ...
  std::vector<int64_t> shape;
  uint64_t offset = 0, bytes = 0;    ///< of the data, from the start of the file
};

/// A checked header; data is read through `file`.
struct SafetensorsFile {
  std::unique_ptr<File> file;
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> entries;   ///< in file order
};

/// Error(kCheckpoint) with one sentence for every rule broken (header length, JSON, duplicate keys, holes, overlaps, sizes).
SafetensorsFile open_safetensors(FileSystem& fs, const std::string& path);
/// The same of a file that is open; `path` is for messages.
SafetensorsFile open_safetensors(std::unique_ptr<File> file, const std::string& path);

/// The header bytes (8-byte length included) for entries in the given order; data starts right after, 8-byte aligned.
std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata);

/// All tensors of a folder of Hugging Face files: model.safetensors.index.json, model.safetensors,
/// weights.safetensors, or else every *.safetensors in it
/// (or the path of one file).
class TensorFolder {
 public:
  static std::unique_ptr<TensorFolder> open(FileSystem& fs, const std::string& path);
  virtual ~TensorFolder() = default;
  virtual std::vector<std::string> names() const = 0;
  virtual bool has(const std::string& name) const = 0;
  virtual std::vector<int64_t> shape(const std::string& name) const = 0;
  /// The whole tensor converted to f32 (from F32, BF16, F16, F64).
  std::vector<float> read_f32(const std::string& name);
  /// A box of it as a matrix [first dimension, the others together], converted likewise, to out [box.count()]. Reads the bytes of the
  /// box alone and holds a few MiB at a time.
  virtual void read_f32(const std::string& name, const parallel::Box& box, float* out) = 0;
};

}  // namespace trainctl::ckpt
