// The safetensors file format. Reader and writer follow its rules strictly.
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
  uint64_t offset = 0, bytes = 0;    ///< start of the data in the file, and its size
};

/// An open file with its checked header. Read the data from `file`.
struct SafetensorsFile {
  std::unique_ptr<File> file;
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> entries;   ///< in file order
};

/// Opens a file. Error(kCheckpoint), one sentence, if it breaks a rule (header length, JSON, duplicate keys,
/// holes, overlaps, sizes).
SafetensorsFile open_safetensors(FileSystem& fs, const std::string& path);
/// Reads the header of an open file. `path`: for messages.
SafetensorsFile open_safetensors(std::unique_ptr<File> file, const std::string& path);

/// The bytes of the header, with the 8-byte length, for entries in the given order. The data begin directly
/// after it, 8-byte aligned.
std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata);

/// All tensors of one file, or of a folder of Hugging Face files: those of model.safetensors.index.json,
/// model.safetensors or weights.safetensors, otherwise every *.safetensors in the folder.
class TensorFolder {
 public:
  static std::unique_ptr<TensorFolder> open(FileSystem& fs, const std::string& path);
  virtual ~TensorFolder() = default;
  virtual std::vector<std::string> names() const = 0;
  virtual bool has(const std::string& name) const = 0;
  virtual std::vector<int64_t> shape(const std::string& name) const = 0;
  /// Reads a whole tensor, converted to f32 (from F32, BF16, F16, F64).
  std::vector<float> read_f32(const std::string& name);
  /// Reads a box of the tensor into out [box.count()], converted to f32. As a matrix, the tensor is [first
  /// dimension, product of the others]. Reads only the bytes of the box and holds a few MiB at a time.
  virtual void read_f32(const std::string& name, const parallel::Box& box, float* out) = 0;
};

}  // namespace trainctl::ckpt
