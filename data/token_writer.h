// Writes token files: whole under their names, or not at all.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

struct WriterOptions {
  std::string prefix;               ///< PREFIX.bin, and PREFIX.idx for Megatron
  Format format = Format::megatron; ///< megatron or llmc
  int64_t vocab_size = 0;           ///< Megatron: u16 below 65500, else i32; llm.c: u16 up to 65536, else u32
};

/// Streams tokens into PREFIX.bin.tmp and gives the files their names only in finish(). Until then, and if the writer is
/// destroyed unfinished, files of that name from before stay as they are and the temporary ones are removed.
/// Not thread-safe. Errors: Error(kIo) of the file system; Error(kData) if llm.c cannot hold the tokens.
class TokenWriter {
 public:
  TokenWriter(FileSystem& fs, const WriterOptions& options);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// Tokens of the document under way; ids in [0, vocab_size).
  void add(std::span<const int32_t> ids);
  void end_document();
  /// Makes the files durable and replaces those of before: these are removed first, so that a crash can leave the prefix
  /// without files, but never an index beside tokens of another run. `stale_sidecar`, if not
  /// empty, is removed with them.
  void finish(const std::string& stale_sidecar = "");

  uint64_t token_count() const { return tokens_; }
  uint64_t document_count() const { return documents_; }
  std::vector<std::string> files() const;

 private:
  void put(std::string_view bytes);
  void flush();
  void close_sequence();
  void write_index();

  FileSystem& fs_;
  WriterOptions options_;
  bool wide_;                            // 4 bytes a token instead of 2
  std::unique_ptr<File> bin_, idx_;
  std::string buffer_;
  uint64_t written_ = 0;                 // bytes of the .bin before the buffer
  uint64_t tokens_ = 0, documents_ = 0;
  uint64_t sequence_tokens_ = 0;         // of the sequence under way
  bool finished_ = false;
  std::vector<int32_t> lengths_;         // Megatron: tokens of each sequence
  std::vector<int64_t> starts_{0};       // Megatron: first sequence of each document
};

}  // namespace trainctl::data
