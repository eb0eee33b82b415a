// The tensors of an export: written piece by piece, and read again.
#pragma once
#include <map>
#include <string>

#include "runtime/exchange/export.h"

namespace trainctl {

/// A tensor is read in pieces of so many floats, ...
inline constexpr int64_t kExportFloats = int64_t(4) << 20;
/// ... of which so many are held at a time: one is read while the other is rounded, hashed and written.
inline constexpr size_t kExportAhead = 2;

/// What was written of a tensor.
struct WrittenTensor {
  uint64_t hash = 0;  ///< XXH3 of its bytes
  double largest_rounding = 0;
};

/// Writes one file of the export into `folder`, with the weights of `checkpoint` (Role::master), and syncs
/// it.
std::map<std::string, WrittenTensor> write_export_file(FileSystem& fs, const std::string& folder,
                                                       const ExportFile& file, const ParamTable& table,
                                                       ckpt::Checkpoint& checkpoint);

/// Opens the folder as a reader does and reads every byte: each tensor of `files` is there once, in its
/// shape, with the hash that it was written with, and no other one. Error(kCheckpoint) names the first that
/// is not.
void read_back(FileSystem& fs, const std::string& folder, const std::vector<ExportFile>& files,
               const std::map<std::string, WrittenTensor>& written);

}  // namespace trainctl
