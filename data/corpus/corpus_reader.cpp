#include "data/corpus/corpus_reader.h"

#include <algorithm>

#include "data/corpus/byte_stream.h"
#include "data/corpus/json_line.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

/// In small or capital letters.
bool ends_with(const std::string& name, std::string_view ending) {
  return name.size() >= ending.size() &&
         std::equal(
             ending.begin(), ending.end(), name.end() - ptrdiff_t(ending.size()),
             [](char wanted, char c) { return wanted == (c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c); });
}

/// Of files with a JSON object per line.
bool is_json_lines(const std::string& unpacked) {
  return ends_with(unpacked, ".jsonl") || ends_with(unpacked, ".ndjson") || ends_with(unpacked, ".json");
}

/// Without its newline. Of a longest line of 16 MiB, whose kind is that of its name then.
std::string first_line(ByteStream& stream) {
  constexpr size_t kPiece = size_t(64) << 10, kMost = size_t(16) << 20;
  std::string line;
  for (size_t read = kPiece; read == kPiece && line.size() < kMost;) {
    const size_t before = line.size();
    line.resize(before + kPiece);
    read = stream.read(std::span(line).subspan(before));
    line.resize(before + read);
    if (const size_t end = line.find('\n', before); end != line.npos) return line.substr(0, end);
  }
  return line;
}

/// Under any name that does not say JSON a file is what its content says: lines of JSON if the first is an
/// object with a text, a table if it begins as Parquet does.
std::unique_ptr<FileBlocks> open_blocks(FileSystem& fs, const std::string& path,
                                        const CorpusOptions& options) {
  if (ends_with(path, ".parquet")) return open_parquet(fs, path, options);
  if (is_json_lines(name_unpacked(path))) return open_json_lines(fs, path, options);
  const std::string begin = first_line(*open_bytes(fs, path));
  if (begin.starts_with("PAR1") && compression_of(path) == Compression::none)
    return open_parquet(fs, path, options);
  std::string text;
  if (find_json_text(begin, options.text_key, text) == LineText::found)
    return open_json_lines(fs, path, options);
  return open_plain_text(fs, path, options);
}

class SequentialReader final : public DocumentReader {
 public:
  SequentialReader(FileSystem& fs, CorpusOptions options)
      : options_(std::move(options)), blocks_(fs, whole(options_)) {}

  bool next(Document& document) override {
    while (true) {
      if (documents_ && documents_->next(document)) return true;
      if (documents_) {
        empty_ += documents_->empty_documents();
        keep(documents_->left_out());
        documents_.reset();
      }
      if (!blocks_.next(block_)) return false;
      keep(block_.left_out);
      documents_ = std::make_unique<BlockDocuments>(block_, options_);
    }
  }
  uint64_t empty_documents() const override { return empty_; }
  uint64_t left_out_count() const override { return left_out_count_; }
  const std::vector<LeftOut>& left_out() const override { return left_out_; }

 private:
  void keep(const std::vector<LeftOut>& records) {
    constexpr size_t kKept = 100;
    left_out_count_ += records.size();
    for (const LeftOut& record : records)
      if (left_out_.size() < kKept) left_out_.push_back(record);
  }
  static const CorpusOptions& whole(CorpusOptions& options) {
    options.cut = nullptr;
    return options;
  }

  CorpusOptions options_;
  BlockReader blocks_;
  Block block_;
  std::unique_ptr<BlockDocuments> documents_;  // of block_
  uint64_t empty_ = 0, left_out_count_ = 0;
  std::vector<LeftOut> left_out_;
};

}  // namespace

bool has_known_ending(const std::string& path) {
  const std::string name = name_unpacked(path);
  return ends_with(path, ".parquet") || is_json_lines(name) || ends_with(name, ".txt");
}

BlockReader::BlockReader(FileSystem& fs, const CorpusOptions& options) : fs_(fs), options_(options) {
  if (options.files.empty()) throw Error(ErrorCode::kData, "there are no text files to read");
  for (const std::string& path : options.files) {
    for (const char* ending : {".xz", ".bz2", ".zip", ".7z", ".tar", ".arrow"})
      if (path.ends_with(ending))
        throw Error(
            ErrorCode::kData,
            fmt::format(
                "{} is compressed or binary; give text, .jsonl or .parquet; the first two may be .zst or .gz",
                path));
    sizes_.push_back(open_input(fs, path)->size());
    stored_total_ += sizes_.back();
  }
}

void BlockReader::seek(const CorpusPosition& position) {
  ENSURE(!file_ && position.file <= options_.files.size(), "file {}", position.file);
  stored_before_ = 0;
  for (uint64_t i = 0; i < position.file; ++i) stored_before_ += sizes_[i];
  position_ = position;
}

bool BlockReader::next_of_file(Block& block) {
  if (!file_) {
    const std::string& path = options_.files[position_.file];
    path_ = std::make_shared<const std::string>(path);
    file_ = open_blocks(fs_, path, options_);
    if (position_ != CorpusPosition{.file = position_.file}) file_->seek(position_);
  }
  return file_->next(block);
}

bool BlockReader::next(Block& block) {
  while (position_.file < options_.files.size()) {
    bool has_block = false;
    std::string damage;
    try {
      has_block = next_of_file(block);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kData || !options_.skip_bad) throw;
      damage = e.what();
    }
    if (has_block) {
      block.path = path_;
      block.begin.file = block.end.file = position_.file;
      position_ = block.end;
      block.stored_bytes = stored_before_ + file_->stored_bytes();
      return true;
    }
    stored_before_ += sizes_[position_.file];
    const CorpusPosition begin = position_;
    position_ = {.file = position_.file + 1};
    file_.reset();
    if (damage.empty()) continue;
    block = {.kind = Block::Kind::texts, .path = path_, .begin = begin, .end = position_};
    if (begin.in_document) block.texts.push_back({});  // ends it
    block.left_out.push_back({*path_, damage + "; the rest of this file is left out"});
    block.stored_bytes = stored_before_;
    return true;
  }
  return false;
}

std::unique_ptr<DocumentReader> open_corpus(FileSystem& fs, CorpusOptions options) {
  return std::make_unique<SequentialReader>(fs, std::move(options));
}

}  // namespace trainctl::data
