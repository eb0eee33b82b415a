#include "data/tokenize/train_tokenizer.h"

#include <optional>

#include "data/bpe_trainer.h"
#include "data/corpus/byte_stream.h"
#include "data/corpus/corpus_reader.h"
#include "data/ordered_work.h"

namespace trainctl::data {
namespace {

constexpr uint64_t kTrainingText = uint64_t(64) << 20;  // the most text that a tokenizer learns from
constexpr size_t kTrainingPart = size_t(256) << 10;
constexpr uint64_t kUnpackedTimes = 4;  // how much longer a packed text is than its file, about

/// About the bytes of text in a corpus: exactly, where it is plain.
uint64_t text_estimate(FileSystem& fs, const CorpusOptions& corpus) {
  uint64_t bytes = 0;
  for (const std::string& path : corpus.files) {
    const bool is_packed = compression_of(path) != Compression::none || path.ends_with(".parquet");
    bytes += open_input(fs, path)->size() * (is_packed ? kUnpackedTimes : 1);
  }
  return bytes;
}

}  // namespace

std::string train_on_corpus(FileSystem& fs, const TokenizeOptions& options, CorpusOptions corpus) {
  corpus.block_bytes = kTrainingPart;
  corpus.cut = cut_text;
  BlockReader blocks(fs, corpus);
  const uint64_t every = text_estimate(fs, corpus) / kTrainingText + 1;
  Block block;
  std::optional<BlockDocuments> documents;
  std::string_view rest;
  uint64_t part = 0;
  const TextStream next = [&](std::string_view& text) {
    while (true) {
      while (rest.empty()) {
        Document document;
        if (documents && documents->next(document)) {
          rest = document.text;
          continue;
        }
        documents.reset();
        if (!blocks.next(block)) return false;
        if (options.progress)
          options.progress({"training the tokenizer", block.stored_bytes, blocks.stored_bytes(), 0});
        documents.emplace(block, corpus);
      }
      text = rest.substr(0, cut_text(rest, kTrainingPart));
      rest.remove_prefix(text.size());
      if (part++ % every == 0) return true;
    }
  };
  return options.train_kind == TrainedKind::bpe
             ? train_bpe(next, options.train_vocab, thread_count(options.threads))
             : train_sentencepiece(next, options.train_vocab);
}

}  // namespace trainctl::data
