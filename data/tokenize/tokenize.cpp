#include "data/tokenize/tokenize.h"

#include <algorithm>
#include <filesystem>

#include "data/corpus/corpus_reader.h"
#include "data/ordered_work.h"
#include "data/tokenize/answers.h"
#include "data/tokenize/attempt.h"
#include "data/tokenize/token_sets.h"
#include "data/tokenize/train_tokenizer.h"
#include "data/tokenizer.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/paths.h"
#include "runtime/base/units.h"

namespace trainctl::data {
namespace {

namespace stdfs = std::filesystem;

CorpusOptions corpus_of(const TokenizeOptions& options) {
  return {.files = options.inputs,
          .text_key = options.text_key,
          .separator = options.separator,
          .longest_document = options.longest_document,
          .skip_bad = options.skip_bad,
          .block_bytes = options.block_bytes};
}

/// 0 if the file system does not say.
int64_t modified_ns(const std::string& path) {
  std::error_code failed;
  const auto time = stdfs::last_write_time(path, failed);
  return failed ? 0 : std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

AttemptSettings settings_of(FileSystem& fs, FileSystem& inputs, const TokenizeOptions& options) {
  AttemptSettings settings{.text_key = options.text_key,
                           .separator = options.separator,
                           .format = name_of(options.to),
                           .train_share = options.train_share,
                           .val_share = options.val_share};
  if (options.train_vocab > 0) {
    settings.tokenizer = model_path(options);
    settings.train_kind = options.train_kind == TrainedKind::bpe ? "bpe" : "sentencepiece";
    settings.train_vocab = options.train_vocab;
  } else {
    settings.tokenizer = options.tokenizer.text();
    if (options.tokenizer.is_file() && fs.exists(options.tokenizer.path()))
      settings.tokenizer_sha256 = sha256_hex(fs.read_text(options.tokenizer.path()));
  }
  const std::vector<std::string>& versions = options.input_versions;
  ENSURE(versions.empty() || versions.size() == options.inputs.size(), "{} versions", versions.size());
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    const std::string& path = options.inputs[i];
    settings.inputs.push_back({.path = path,
                               .bytes = inputs.open_read(path)->size(),
                               .modified_ns = modified_ns(path),
                               .version = versions.empty() ? "" : versions[i]});
  }
  return settings;
}

/// The path of the model as the sidecar states it: relative to the sidecar, so that both can be moved
/// together.
std::string model_beside(const std::string& model, const std::string& prefix) {
  std::error_code error;
  const auto relative = stdfs::proximate(absolute_path(model), absolute_path(folder_of(prefix)), error);
  return error ? model : relative.lexically_normal().string();
}

/// One call of tokenize().
class Tokenizing {
 public:
  explicit Tokenizing(const TokenizeOptions& options)
      : options_(options),
        fs_(options.file_system != nullptr ? *options.file_system : real_file_system()),
        inputs_(options.input_files != nullptr ? *options.input_files : fs_),
        corpus_(corpus_of(options)) {}

  TokenizeResult run() {
    stored_total_ = BlockReader(inputs_, corpus_).stored_bytes();
    if (stored_total_ == 0)
      throw Error(ErrorCode::kData,
                  fmt::format("{} holds no text; nothing was written", fmt::join(options_.inputs, ", ")));
    const std::string folder = options_.out + ".partial";
    if (!fs_.exists(folder)) refuse_existing(fs_, options_);
    find_answers();
    Attempt attempt(fs_, folder);
    try {
      run_in(attempt);
    } catch (const Error& e) {
      if (keeps(attempt)) throw Error(e.code(), e.what() + kept_text(attempt));
      forget(attempt);
      throw;
    } catch (const std::exception&) {
      if (!keeps(attempt)) forget(attempt);
      throw;
    }
    result_.seconds = real_clock().monotonic_s() - start_s_;
    return std::move(result_);
  }

 private:
  /// Decides what the records are, and of which template.
  void find_answers() {
    has_answers_ =
        options_.records == Records::answers || !options_.chat_template.empty() ||
        (options_.records == Records::automatic && options_.train_vocab == 0 && begins_with_answers());
    if (!has_answers_) return;
    if (options_.train_vocab > 0)
      throw Error(ErrorCode::kUsage,
                  "conversations are for a model that is there: give its tokenizer, not --train-vocab");
    form_ = options_.chat_template.empty() ? chat_template_of(fs_, options_.tokenizer, why_no_template_)
                                           : std::optional(chat_template_named(options_.chat_template));
    corpus_.whole_lines = true;
    if (form_) note(fmt::format("conversations are written as {} says", form_->name));
  }
  std::string chat_name() const { return !has_answers_ ? "" : form_ ? std::string(form_->name) : "none"; }
  bool begins_with_answers() {
    try {
      Block block;
      BlockReader reader(inputs_, corpus_);
      while (reader.next(block))
        if (const size_t begin = block.bytes.find_first_not_of(" \t\r\n"); begin != block.bytes.npos)
          return block.kind == Block::Kind::json_lines &&
                 has_answers(
                     std::string_view(block.bytes).substr(begin, block.bytes.find('\n', begin) - begin),
                     options_.text_key);
    } catch (const Error&) {  // reported where the records are read
    }
    return false;
  }

  void note(const std::string& text) const {
    if (options_.note) options_.note(text);
  }
  void report(const char* doing, uint64_t stored_bytes, uint64_t text_bytes) const {
    if (options_.progress) options_.progress({doing, stored_bytes, stored_total_, text_bytes});
  }

  /// Whether what an attempt has done is worth to be kept.
  bool keeps(const Attempt& attempt) const {
    if (is_useless_ || !attempt.progress()) return false;
    const AttemptProgress& done = *attempt.progress();
    return done.complete ||
           (done.encoding.position != CorpusPosition{} && done.seconds >= options_.kept_after_s);
  }
  std::string kept_text(const Attempt& attempt) const {
    return fmt::format("; {} of {} are done and kept in {}: the same command goes on from there",
                       size_text(attempt.progress()->encoding.stored_bytes), size_text(stored_total_),
                       attempt.folder());
  }
  void forget(Attempt& attempt) const {
    if (!owns_attempt_) return;
    try {
      attempt.remove();
    } catch (const Error&) {  // the first error is the one to report
    }
  }

  void run_in(Attempt& attempt) {
    AttemptSettings settings = settings_of(fs_, inputs_, options_);
    settings.chat = chat_name();
    const bool resumes = can_resume(attempt, settings);
    owns_attempt_ = true;
    if (!resumes || !attempt.progress()->complete) refuse_existing(fs_, options_);
    if (!resumes) {
      attempt.begin(settings);
    } else {
      progress_ = *attempt.progress();
      seconds_before_ = progress_.seconds;
      for (const WriterState& set : progress_.encoding.sets) text_before_ += set.text_bytes;
    }
    progress_.skip_bad = options_.skip_bad;
    progress_.longest_document = options_.longest_document;
    open_tokenizer_of(attempt);
    if (!progress_.complete) encode(attempt);
    publish(fs_, options_, has_answers_, attempt);
    fill_result();
    attempt.remove();
  }

  /// Whether the attempt goes on; otherwise it begins anew. Error(kUsage): it is of other settings.
  bool can_resume(Attempt& attempt, const AttemptSettings& settings) {
    if (!attempt.settings() || !attempt.progress()) return false;
    const AttemptProgress& before = *attempt.progress();
    std::string other = difference(*attempt.settings(), settings);
    if (other.empty()) other = other_limits(before);
    if (other.empty()) {
      if (before.encoding.position == CorpusPosition{}) return true;
      result_.resumed_at = before.encoding.stored_bytes;
      const CorpusPosition& at = before.encoding.position;
      const bool is_done = at.file >= options_.inputs.size();
      note(fmt::format(
          "going on in {}: {} of {} are done{}", attempt.folder(), size_text(before.encoding.stored_bytes),
          size_text(stored_total_),
          is_done ? "" : fmt::format(", up to record {} of {}", at.number, options_.inputs[at.file])));
      return true;
    }
    if (!keeps(attempt)) return false;
    if (options_.force) {
      note(fmt::format("starting over: the unfinished work in {} differs in {}", attempt.folder(), other));
      return false;
    }
    throw Error(ErrorCode::kUsage,
                fmt::format("{} holds unfinished work ({} of input are done) that differs in {}; repeat that "
                            "command to go on, "
                            "choose another --out, or start over with --force",
                            attempt.folder(), size_text(before.encoding.stored_bytes), other));
  }

  /// The first limit with which earlier records could have been treated in another way.
  std::string other_limits(const AttemptProgress& before) const {
    const bool left_out = before.encoding.left_out_count > 0;
    if (left_out && !options_.skip_bad) return "--skip-bad (given, now not)";
    if (options_.longest_document < before.longest_document ||
        (left_out && options_.longest_document != before.longest_document))
      return fmt::format("--longest-document ({}, now {})", size_text(before.longest_document),
                         size_text(options_.longest_document));
    return "";
  }

  void open_tokenizer_of(Attempt& attempt) {
    const bool trained = options_.train_vocab > 0;
    result_.tokenizer = trained ? TokenizerChoice::file(model_path(options_)) : options_.tokenizer;
    const std::string model = attempt / "model";
    if (trained && !progress_.complete && !fs_.exists(model)) {
      note(fmt::format("training a tokenizer of {} ids first", options_.train_vocab));
      fs_.replace_text(model, train_on_corpus(inputs_, options_, corpus_));
      attempt.record(progress_);
    }
    const bool is_moved = trained && !fs_.exists(model);  // a complete attempt
    const TokenizerChoice readable = trained && !is_moved ? TokenizerChoice::file(model) : result_.tokenizer;
    tokenizer_ = open_tokenizer(fs_, readable);
    tokenizer_sha256_ = readable.is_file() ? sha256_hex(fs_.read_text(readable.path())) : "";
    result_.vocab_size = tokenizer_->vocab_size();
  }

  void encode(Attempt& attempt) {
    corpus_.cut = [this](std::string_view text, size_t limit) { return tokenizer_->first_part(text, limit); };
    // Of many files some are held out whole: the end of a file goes on with what its beginning taught.
    // Twice as many as there are shares: some may be empty.
    const bool cuts_files = corpus_.files.size() < 2 * uint64_t(options_.train_share + options_.val_share);
    corpus_.kept = uint64_t(options_.train_share);
    corpus_.held_out = cuts_files ? uint64_t(options_.val_share) : 0;
    std::optional<AnswerEncoder> answers;
    if (has_answers_) answers.emplace(*tokenizer_, form_, why_no_template_);
    EncodingState& state = progress_.encoding;
    std::vector<std::unique_ptr<TokenWriter>> sets;
    const size_t count = prefixes(options_).size();
    const bool resumes = state.sets.size() == count;
    for (size_t i = 0; i < count; ++i) {
      const WriterOptions options{.prefix = attempt / kSetNames[i],
                                  .format = options_.to,
                                  .vocab_size = tokenizer_->vocab_size(),
                                  .has_weights = has_answers_};
      if (!resumes) remove_set(options.prefix);
      sets.push_back(resumes ? std::make_unique<TokenWriter>(fs_, options, state.sets[i])
                             : std::make_unique<TokenWriter>(fs_, options));
    }
    const EncodingOptions options{
        .train_share = uint64_t(options_.train_share),
        .val_share = uint64_t(options_.val_share),
        .cuts_files = cuts_files,
        .threads = thread_count(options_.threads),
        .answers = answers ? &*answers : nullptr,
        .record_every_s = options_.record_every_s,
        .progress = [this](uint64_t stored, uint64_t text) { report(kTokenizing, stored, text); }};
    encode_all(inputs_, options, corpus_, *tokenizer_, sets, state,
               [&](const EncodingState&) { record(attempt); });
    finish(attempt, sets);
  }

  /// Removes the files of a set that were begun before the first record of progress.
  void remove_set(const std::string& prefix) {
    for (const char* ending : {".bin", ".lengths", ".loss"})
      if (fs_.exists(prefix + ending)) fs_.remove_file(prefix + ending);
  }

  void record(Attempt& attempt) {
    progress_.seconds = seconds_before_ + real_clock().monotonic_s() - start_s_;
    attempt.record(progress_);
  }

  /// Completes the sets in the folder of the attempt.
  void finish(Attempt& attempt, std::vector<std::unique_ptr<TokenWriter>>& sets) {
    const auto names = prefixes(options_);
    for (size_t i = 0; i < sets.size(); ++i)
      if (sets[i]->state().tokens == 0) refuse_empty(names[i], sets);
    for (size_t i = 0; i < sets.size(); ++i) {
      sets[i]->complete();
      if (has_answers_ && sets[i]->loss_tokens() == 0) refuse_no_loss(names[i]);
      write_sidecar(attempt / kSetNames[i], names[i], *sets[i]);
    }
    fs_.sync_directory(attempt.folder());
    progress_.complete = true;
    progress_.encoding.sets.clear();
    for (const auto& set : sets) progress_.encoding.sets.push_back(set->state());
    record(attempt);
  }

  [[noreturn]] void refuse_no_loss(const std::string& name) {
    is_useless_ = true;
    throw Error(ErrorCode::kData,
                fmt::format("{} would hold no token with a loss: the weights of all answers are "
                            "0; nothing was written",
                            name));
  }

  [[noreturn]] void refuse_empty(const std::string& name,
                                 const std::vector<std::unique_ptr<TokenWriter>>& sets) {
    is_useless_ = true;
    std::string split;
    if (sets.size() > 1)
      split = fmt::format(" with a split of {}:{} (the other part: {}); give more text or another split",
                          options_.train_share, options_.val_share,
                          std::max(sets[0]->state().documents, sets[1]->state().documents));
    throw Error(ErrorCode::kData,
                fmt::format("{} would hold no documents{}; nothing was written", name, split));
  }

  void write_sidecar(const std::string& from, const std::string& prefix, const TokenWriter& set) {
    const WriterState& state = set.state();
    const TokenizerChoice& used = result_.tokenizer;
    std::vector<std::string> files;
    for (const std::string& ending : TokenWriter::endings(options_.to)) files.push_back(from + ending);
    Sidecar sidecar{
        .tokenizer = used.is_file() ? TokenizerChoice::file(model_beside(used.path(), prefix)) : used,
        .tokenizer_sha256 = tokenizer_sha256_,
        .vocab_size = tokenizer_->vocab_size(),
        .end_of_text = tokenizer_->end_of_text(),
        .format = name_of(options_.to),
        .tokens = state.tokens,
        .documents = state.documents,
        .text_bytes = state.text_bytes,
        .fingerprint = fingerprint_of(fs_, options_.to, files),
        .inputs = options_.inputs};
    if (has_answers_) sidecar.loss_tokens = set.loss_tokens();
    if (form_) sidecar.chat_template = std::string(form_->name);
    fs_.replace_text(from + ".json", sidecar_json(sidecar));
  }

  void fill_result() {
    const EncodingState& state = progress_.encoding;
    const auto names = prefixes(options_);
    for (size_t i = 0; i < names.size(); ++i) {
      std::vector<std::string> files;
      for (const std::string& ending : TokenWriter::endings(options_.to, has_answers_))
        files.push_back(names[i] + ending);
      result_.parts.push_back(
          {names[i], files, parse_sidecar(fs_.read_text(names[i] + ".json"), names[i] + ".json").value()});
      result_.text_bytes += state.sets[i].text_bytes;
    }
    result_.text_bytes -= std::min(result_.text_bytes, text_before_);
    result_.empty_documents = state.empty_documents;
    result_.left_out_count = state.left_out_count;
    result_.left_out = state.left_out;
    result_.faulty_files = state.faulty_count;
    for (const FaultyFile& file : state.faulty)
      result_.warnings.push_back({file.path, fault_text(file.faults, file.of_rows)});
  }

  const TokenizeOptions& options_;
  FileSystem& fs_;
  FileSystem& inputs_;
  CorpusOptions corpus_;
  const double start_s_ = real_clock().monotonic_s();
  uint64_t stored_total_ = 0, text_before_ = 0;
  double seconds_before_ = 0;
  AttemptProgress progress_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::string tokenizer_sha256_;
  TokenizeResult result_;
  bool has_answers_ = false;
  std::optional<ChatTemplate> form_;  // of conversations
  std::string why_no_template_;
  bool owns_attempt_ = false;  // not before it is known that no other work is in it
  bool is_useless_ = false;    // the work cannot become a token set
};

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
  ENSURE(!options.out.empty() && options.train_share > 0 && options.val_share >= 0, "out '{}', split {}:{}",
         options.out, options.train_share, options.val_share);
  if (stdfs::path(options.out).filename().empty())
    throw Error(ErrorCode::kData, fmt::format("--out {} names a folder; give a prefix such as {}train",
                                              options.out, options.out));
  try {
    return Tokenizing(options).run();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIo) throw;
    throw Error(ErrorCode::kData, fmt::format("{}; no token files were written", e.what()));
  }
}

}  // namespace trainctl::data
