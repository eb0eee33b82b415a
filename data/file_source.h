// From a path of a job to an open source: which files, of which format, read as one stream.
#pragma once
#include <mutex>

#include "data/token_file.h"

namespace trainctl::data {

/// What a path of a job means: its files, all of one format.
struct ResolvedSource {
  Format format = Format::raw;     ///< never automatic
  std::vector<std::string> paths;  ///< in name order; Megatron: prefixes, else files
};
/// Finds files and format by looking at names and first bytes. Error(kData) saying what was tried.
ResolvedSource resolve(const SourceOptions& options);
const char* name_of(Format format);

/// The one TokenSource there is, with what messages and commands need besides.
class FileSource final : public TokenSource {
 public:
  explicit FileSource(const SourceOptions& options);

  uint64_t token_count() const override { return starts_.back(); }
  uint64_t document_count() const override;
  int token_bytes() const override;
  void read(uint64_t offset, std::span<int32_t> out) const override;
  std::string fingerprint() const override;
  std::vector<std::string> files() const override;
  const char* format_name() const override { return data::name_of(format_); }

  Format format() const { return format_; }
  const std::vector<TokenFile>& token_files() const { return files_; }
  /// Where token `offset` of the source is: "FILE, token 17 (byte 1058)".
  std::string describe(uint64_t offset) const;
  /// Gives back the memory of the files that hold these tokens (MappedFile::drop_pages).
  void drop_pages(uint64_t offset, uint64_t tokens) const;
  /// The id of token `offset` as stored, which may not fit int32.
  int64_t value_at(uint64_t offset) const;

 private:
  size_t file_of(uint64_t offset) const;

  Format format_;
  std::vector<TokenFile> files_;
  std::vector<uint64_t> starts_;  ///< [files + 1] first token of each file, then the total
  mutable std::once_flag fingerprint_once_;
  mutable std::string fingerprint_;
};

}  // namespace trainctl::data
