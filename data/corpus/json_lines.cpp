// Blocks of JSON lines: cut at newlines, not parsed.
#include <algorithm>
#include <cstring>

#include "data/corpus/byte_stream.h"
#include "data/corpus/corpus_reader.h"
#include "data/corpus/limits.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

uint64_t count_newlines(std::string_view text) {
  uint64_t n = 0;
  const char *p = text.data(), *const end = p + text.size();
  while (p < end && (p = static_cast<const char*>(std::memchr(p, '\n', size_t(end - p)))) != nullptr) {
    ++n;
    ++p;
  }
  return n;
}

class JsonLineBlocks final : public FileBlocks {
 public:
  JsonLineBlocks(FileSystem& fs, const std::string& path, const CorpusOptions& options)
      : path_(path), options_(options), stream_(open_bytes(fs, path)) {}

  void seek(const CorpusPosition& position) override {
    stream_->skip(position.offset);
    position_ = position;
  }
  uint64_t stored_bytes() const override { return stream_->stored_bytes(); }

  bool next(Block& block) override {
    block = {.kind = Block::Kind::json_lines, .begin = position_, .bytes = std::move(carry_)};
    carry_.clear();
    for (size_t searched = 0;; searched = block.bytes.size()) {
      at_end_ = at_end_ || !read_more(block.bytes);
      if (at_end_) break;
      const size_t newline = std::string_view(block.bytes).substr(searched).rfind('\n');
      if (newline != std::string_view::npos) {
        const size_t length = searched + newline + 1;
        carry_.assign(block.bytes, length);
        block.bytes.resize(length);
        break;
      }
      if (block.bytes.size() > options_.longest_document) {
        skip_line(block);
        return true;
      }
    }
    if (block.bytes.empty()) return false;
    advance(block.bytes.size(), count_newlines(block.bytes));
    block.end = position_;
    return true;
  }

 private:
  /// Appends a part of the file; false at its end.
  bool read_more(std::string& bytes) {
    const size_t had = bytes.size();
    bytes.resize(had + options_.block_bytes);
    const size_t n = stream_->read(std::span(bytes).subspan(had));
    bytes.resize(had + n);
    return n == options_.block_bytes;
  }
  void advance(uint64_t bytes, uint64_t lines) {
    position_.offset += bytes;
    position_.number += lines;
  }
  /// Drops the line that block.bytes is the beginning of, and keeps what was read after it.
  void skip_line(Block& block) {
    LeftOut record{fmt::format("{}, line {}", path_, position_.number + 1),
                   too_long(block.bytes.size(), options_)};
    if (!options_.skip_bad) throw Error(ErrorCode::kData, fmt::format("{}: {}", record.place, record.why));
    block.left_out.push_back(std::move(record));
    while (true) {
      advance(block.bytes.size(), 0);
      block.bytes.clear();
      if (at_end_) {
        advance(0, 1);
        break;
      }
      at_end_ = !read_more(block.bytes);
      if (const size_t newline = block.bytes.find('\n'); newline != block.bytes.npos) {
        carry_.assign(block.bytes, newline + 1);
        advance(newline + 1, 1);
        break;
      }
    }
    block.bytes.clear();
    block.end = position_;
  }

  const std::string path_;
  const CorpusOptions& options_;
  std::unique_ptr<ByteStream> stream_;
  std::string carry_;  // read, of the next block
  CorpusPosition position_;
  bool at_end_ = false;
};

}  // namespace

std::unique_ptr<FileBlocks> open_json_lines(FileSystem& fs, const std::string& path,
                                            const CorpusOptions& options) {
  return std::make_unique<JsonLineBlocks>(fs, path, options);
}

}  // namespace trainctl::data
