// TokenWriter writes the files of a token set, and can go on with files that a killed process has left.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

struct WriterOptions {
  std::string prefix;  ///< writes PREFIX.bin, PREFIX.idx for Megatron, and PREFIX.loss with weights
  Format format = Format::megatron;  ///< megatron or llmc
  int64_t vocab_size = 0;  ///< Megatron: u16 below 65500, else i32; llm.c: u16 up to 65536, else u32
  bool has_weights = false;  ///< add_weights follows each add
};

/// How far a token set is: what the files of a writer hold.
struct WriterState {
  uint64_t tokens = 0, documents = 0;
  uint64_t sequences = 0;        ///< Megatron: complete ones; a longer document than 2^30 tokens has several
  uint64_t sequence_tokens = 0;  ///< of the sequence under way
  uint64_t text_bytes = 0;       ///< counted by the caller
  bool operator==(const WriterState&) const = default;
  static void fields(auto& f, auto& r) {
    f("tokens", r.tokens), f("documents", r.documents), f("sequences", r.sequences);
    f("sequence_tokens", r.sequence_tokens), f("text_bytes", r.text_bytes);
  }
};

/// Writes PREFIX.bin and PREFIX.lengths; complete() makes a token set of them. A reader never takes them
/// for one before: write them in a folder of their own, and move them. Not thread-safe. Memory: 2 MiB.
/// Errors: Error(kIo) of the file system; Error(kData) if the llm.c format cannot hold the tokens.
class TokenWriter {
 public:
  /// Makes new files; those of this name must not exist.
  TokenWriter(FileSystem& fs, const WriterOptions& options);
  /// Goes on with files that a writer has left, from one of its states; what follows is overwritten by the
  /// same tokens. Error(kData) if the files are shorter.
  TokenWriter(FileSystem& fs, const WriterOptions& options, const WriterState& state);
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// Appends tokens to the current document; ids in [0, vocab_size).
  void add(std::span<const int32_t> ids);
  /// Appends the weights of the tokens that were added last.
  void add_weights(std::span<const uint8_t> weights);
  void end_document();
  void count_text(uint64_t bytes) { state_.text_bytes += bytes; }
  const WriterState& state() const { return state_; }
  /// Makes what was written so far durable, but for the names of the files.
  void sync();
  /// Writes the index or the header and makes the files durable. No document may be under way.
  /// PREFIX.lengths stays. Error(kData) if another program has written to the files.
  void complete();
  /// Of a complete set with weights: the tokens whose weight is not 0.
  uint64_t loss_tokens() const { return loss_tokens_; }
  /// The files of a complete set, as their endings: ".idx", ".bin", ".loss".
  static std::vector<std::string> endings(Format format, bool has_weights = false);

 private:
  /// A file, or a part of one, that is written from front to back.
  struct Stream {
    std::shared_ptr<File> file;
    uint64_t written = 0;  // where the buffer begins
    std::string buffer = {};
    void put(std::string_view bytes);
    void flush();
  };
  bool is_indexed() const { return options_.format == Format::megatron; }
  std::string lengths_path() const { return options_.prefix + ".lengths"; }
  void put_length(bool ends_document);
  void write_index();
  void complete_weights();

  FileSystem& fs_;
  WriterOptions options_;
  bool wide_;  // 4 bytes per token, otherwise 2
  WriterState state_;
  Stream bin_, lengths_, loss_;  // lengths_: of sequences, see kEndsDocument
  uint64_t loss_tokens_ = 0;
};

}  // namespace trainctl::data
