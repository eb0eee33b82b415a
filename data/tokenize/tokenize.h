// `trainctl data tokenize`: makes token files and their sidecars from text files.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus/document.h"
#include "data/corpus/progress.h"
#include "data/dataset.h"
#include "data/sidecar.h"
#include "data/tokenize/chat_template.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

/// CorpusProgress::doing once the vocabulary is known.
inline constexpr const char* kTokenizing = "tokenizing";

/// sentencepiece: a SentencePiece .model file; bpe: byte-level BPE as a Hugging Face tokenizer.json.
enum class TrainedKind { sentencepiece, bpe };

/// What a record is. answers: a conversation, or a prompt and its completion, of which answers alone have a
/// loss (data/tokenize/answers.h). automatic: answers if the first record of the first file is one.
enum class Records { automatic, texts, answers };

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
  Records records = Records::automatic;
  std::string chat_template;  ///< a name of data/tokenize/chat_template.h; "": that of the tokenizer's folder
  std::string separator;                   ///< of plain text, see CorpusOptions
  bool skip_bad = false;                   ///< leave out records that cannot be read
  uint64_t longest_document = 64'000'000;  ///< bytes; see CorpusOptions
  int threads = 0;                       ///< that encode; 0: one for each core. The files do not depend on it
  bool force = false;                    ///< replace existing token files and an existing tokenizer
  size_t block_bytes = size_t(1) << 20;  ///< of text that a thread encodes at once, about
  double record_every_s = 10;            ///< how often progress is made durable
  double kept_after_s = 5;  ///< unfinished work of less time is neither kept after an error nor protected
  FileSystem* file_system = nullptr;  ///< null: that of this machine
  FileSystem* input_files = nullptr;  ///< that has the inputs; null: file_system
  /// Of each input a word that changes with its content, as the ETag of an object. Empty: files are known by
  /// their size and time.
  std::vector<std::string> input_versions;
  using Progress = CorpusProgress;
  /// Called from time to time. May be empty.
  std::function<void(const Progress&)> progress;
  /// Called with a sentence that a user wants to read at once. May be empty.
  std::function<void(const std::string&)> note;
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
  uint64_t empty_documents = 0;   ///< documents without text, which are skipped
  uint64_t left_out_count = 0;    ///< records that could not be read
  std::vector<LeftOut> left_out;  ///< the first ten of them
  struct Warning {
    std::string path, text;
  };
  uint64_t faulty_files = 0;           ///< files with bytes that are no text
  std::vector<Warning> warnings;       ///< of the first hundred of them
  std::optional<uint64_t> resumed_at;  ///< bytes of the input files that an earlier process has done
  uint64_t text_bytes = 0;             ///< of this process
  double seconds = 0;                  ///< of this process
};

/// Each document ends with the tokenizer's end-of-text token. The validation share consists of whole
/// documents, or of the last lines of each plain file that is one document. Token files and a trained
/// tokenizer get their names when all of them are complete; until then the work is in the folder
/// PREFIX.partial (data/tokenize/attempt.h). A process that ends on the way leaves it, and the next call
/// with the same inputs and settings goes on from there: the files are those of an undisturbed run, byte
/// for byte. After an error, existing files are unchanged. Error(kUsage): a file to write exists and
/// `force` is false, with its name; or PREFIX.partial is of other inputs or settings. Error(kData):
/// unreadable input, unusable tokenizer, no tokens, disk full.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace trainctl::data
