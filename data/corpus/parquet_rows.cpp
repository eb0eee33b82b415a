// Blocks of the rows of a Parquet file.
#include "data/corpus/byte_stream.h"
#include "data/corpus/corpus_reader.h"
#include "data/corpus/parquet/string_column.h"

namespace trainctl::data {
namespace {

constexpr size_t kMostRows = size_t(1) << 16;  // of a block: nulls have no bytes

class ParquetBlocks final : public FileBlocks {
 public:
  ParquetBlocks(FileSystem& fs, const std::string& path, const CorpusOptions& options)
      : options_(options), column_(open_input(fs, path), path, options.text_key, options.longest_document) {}

  void seek(const CorpusPosition& position) override {
    column_.seek(position.offset);
    position_ = position;
  }
  uint64_t stored_bytes() const override { return column_.position(); }

  bool next(Block& block) override {
    block = {.kind = Block::Kind::rows, .begin = position_};
    while (block.bytes.size() < options_.block_bytes && block.texts.size() < kMostRows) {
      const size_t begin = block.bytes.size();
      if (!column_.next(block.bytes)) break;
      block.texts.push_back({begin, block.bytes.size()});
    }
    if (block.texts.empty()) return false;
    position_.offset = position_.number += block.texts.size();
    block.end = position_;
    return true;
  }

 private:
  const CorpusOptions& options_;
  parquet::StringColumn column_;
  CorpusPosition position_;
};

}  // namespace

std::unique_ptr<FileBlocks> open_parquet(FileSystem& fs, const std::string& path,
                                         const CorpusOptions& options) {
  return std::make_unique<ParquetBlocks>(fs, path, options);
}

}  // namespace trainctl::data
