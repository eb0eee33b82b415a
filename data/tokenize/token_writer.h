// TokenWriter writes token files. They get their names only when they are complete.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

struct WriterOptions {
  std::string prefix;               ///< writes PREFIX.bin, and PREFIX.idx for Megatron
  Format format = Format::megatron; ///< megatron or llmc
  int64_t vocab_size = 0;           ///< Megatron: u16 below 65500, else i32; llm.c: u16 up to 65536, else u32
};

/// Writes tokens to PREFIX.bin.tmp; finish() gives the files their names. Existing files with these names do
/// not change before finish(). The destructor removes the temporary files if finish() was not called. Not
/// thread-safe. Errors: Error(kIo) of the file system; Error(kData) if the llm.c format cannot hold the
/// tokens.
class TokenWriter {
 public:
  TokenWriter(FileSystem& fs, const WriterOptions& options);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// Appends tokens to the current document; ids in [0, vocab_size).
  void add(std::span<const int32_t> ids);
  void end_document();
  /// Makes the files durable and replaces existing ones. Removes these first, so after a crash the prefix may
  /// have no files, but never an index with the tokens of another call. Also removes `stale_sidecar` if it is
  /// not "".
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
  bool wide_;                            // 4 bytes per token, otherwise 2
  std::unique_ptr<File> bin_, idx_;
  std::string buffer_;
  uint64_t written_ = 0;                 // bytes of the .bin before the buffer
  uint64_t tokens_ = 0, documents_ = 0;
  uint64_t sequence_tokens_ = 0;         // tokens of the current sequence
  bool finished_ = false;
  std::vector<int32_t> lengths_;         // Megatron: tokens of each sequence
  std::vector<int64_t> starts_{0};       // Megatron: first sequence of each document
};

}  // namespace trainctl::data
