// Block: a part of a corpus that can be worked on without the others, for several threads; and the
// documents in it.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus/document.h"

namespace trainctl::data {

/// A place between two blocks of a corpus, from which reading can go on.
struct CorpusPosition {
  uint64_t file = 0;         ///< index in CorpusOptions::files
  uint64_t offset = 0;       ///< bytes of the file's content before it; rows of a Parquet file
  uint64_t number = 0;       ///< lines, documents or rows of the file that ended before it
  bool in_document = false;  ///< plain text: it is inside a document
  bool operator==(const CorpusPosition&) const = default;
};

struct Block {
  enum class Kind {
    json_lines,  ///< `bytes` are lines
    texts,       ///< `bytes` are texts, one after the other
    rows,        ///< the same, of the rows of a table
  };
  Kind kind = Kind::json_lines;
  std::shared_ptr<const std::string> path;  ///< of the file
  CorpusPosition begin, end;
  std::string bytes;
  /// Of texts and rows.
  struct Text {
    size_t begin = 0, end = 0;  ///< in `bytes`; other bytes are separators
  };
  std::vector<Text> texts;
  bool goes_on = false;           ///< the last text is not complete: the next block begins with more of it
  bool whole_file = false;        ///< the texts are of a file that is one document
  bool held_out = false;          ///< and of the part at its end, see CorpusOptions::held_out
  std::vector<LeftOut> left_out;  ///< that the reader of the file has left out before this block
  uint64_t stored_bytes = 0;      ///< of all files, as they are stored, up to the end of this block
};

/// Reads the documents of a block. Several blocks may be read at once, each by one thread. Outlived by the
/// block and the options.
class BlockDocuments {
 public:
  BlockDocuments(const Block& block, const CorpusOptions& options);
  /// Reads the next document that is not empty, or part of a document where the block has no more of it;
  /// false at the end. Error(kData) with file and line if a record is bad and skip_bad is false.
  bool next(Document& document);
  uint64_t empty_documents() const { return empty_; }
  /// Records that were left out, of this block only.
  const std::vector<LeftOut>& left_out() const { return left_out_; }

 private:
  bool next_line(Document& document);
  bool next_text(Document& document);
  void leave_out(std::string why);

  const Block& block_;
  const CorpusOptions& options_;
  size_t at_ = 0;  // in block_.bytes
  size_t next_text_ = 0;
  uint64_t number_;
  std::string text_;
  uint64_t empty_ = 0;
  std::vector<LeftOut> left_out_;
};

}  // namespace trainctl::data
