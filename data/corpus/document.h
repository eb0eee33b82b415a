// Document: one text of a corpus. A record without text is skipped, with the reason.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::data {

/// What a corpus is read from, and how.
struct CorpusOptions {
  /// `.jsonl`, `.ndjson` and `.json` (in small or capital letters) have one JSON object per line, `.parquet`
  /// is a table with a text in each row. Other names may hold either, or plain text: their first line tells.
  /// `.gz` or `.zst` may follow, but for tables.
  std::vector<std::string> files;
  std::string text_key = "text";  ///< JSON lines: the key of the text; tables: the column
  bool whole_lines = false;       ///< JSON lines: the text is the line itself, whatever is in it
  /// Plain text: ends a document, and belongs to none. With a newline in it, e.g. "\n\n", wherever it occurs;
  /// otherwise as a whole line. "": each file is one document.
  std::string separator;
  uint64_t longest_document = 64'000'000;  ///< bytes of a line of JSON, of a text, of a row
  /// Leave out records that cannot be read; otherwise the first one is Error(kData).
  bool skip_bad = false;
  size_t block_bytes = size_t(1) << 20;  ///< about as much text is in a block
  /// How far a text that is longer than block_bytes is handed out: a length <= text.size(), > 0; the whole
  /// text: not without what follows. Empty: texts are handed out whole.
  std::function<size_t(std::string_view text, size_t limit)> cut;
  /// Of a file that is one document, held_out / (kept + held_out) of the bytes at its end are a document of
  /// their own, from the end of a line.
  uint64_t kept = 1, held_out = 0;
};

struct Document {
  std::string_view text;  ///< not empty; valid until the next document is read
  std::string_view line;  ///< JSON lines: the whole line, without its end; otherwise ""
  std::string_view path;  ///< of its file
  std::string_view unit;  ///< what `number` counts: "line", "document" or "row"
  uint64_t number = 0;    ///< in the file, from 1
  uint64_t offset =
      0;  ///< of the record in the file's content; of plain text, of the text; of tables the row
};
/// "a.jsonl, line 3"
std::string place_of(const Document& document);

/// A record that was left out.
struct LeftOut {
  std::string place;  ///< "a.jsonl, line 3"
  std::string why;    ///< "no JSON object"
};

}  // namespace trainctl::data
