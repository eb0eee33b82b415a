// `trainctl data tokenize`: makes token files and their sidecars from text files.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/corpus/document.h"
#include "data/dataset.h"
#include "data/sidecar.h"

namespace trainctl::data {

/// sentencepiece: a SentencePiece .model file; bpe: byte-level BPE as a Hugging Face tokenizer.json.
enum class TrainedKind { sentencepiece, bpe };

struct TokenizeOptions {
  std::vector<std::string> inputs;
  std::string out;                                       ///< PREFIX of the token files
  TokenizerChoice tokenizer = TokenizerChoice::bytes();  ///< not used if train_vocab > 0
  /// > 0: first train a tokenizer with this vocabulary on the inputs.
  int64_t train_vocab = 0;
  TrainedKind train_kind = TrainedKind::sentencepiece;
  /// A .model (bpe: .json) file, or a folder for tokenizer.model (tokenizer.json); "": the folder of `out`.
  std::string tokenizer_out;
  /// val_share / (train_share + val_share) of the text goes to PREFIX-val.
  int64_t train_share = 1, val_share = 0;
  Format to = Format::megatron;  ///< megatron or llmc
  std::string text_key = "text";
  std::string separator;                   ///< of plain text, see CorpusOptions
  bool skip_bad = false;                   ///< leave out records that cannot be read
  uint64_t longest_document = 64'000'000;  ///< bytes; see CorpusOptions
  int threads = 0;     ///< that encode; 0: one for each core. The files do not depend on it
  bool force = false;  ///< replace existing token files and an existing tokenizer
  /// Called from time to time with the current activity and its progress in bytes of the input files. May
  /// be empty.
  std::function<void(const char* doing, uint64_t done, uint64_t total)> progress;
};

struct TokenizeResult {
  struct Part {
    std::string prefix;
    std::vector<std::string> files;
    Sidecar sidecar;
  };
  std::vector<Part> parts;    ///< training, then validation if val_share > 0
  TokenizerChoice tokenizer;  ///< the one used
  int64_t vocab_size = 0;
  uint64_t empty_documents = 0;      ///< documents without text, which are skipped
  uint64_t bad_records = 0;          ///< left out
  std::vector<BadRecord> first_bad;  ///< the first of them
  double seconds = 0;
};

/// Each document ends with the tokenizer's end-of-text token. The validation share consists of whole
/// documents of JSON lines, and of the last lines of each plain file. Token files and a trained tokenizer get
/// their names when all of them are complete; after an error, existing files are unchanged. Error(kUsage): a
/// file to write exists and `force` is false; names the file. Error(kData): unreadable input, unusable
/// tokenizer, no tokens, disk full.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace trainctl::data
