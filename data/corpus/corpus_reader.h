// Reads a corpus: the documents of files of several formats, in order.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/corpus/block.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

/// Whether the ending of a name says how to read it: `.jsonl`, `.ndjson`, `.json`, `.txt`, each also with
/// `.gz` or `.zst`; `.parquet`. Files of other names are plain text if a user names them.
bool has_known_ending(const std::string& path);

/// The blocks of one file. Not thread-safe.
class FileBlocks {
 public:
  virtual ~FileBlocks() = default;
  /// Reads the next block, all but Block::path, stored_bytes and the index of the file; false at the end.
  /// Error(kData).
  virtual bool next(Block& block) = 0;
  /// Goes to a position of this file. Only before the first block.
  virtual void seek(const CorpusPosition& position) = 0;
  /// Bytes of the file, as it is stored, that were used so far.
  virtual uint64_t stored_bytes() const = 0;
};
std::unique_ptr<FileBlocks> open_json_lines(FileSystem& fs, const std::string& path,
                                            const CorpusOptions& options);
std::unique_ptr<FileBlocks> open_plain_text(FileSystem& fs, const std::string& path,
                                            const CorpusOptions& options);
std::unique_ptr<FileBlocks> open_parquet(FileSystem& fs, const std::string& path,
                                         const CorpusOptions& options);

/// Divides a corpus into blocks, for work by several threads. A block holds whole records but for a text that
/// CorpusOptions::cut has cut. Not thread-safe. `fs` and `options` outlive the reader.
class BlockReader {
 public:
  /// Error(kData): no files, or one of them is missing, or of a kind that cannot be read.
  BlockReader(FileSystem& fs, const CorpusOptions& options);
  /// Reads the next block, which may have no documents; false at the end. Error(kData) with file and place;
  /// with skip_bad the rest of a damaged file is left out as one bad record. Error(kIo) if the bytes cannot
  /// be had now: nothing is left out for that.
  bool next(Block& block);
  /// Goes to the end of a block of the same corpus.
  void seek(const CorpusPosition& position);
  /// Bytes of all files, as they are stored.
  uint64_t stored_bytes() const { return stored_total_; }

 private:
  bool next_of_file(Block& block);

  FileSystem& fs_;
  const CorpusOptions& options_;
  std::vector<uint64_t> sizes_;  // as stored
  uint64_t stored_total_ = 0, stored_before_ = 0;
  CorpusPosition position_;
  std::shared_ptr<const std::string> path_;
  std::unique_ptr<FileBlocks> file_;
};

/// Reads the documents of a corpus one after the other. Not thread-safe.
class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  /// Reads the next document that is not empty; false at the end. Its views are valid until the next call.
  /// Error(kData) with file and line.
  virtual bool next(Document& document) = 0;
  virtual uint64_t empty_documents() const = 0;
  virtual uint64_t left_out_count() const = 0;               ///< records left out so far, with skip_bad
  virtual const std::vector<LeftOut>& left_out() const = 0;  ///< the first 100 of them
};
/// Texts are handed out whole: CorpusOptions::cut has no effect.
std::unique_ptr<DocumentReader> open_corpus(FileSystem& fs, CorpusOptions options);

}  // namespace trainctl::data
