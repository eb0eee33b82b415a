// From text files to token files with their sidecars: `trainctl data tokenize`.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/sidecar.h"

namespace trainctl::data {

struct TokenizeOptions {
  std::vector<std::string> inputs;
  std::string out;                     ///< PREFIX of the files
  std::string tokenizer = "bytes";     ///< as open_tokenizer; unused when training
  int64_t train_vocab = 0;             ///< > 0: train a SentencePiece model of this size on the inputs first
  std::string tokenizer_out;           ///< where it goes: a .model file, or a folder for tokenizer.model; default: that of `out`
  int64_t train_share = 1, val_share = 0;  ///< val_share > 0: that part of train_share + val_share goes to PREFIX-val
  Format to = Format::megatron;        ///< megatron or llmc
  std::string text_key = "text";
  bool force = false;                  ///< replace the token sets and the tokenizer that exist under these names
  /// Called now and then with what is being done and how far it is, in bytes of text.
  std::function<void(const char* doing, uint64_t done, uint64_t total)> progress;
};

struct TokenizeResult {
  struct Part {
    std::string prefix;
    std::vector<std::string> files;
    Sidecar sidecar;
  };
  std::vector<Part> parts;             ///< training, then validation if there is one
  std::string tokenizer;               ///< "bytes" or the path of the model used
  int64_t vocab_size = 0;
  uint64_t empty_documents = 0;        ///< left out
  double seconds = 0;
};

/// Each document ends with the tokenizer's end of text. A validation share is taken document by document from JSON lines, and
/// from a plain file as its last lines. Token sets and a trained tokenizer get their names when all of them are complete;
/// after an error, what had these names before is unchanged.
/// Error(kUsage): a file to be written exists and `force` is not set; names what exists. Error(kData): unreadable input, unusable tokenizer, nothing to write, disk full.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace trainctl::data
