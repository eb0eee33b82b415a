#include "data/tokenize/tokenize.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>

#include "data/bpe_trainer.h"
#include "data/corpus/corpus_reader.h"
#include "data/ordered_work.h"
#include "data/token_writer.h"
#include "data/tokenize/encode_block.h"
#include "data/tokenizer.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/units.h"

namespace trainctl::data {
namespace {

namespace stdfs = std::filesystem;

constexpr uint64_t kTrainingText = uint64_t(64) << 20;  // the most text that a tokenizer learns from
constexpr size_t kTrainingPart = size_t(256) << 10;
constexpr size_t kShownBad = 10;

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
  throw Error(
      ErrorCode::kUsage,
      fmt::format("{} {} already; choose another --out{}, or replace {} with --force: runs on the old "
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

CorpusOptions corpus_of(const TokenizeOptions& options) {
  return {.files = options.inputs,
          .text_key = options.text_key,
          .separator = options.separator,
          .longest_document = options.longest_document,
          .skip_bad = options.skip_bad};
}

/// Trains on all of the text, or on parts spread evenly over it when it is long, and writes the model to
/// `path`.
void train(const TokenizeOptions& options, const std::string& path) {
  CorpusOptions corpus = corpus_of(options);
  corpus.block_bytes = kTrainingPart;
  corpus.cut = cut_text;
  BlockReader blocks(real_file_system(), corpus);
  const uint64_t every = blocks.stored_bytes() / kTrainingText + 1;
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
        documents.emplace(block, corpus);
      }
      text = rest.substr(0, cut_text(rest, kTrainingPart));
      rest.remove_prefix(text.size());
      if (part++ % every == 0) return true;
    }
  };
  report(options, "training the tokenizer", 0, blocks.stored_bytes());
  const std::string model = options.train_kind == TrainedKind::bpe
                                ? train_bpe(next, options.train_vocab, thread_count(options.threads))
                                : train_sentencepiece(next, options.train_vocab);
  auto& fs = real_file_system();
  fs.make_directories(folder_of(path));
  fs.replace_text(path, model);
}

/// One set of token files under way.
struct Part {
  std::string prefix;
  std::unique_ptr<TokenWriter> writer;
  uint64_t text_bytes = 0;
};

/// Gives blocks to threads and writes their tokens in the order of the corpus, so that the files do not
/// depend on the number of threads.
class EncodeAll {
 public:
  EncodeAll(const TokenizeOptions& options, const CorpusOptions& corpus, const Tokenizer& tokenizer,
            std::vector<Part>& parts)
      : options_(options),
        parts_(parts),
        reader_(real_file_system(), corpus),
        work_(thread_count(options.threads), [&tokenizer, &corpus] {
          return [&tokenizer, &corpus, encoder = std::shared_ptr(tokenizer.encoder())](const Block& block) {
            return encode_block(tokenizer, *encoder, block, corpus);
          };
        }) {}

  void run(TokenizeResult& result) {
    Block block;
    while (read(block)) {
      if (work_.is_full()) write_oldest(result);
      jobs_.push_back({block.whole_file, block.held_out, block.stored_bytes});
      work_.submit(std::move(block));
    }
    while (!jobs_.empty()) write_oldest(result);
    if (read_error_) std::rethrow_exception(read_error_);
  }

 private:
  struct Job {
    bool whole_file, held_out;
    uint64_t stored_bytes;
  };

  /// False at the end, and at an error: the blocks before it may have one that comes first.
  bool read(Block& block) {
    try {
      return reader_.next(block);
    } catch (const Error&) {
      read_error_ = std::current_exception();
      return false;
    }
  }

  void write_oldest(TokenizeResult& result) {
    const EncodedBlock encoded = work_.take();
    const Job job = jobs_.front();
    jobs_.pop_front();
    size_t begin = 0;
    for (const EncodedBlock::Text& text : encoded.texts) {
      if (!in_document_) part_ = job.whole_file ? job.held_out : part_of_next_document();
      Part& part = parts_[part_];
      part.writer->add(std::span(encoded.ids).subspan(begin, text.end - begin));
      part.text_bytes += text.text_bytes;
      if (text.ends_document) part.writer->end_document();
      in_document_ = !text.ends_document;
      begin = text.end;
    }
    result.empty_documents += encoded.empty_documents;
    result.bad_records += encoded.bad.size();
    for (const BadRecord& bad : encoded.bad)
      if (result.first_bad.size() < kShownBad) result.first_bad.push_back(bad);
    report(options_, "tokenizing", job.stored_bytes, reader_.stored_bytes());
  }

  /// A document goes to validation whenever the share of the documents so far passes a whole number.
  size_t part_of_next_document() {
    if (parts_.size() == 1) return 0;
    const uint64_t shares = uint64_t(options_.train_share + options_.val_share),
                   val = uint64_t(options_.val_share);
    const auto passed = [&](uint64_t n) { return n % shares * val / shares + n / shares * val; };
    const uint64_t n = documents_++;
    return passed(n + 1) != passed(n) ? 1 : 0;
  }

  const TokenizeOptions& options_;
  std::vector<Part>& parts_;
  BlockReader reader_;
  std::exception_ptr read_error_;
  uint64_t documents_ = 0;  // that parts_ share
  bool in_document_ = false;
  size_t part_ = 0;       // of the document under way
  std::deque<Job> jobs_;  // as in work_
  OrderedWork<Block, EncodedBlock> work_;
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
  Sidecar sidecar{
      .tokenizer = used.is_file() ? TokenizerChoice::file(model_beside(used.path(), part.prefix)) : used,
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
  CorpusOptions corpus = corpus_of(options);
  if (BlockReader(fs, corpus).stored_bytes() == 0)
    throw Error(ErrorCode::kData,
                fmt::format("{} holds no text; nothing was written", fmt::join(options.inputs, ", ")));
  fs.make_directories(folder_of(options.out));
  TokenizeResult result;
  const bool trained = options.train_vocab > 0;
  result.tokenizer = trained ? TokenizerChoice::file(model_path(options)) : options.tokenizer;
  NewModel model(trained ? result.tokenizer.path() : "");
  if (trained) train(options, model.temporary());
  const TokenizerChoice readable = trained ? TokenizerChoice::file(model.temporary()) : options.tokenizer;
  const auto tokenizer = open_tokenizer(readable);
  const std::string sha256 = readable.is_file() ? sha256_hex(fs.read_text(readable.path())) : "";
  result.vocab_size = tokenizer->vocab_size();

  const std::vector<std::string> names = prefixes(options);
  std::vector<Part> parts(names.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].prefix = names[i];
    parts[i].writer = std::make_unique<TokenWriter>(
        fs, WriterOptions{
                .prefix = parts[i].prefix, .format = options.to, .vocab_size = tokenizer->vocab_size()});
  }
  corpus.cut = [&tokenizer](std::string_view text, size_t limit) {
    return tokenizer->first_part(text, limit);
  };
  corpus.kept = uint64_t(options.train_share);
  corpus.held_out = uint64_t(options.val_share);
  EncodeAll(options, corpus, *tokenizer, parts).run(result);
  for (const Part& part : parts)
    if (part.writer->token_count() == 0)
      throw Error(
          ErrorCode::kData,
          fmt::format("{} would hold no documents{}; nothing was written", part.prefix,
                      parts.size() > 1
                          ? fmt::format(" with a split of {}:{} (the other part: {}); give more text or "
                                        "another split",
                                        options.train_share, options.val_share,
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
  ENSURE(!options.out.empty() && options.train_share > 0 && options.val_share >= 0, "out '{}', split {}:{}",
         options.out, options.train_share, options.val_share);
  if (stdfs::path(options.out).filename().empty())
    throw Error(ErrorCode::kData, fmt::format("--out {} names a folder; give a prefix such as {}train",
                                              options.out, options.out));
  try {
    return run(options);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIo) throw;
    throw Error(ErrorCode::kData, fmt::format("{}; no token files were written", e.what()));
  }
}

}  // namespace trainctl::data
