// Encodes a corpus with several threads and writes its tokens in order, from any place on.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/corpus/corpus_reader.h"
#include "data/tokenize/answers.h"
#include "data/tokenize/text_checks.h"
#include "data/tokenize/token_writer.h"
#include "data/tokenizer.h"

namespace trainctl::data {

/// A file whose bytes are not all text.
struct FaultyFile {
  std::string path;
  bool of_rows = false;
  TextFaults faults;
  static void fields(auto& f, auto& r) { f("path", r.path), f("of_rows", r.of_rows), f("faults", r.faults); }
};

/// How far the work is: all that it needs to go on.
struct EncodingState {
  CorpusPosition position;
  uint64_t stored_bytes = 0;      ///< of the input files before the position
  uint64_t split_documents = 0;   ///< that the sets share by their number
  uint64_t part = 0;              ///< the set of the document under way
  std::vector<WriterState> sets;  ///< training, then validation if there is one
  uint64_t empty_documents = 0;
  uint64_t left_out_count = 0;
  std::vector<LeftOut> left_out;   ///< the first ten
  uint64_t faulty_count = 0;       ///< files
  std::vector<FaultyFile> faulty;  ///< the first hundred
  std::string last_faulty;         ///< the path of the last one
};

struct EncodingOptions {
  uint64_t train_share = 1, val_share = 0;
  bool cuts_files = true;  ///< a text file that is one document goes to both sets, as the corpus cuts it
  int threads = 1;
  const AnswerEncoder* answers = nullptr;  ///< of records with answers, whose sets have loss files
  double record_every_s = 10;  ///< how often the state is made durable; more often in the beginning
  /// Called from time to time with the bytes of the input files, and of text, that are done.
  std::function<void(uint64_t stored_bytes, uint64_t text_bytes)> progress;
};

/// The files do not depend on the number of threads, nor on where the work was interrupted. `record` is
/// called with states of which all tokens are durable; also before an error that comes from the input.
/// Memory: about 4 MiB of text a thread, at least 64 MiB, with its tokens, and one record of the largest
/// size for each thread. Errors: those of the reader and the writers; of several bad records that of the
/// first.
void encode_all(FileSystem& fs, const EncodingOptions& options, const CorpusOptions& corpus,
                const Tokenizer& tokenizer, std::vector<std::unique_ptr<TokenWriter>>& sets,
                EncodingState& state, const std::function<void(const EncodingState&)>& record);

}  // namespace trainctl::data
