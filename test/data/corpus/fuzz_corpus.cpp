#include "test/data/corpus/fuzz_corpus.h"

#include <cstring>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "data/corpus/corpus_reader.h"
#include "data/corpus/json_line.h"
#include "data/corpus/parquet/string_column.h"
#include "data/token_file.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "test/support/must.h"
#include "test/support/temporary_folder.h"

namespace trainctl::test {
namespace {

class MemoryFile final : public File {
 public:
  explicit MemoryFile(const std::string& bytes) : bytes_(bytes) {}
  void write_at(uint64_t, std::span<const std::byte>) override { throw std::logic_error("a write"); }
  void read_at(uint64_t offset, std::span<std::byte> data) override {
    if (offset > bytes_.size() || data.size() > bytes_.size() - offset)
      throw Error(ErrorCode::kIo, "the file ends too early");
    if (!data.empty()) std::memcpy(data.data(), bytes_.data() + offset, data.size());
  }
  uint64_t size() override { return bytes_.size(); }
  void sync() override {}

 private:
  const std::string& bytes_;
};

/// A file system in which every path is the same file.
class OneFile final : public FileSystem {
 public:
  explicit OneFile(const std::string& bytes) : bytes_(bytes) {}
  std::unique_ptr<File> open_read(const std::string&) override {
    return std::make_unique<MemoryFile>(bytes_);
  }
  bool exists(const std::string&) override { return true; }
  bool is_directory(const std::string&) override { return false; }
  std::unique_ptr<File> create(const std::string&) override { refuse(); }
  void make_directory(const std::string&) override { refuse(); }
  void rename(const std::string&, const std::string&) override { refuse(); }
  bool try_rename_no_replace(const std::string&, const std::string&) override { refuse(); }
  void remove_file(const std::string&) override { refuse(); }
  void remove_directory(const std::string&) override { refuse(); }
  bool try_sync_directory(const std::string&) override { refuse(); }
  std::vector<std::string> list(const std::string&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("a call that a reader does not make"); }
  const std::string& bytes_;
};

struct Lines {
  std::vector<std::string> texts, left_out;
  uint64_t empty = 0;
  bool operator==(const Lines&) const = default;
};

Lines read_lines(const std::string& bytes, size_t block) {
  OneFile fs(bytes);
  const auto reader = data::open_corpus(
      fs, {.files = {"f.jsonl"}, .longest_document = 2000, .skip_bad = true, .block_bytes = block});
  Lines lines;
  for (data::Document document; reader->next(document);) {
    must(std::string_view(document.line).find('\n') == std::string_view::npos, "a line with a newline");
    lines.texts.emplace_back(document.text);
  }
  for (const auto& record : reader->left_out()) lines.left_out.push_back(record.place);
  lines.empty = reader->empty_documents();
  return lines;
}

void must_be_as_parsed(std::string_view line) {
  if (line.find('\0') != line.npos) return;  // that parser takes it for the end
  std::string text;
  const data::LineText result = data::find_json_text(line, "text", text);
  const auto object = try_parse_json(line);
  // That parser refuses numbers beyond a double, and nests as deep as memory allows.
  if (!object.is_object())
    return must(result == data::LineText::no_object || line.find_first_of("eE") != line.npos,
                "a line that is no object");
  if (result == data::LineText::no_object) return must(line.size() > 1000, "an object that is refused");
  const auto field = object.find("text");
  if (field != object.end() && field->is_string())
    must(result == data::LineText::found && text == field->text(), "another text");
  else if (field == object.end() || !field->is_array())
    must(result == data::LineText::no_string, "a text where there is none");
}

std::vector<std::string> rows_from(const std::string& bytes, uint64_t row) {
  constexpr size_t kMostRows = 3000, kLongestRow = 5000;  // a few bytes can announce millions of nulls
  data::parquet::StringColumn column(std::make_unique<MemoryFile>(bytes), "f.parquet", "text", kLongestRow);
  if (row >= kMostRows) return {};
  column.seek(row);
  std::vector<std::string> rows;
  for (std::string text; rows.size() < kMostRows - row && column.next(text); text.clear()) {
    must(text.size() <= 2 * (kLongestRow + 1), "a row without end");
    rows.push_back(text);
  }
  return rows;
}

void write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::streamsize(bytes.size()));
}

}  // namespace

void fuzz_jsonl(const std::string& bytes) {
  const Lines whole = read_lines(bytes, size_t(1) << 20);
  for (const size_t block : {1, 7, 500})
    must(read_lines(bytes, block) == whole, "blocks of another size, other lines");
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    must_be_as_parsed(std::string_view(bytes).substr(at, end - at));
    at = end + 1;
  }
}

void fuzz_parquet(const std::string& bytes) {
  try {
    const std::vector<std::string> rows = rows_from(bytes, 0);
    const std::vector<std::string> second = rows_from(bytes, rows.size() / 2);
    must(std::equal(rows.begin() + long(rows.size() / 2), rows.end(), second.begin(), second.end()),
         "other rows from the middle");
  } catch (const Error& error) {
    must_be_refusal(error, {ErrorCode::kData});
  }
}

void fuzz_megatron(const std::string& bytes) {
  if (bytes.size() < 2) return;
  static const TemporaryFolder folder("fuzz", "/dev/shm");
  const size_t bin = size_t(uint8_t(bytes[0])) | size_t(uint8_t(bytes[1])) << 8;
  write(folder / "f.idx", std::string_view(bytes).substr(2));
  write(folder / "f.bin", std::string(bin, '\1'));
  try {
    const data::TokenFile file = data::open_megatron(folder / "f");
    must(file.token_count > 0, "a set without tokens");
    std::vector<int32_t> ids(std::min<uint64_t>(file.token_count, 100'000));
    file.read(0, ids);
    file.read(file.token_count - ids.size(), ids);
    const auto lengths = data::document_lengths(file, ~uint64_t(0));
    must(lengths.size() == file.document_count, "another number of documents");
    must(std::accumulate(lengths.begin(), lengths.end(), uint64_t(0)) == file.token_count,
         "documents with other tokens");
  } catch (const Error& error) {
    must_be_refusal(error, {ErrorCode::kData});
  }
}

}  // namespace trainctl::test
