// FileSource: the token source for a path of a job, with one or more files of one format.
#pragma once
#include <atomic>
#include <mutex>

#include "data/packing.h"
#include "data/token_file.h"
#include "runtime/base/file_system.h"
#include "runtime/base/problem.h"

namespace trainctl::data {

/// The files of a source, all of one format.
struct ResolvedSource {
  Format format = Format::raw;     ///< never automatic
  std::vector<std::string> paths;  ///< in name order; Megatron: prefixes, else files
};
/// Finds the files and the format from names and first bytes. Error(kData) says what was tried.
ResolvedSource resolve(const SourceOptions& options);
const char* name_of(Format format);
/// Whether files of this format have the boundaries of documents.
inline bool has_documents(Format format) { return format == Format::megatron; }
/// Why documents of a source cannot be kept apart; none where its format has their boundaries.
///   packed   data.packing is best_fit, else data.documents is mask
Problem lacks_documents(const std::string& name, Format format, bool packed);

/// What FileSource::fingerprint() is for a source of one token set: of its files, the index first.
std::string fingerprint_of(FileSystem& fs, Format format, const std::vector<std::string>& paths);

/// The only implementation of TokenSource, with functions for messages and commands.
class FileSource final : public TokenSource {
 public:
  explicit FileSource(const SourceOptions& options);

  uint64_t token_count() const override { return starts_.back(); }
  uint64_t document_count() const override;
  int token_bytes() const override;
  void read(uint64_t offset, std::span<int32_t> out) const override;
  /// Whether its files have document boundaries. The documents of one file are not those of the next.
  bool has_documents() const { return data::has_documents(format_); }
  /// Of tokens [offset, offset + out.size()): the first of them, counted from `offset`, that is of the same
  /// document.
  void document_starts(uint64_t offset, std::span<int32_t> out) const;
  /// The samples of best-fit packing, of seq_len + 1 tokens each. This object must outlive the result.
  Packing packing(uint64_t seq_len) const;
  /// How much tokens [offset, offset + out.size()) count as targets: 1 each without SourceOptions::loss.
  void weights(uint64_t offset, std::span<uint8_t> out) const;
  /// A hash of the headers of the loss files, which have a hash of the weights; "none" without loss files.
  std::string loss_hash() const;
  std::string fingerprint() const override;
  std::vector<std::string> files() const override;
  const char* format_name() const override { return data::name_of(format_); }

  Format format() const { return format_; }
  const std::vector<TokenFile>& token_files() const { return files_; }
  /// The place of token `offset` for messages: "FILE, token 17 (byte 1058)".
  std::string describe(uint64_t offset) const;
  /// The file of token `offset`, and the token's position in it.
  std::pair<std::string, uint64_t> file_and_token(uint64_t offset) const;
  /// Calls MappedFile::drop_pages for the files of these tokens.
  void drop_pages(uint64_t offset, uint64_t tokens) const;
  /// Error(kData): a file that was read since the last call was written to or shortened.
  void require_unchanged() const;
  /// xxh3 of size, first and last 4 KiB of every file: cheap enough for every rank. 16 hex digits.
  std::string ends() const;
  /// The id of token `offset` as stored, which may not fit int32.
  int64_t value_at(uint64_t offset) const;

 private:
  size_t file_of(uint64_t offset) const;
  /// The documents of a file from document `first` on: those of one window of its packing.
  std::vector<TokenRange> documents_of_window(size_t file, uint64_t first) const;

  Format format_;
  std::vector<TokenFile> files_;
  mutable std::vector<std::atomic<bool>> was_read_;  ///< [files] since require_unchanged
  mutable std::atomic<bool> documents_read_ = false;  ///< ever: the indexes are read, too
  std::vector<uint64_t> starts_;  ///< [files + 1] first token of each file, then the total
  mutable std::once_flag fingerprint_once_;
  mutable std::string fingerprint_;
};

}  // namespace trainctl::data
