#include "data/tokenize.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>

#include "data/bpe_trainer.h"
#include "data/ordered_work.h"
#include "data/text_input.h"
#include "data/token_writer.h"
#include "data/tokenizer.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/units.h"

namespace trainctl::data {
namespace {

namespace stdfs = std::filesystem;

constexpr size_t kPart = 1 << 20;                        // text encoded at once
constexpr uint64_t kTrainingText = uint64_t(64) << 20;   // the most text that a tokenizer learns from

std::string folder_of(const std::string& path) {
  const std::string folder = stdfs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void report(const TokenizeOptions& options, const char* doing, uint64_t done, uint64_t total) {
  if (options.progress) options.progress(doing, done, total);
}

/// The path of a trained tokenizer.
std::string model_path(const TokenizeOptions& options) {
  const bool is_json = options.train_kind == TrainedKind::bpe;
  const stdfs::path wanted = options.tokenizer_out.empty() ? folder_of(options.out) : options.tokenizer_out;
  const bool is_file = wanted.extension() == (is_json ? ".json" : ".model");
  return (is_file ? wanted : wanted / (is_json ? "tokenizer.json" : "tokenizer.model")).string();
}

std::vector<std::string> prefixes(const TokenizeOptions& options) {
  if (options.val_share > 0) return {options.out, options.out + "-val"};
  return {options.out};
}

/// "data/train (1.2 M tokens of data/tokenizer.model, 2.4 MB)", "" if there is no such set.
std::string existing_set(const std::string& prefix) {
  auto& fs = real_file_system();
  uint64_t bytes = 0;
  std::string found;
  for (const char* extension : {".bin", ".idx", ".json"}) {
    const std::string file = prefix + extension;
    if (!fs.exists(file)) continue;
    found = found.empty() ? file : prefix;
    bytes += stdfs::is_regular_file(file) ? stdfs::file_size(file) : 0;
  }
  if (found.empty()) return "";
  std::optional<Sidecar> sidecar;
  try {
    sidecar = read_sidecar(prefix);
  } catch (const Error&) {  // damaged: its size says enough
  }
  if (!sidecar) return fmt::format("{} ({})", found, size_text(bytes));
  return fmt::format("{} ({} tokens of tokenizer {}, {})", found, short_number(double(sidecar->tokens)),
                     sidecar->tokenizer.text(), size_text(bytes));
}

/// A run cannot be resumed after its token set or tokenizer was replaced, so neither is replaced without
/// --force.
void refuse_existing(const TokenizeOptions& options) {
  if (options.force) return;
  std::vector<std::string> existing;
  for (const std::string& prefix : prefixes(options))
    if (const std::string found = existing_set(prefix); !found.empty()) existing.push_back(found);
  const std::string model = model_path(options);
  const bool keeps_model = options.train_vocab <= 0 || !real_file_system().exists(model);
  if (!keeps_model) existing.push_back(fmt::format("{} (a tokenizer)", model));
  if (existing.empty()) return;
  throw Error(ErrorCode::kUsage, fmt::format("{} {} already; choose another --out{}, or replace {} with --force: runs on the old "
                                             "files could not be resumed then",
                                             fmt::join(existing, " and "), existing.size() == 1 ? "exists" : "exist",
                                             keeps_model ? "" : " or --tokenizer-out", existing.size() == 1 ? "it" : "them"));
}

/// A trained model under another name until the tokens are complete, so that an error keeps the old one.
class NewModel {
 public:
  explicit NewModel(std::string path) : path_(std::move(path)) {}
  NewModel(const NewModel&) = delete;
  ~NewModel() {
    std::error_code ignored;
    if (!temporary().empty()) stdfs::remove(temporary(), ignored);
  }
  std::string temporary() const { return path_.empty() ? "" : path_ + ".tmp"; }
  void publish() {
    if (path_.empty()) return;
    real_file_system().rename(temporary(), path_);
    real_file_system().sync_directory(folder_of(path_));
    path_.clear();
  }

 private:
  std::string path_;
};

/// Trains on all of the text, or on parts spread evenly over it when it is long, and writes the model to
/// `path`.
void train(const TokenizeOptions& options, TextInput& input, const std::string& path) {
  const uint64_t every = input.total_bytes() / kTrainingText + 1;
  std::string_view rest;
  uint64_t part = 0;
  const TextStream next = [&](std::string_view& text) {
    while (true) {
      while (rest.empty()) {
        TextDocument document;
        if (!input.next(document)) return false;
        rest = document.text;
      }
      text = rest.substr(0, cut_text(rest, kPart / 4));
      rest.remove_prefix(text.size());
      if (part++ % every == 0) return true;
    }
  };
  report(options, "training the tokenizer", 0, input.total_bytes());
  const std::string model = options.train_kind == TrainedKind::bpe
                                ? train_bpe(next, options.train_vocab, thread_count(options.threads))
                                : train_sentencepiece(next, options.train_vocab);
  auto& fs = real_file_system();
  fs.make_directories(folder_of(path));
  fs.replace_text(path, model);
  input.rewind();
}

/// One set of token files under way.
struct Part {
  std::string prefix;
  std::unique_ptr<TokenWriter> writer;
  uint64_t text_bytes = 0;
};

/// Length of the part of a plain file that is for training: its share, to the end of a line where there is
/// one.
size_t training_length(std::string_view text, const TokenizeOptions& options) {
  const auto share = (unsigned __int128)text.size() * uint64_t(options.train_share);
  const size_t length = size_t(share / uint64_t(options.train_share + options.val_share));
  return length < 8 ? length : cut_text(text, length);
}

/// Text that one thread encodes: a part of a plain file, or lines of JSON.
struct EncodeJob {
  TextBlock block;
  size_t part = 0;            ///< of a plain file: the set of token files it belongs to
  bool ends_document = true;  ///< of a plain file
};
/// Its tokens, with an end of text after each document that ends in it.
struct Encoded {
  struct Document {
    size_t end = 0;  ///< of its tokens
    uint64_t text_bytes = 0;
  };
  std::vector<int32_t> ids;
  std::vector<Document> documents;  ///< of a plain file one, which may go on
  uint64_t empty_documents = 0;
};

Encoded encode_job(const Tokenizer& tokenizer, Tokenizer::Encoder& encoder, const EncodeJob& job,
                   const std::string& text_key) {
  Encoded result;
  const auto encode = [&](std::string_view text, bool ends) {
    const uint64_t bytes = text.size();
    while (!text.empty()) {
      const std::string_view piece = text.substr(0, tokenizer.first_part(text, kPart));
      encoder.encode(piece, result.ids);
      text.remove_prefix(piece.size());
    }
    if (ends) result.ids.push_back(tokenizer.end_of_text());
    result.documents.push_back({result.ids.size(), bytes});
  };
  if (job.block.whole_file) {
    encode(job.block.text, job.ends_document);
    return result;
  }
  JsonLines lines(job.block, text_key);
  std::string text;
  while (lines.next(text)) encode(text, true);
  result.empty_documents = lines.empty_documents();
  return result;
}

/// Divides the input into jobs and writes their tokens in the order of the input, so that the files do not
/// depend on the number of threads.
class EncodeAll {
 public:
  EncodeAll(const TokenizeOptions& options, const Tokenizer& tokenizer, TextInput& input,
            std::vector<Part>& parts)
      : options_(options),
        tokenizer_(tokenizer),
        input_(input),
        parts_(parts),
        work_(thread_count(options.threads), [&tokenizer, key = options.text_key] {
          return [&tokenizer, key, encoder = std::shared_ptr(tokenizer.encoder())](const EncodeJob& job) {
            return encode_job(tokenizer, *encoder, job, key);
          };
        }) {}

  /// Returns the number of empty documents.
  uint64_t run() {
    TextBlock block;
    while (input_.next_block(block, kPart)) {
      if (!block.whole_file) {
        submit({.block = block});
      } else if (block.text.empty()) {
        ++empty_documents_;
      } else {
        const size_t length = parts_.size() == 1 ? block.text.size() : training_length(block.text, options_);
        submit_document(block, 0, block.text.substr(0, length));
        submit_document(block, 1, block.text.substr(length));
      }
    }
    while (!jobs_.empty()) write_oldest();
    return empty_documents_;
  }

 private:
  void submit_document(const TextBlock& file, size_t part, std::string_view text) {
    while (!text.empty()) {
      const size_t n = tokenizer_.first_part(text, kPart);
      submit({.block = {.file = file.file, .text = text.substr(0, n), .whole_file = true},
              .part = part,
              .ends_document = n == text.size()});
      text.remove_prefix(n);
    }
  }

  void submit(EncodeJob job) {
    if (work_.is_full()) write_oldest();
    jobs_.push_back(job);
    work_.submit(std::move(job));
  }

  void write_oldest() {
    const Encoded encoded = work_.take();
    const EncodeJob job = std::move(jobs_.front());
    jobs_.pop_front();
    size_t begin = 0;
    for (const Encoded::Document& document : encoded.documents) {
      Part& part = parts_[job.block.whole_file ? job.part : part_of_next_line()];
      part.writer->add(std::span(encoded.ids).subspan(begin, document.end - begin));
      part.text_bytes += document.text_bytes;
      if (job.ends_document) part.writer->end_document();
      begin = document.end;
    }
    empty_documents_ += encoded.empty_documents;
    done_ += job.block.text.size();
    report(options_, "tokenizing", done_, input_.total_bytes());
  }

  /// A line goes to validation whenever the share of the lines so far passes a whole number.
  size_t part_of_next_line() {
    if (parts_.size() == 1) return 0;
    const uint64_t shares = uint64_t(options_.train_share + options_.val_share),
                   val = uint64_t(options_.val_share);
    const auto passed = [&](uint64_t n) { return n % shares * val / shares + n / shares * val; };
    const uint64_t line = lines_++;
    return passed(line + 1) != passed(line) ? 1 : 0;
  }

  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  TextInput& input_;
  std::vector<Part>& parts_;
  uint64_t lines_ = 0, done_ = 0, empty_documents_ = 0;
  std::deque<EncodeJob> jobs_;  // as in work_
  OrderedWork<EncodeJob, Encoded> work_;
};

/// The path of the model as the sidecar states it: relative to the sidecar, so that both can be moved
/// together.
std::string model_beside(const std::string& model, const std::string& prefix) {
  std::error_code error;
  const auto relative = stdfs::proximate(stdfs::absolute(model), stdfs::absolute(folder_of(prefix)), error);
  return error ? model : relative.lexically_normal().string();
}

void write_part(const TokenizeOptions& options, const Tokenizer& tokenizer, const std::string& sha256,
                Part& part, TokenizeResult& result) {
  auto& fs = real_file_system();
  part.writer->finish(part.prefix + ".json");
  const auto source = open_source({.path = part.writer->files().front(), .format = options.to});
  const TokenizerChoice& used = result.tokenizer;
  Sidecar sidecar{.tokenizer = used.is_file()
                                   ? TokenizerChoice::file(model_beside(used.path(), part.prefix))
                                   : used,
                  .tokenizer_sha256 = sha256,
                  .vocab_size = tokenizer.vocab_size(),
                  .end_of_text = tokenizer.end_of_text(),
                  .format = name_of(options.to),
                  .tokens = part.writer->token_count(),
                  .documents = part.writer->document_count(),
                  .text_bytes = part.text_bytes,
                  .fingerprint = source->fingerprint(),
                  .inputs = options.inputs};
  fs.replace_text(part.prefix + ".json", sidecar_json(sidecar));
  result.parts.push_back({part.prefix, part.writer->files(), std::move(sidecar)});
}

TokenizeResult run(const TokenizeOptions& options) {
  const double start = real_clock().monotonic_s();
  auto& fs = real_file_system();
  refuse_existing(options);
  TextInput input(options.inputs, options.text_key);
  if (input.total_bytes() == 0)
    throw Error(ErrorCode::kData, fmt::format("{} holds no text; nothing was written", fmt::join(options.inputs, ", ")));
  fs.make_directories(folder_of(options.out));
  TokenizeResult result;
  const bool trained = options.train_vocab > 0;
  result.tokenizer = trained ? TokenizerChoice::file(model_path(options)) : options.tokenizer;
  NewModel model(trained ? result.tokenizer.path() : "");
  if (trained) train(options, input, model.temporary());
  const TokenizerChoice readable =
      trained ? TokenizerChoice::file(model.temporary()) : options.tokenizer;
  const auto tokenizer = open_tokenizer(readable);
  const std::string sha256 = readable.is_file() ? sha256_hex(fs.read_text(readable.path())) : "";
  result.vocab_size = tokenizer->vocab_size();

  const std::vector<std::string> names = prefixes(options);
  std::vector<Part> parts(names.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].prefix = names[i];
    parts[i].writer = std::make_unique<TokenWriter>(
        fs, WriterOptions{.prefix = parts[i].prefix, .format = options.to, .vocab_size = tokenizer->vocab_size()});
  }
  result.empty_documents = EncodeAll(options, *tokenizer, input, parts).run();
  for (const Part& part : parts)
    if (part.writer->token_count() == 0)
      throw Error(ErrorCode::kData,
                  fmt::format("{} would hold no documents{}; nothing was written", part.prefix,
                              parts.size() > 1 ? fmt::format(" with a split of {}:{} (the other part: {}); give more text or "
                                                             "another split", options.train_share, options.val_share,
                                                             std::max(parts[0].writer->document_count(),
                                                                      parts[1].writer->document_count()))
                                               : ""));
  model.publish();
  for (Part& part : parts) write_part(options, *tokenizer, sha256, part, result);
  result.seconds = real_clock().monotonic_s() - start;
  return result;
}

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
  ENSURE(!options.out.empty() && options.train_share > 0 && options.val_share >= 0, "out '{}', split {}:{}", options.out,
         options.train_share, options.val_share);
  if (stdfs::path(options.out).filename().empty())
    throw Error(ErrorCode::kData, fmt::format("--out {} names a folder; give a prefix such as {}train", options.out, options.out));
  try {
    return run(options);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIo) throw;
    throw Error(ErrorCode::kData, fmt::format("{}; no token files were written", e.what()));
  }
}

}  // namespace trainctl::data
