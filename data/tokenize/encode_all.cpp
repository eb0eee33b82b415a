#include "data/tokenize/encode_all.h"

#include <algorithm>
#include <deque>
#include <exception>

#include "data/ordered_work.h"
#include "data/tokenize/encode_block.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

constexpr size_t kShownLeftOut = 10, kShownFaulty = 100;
constexpr uint64_t kTextOfThread = uint64_t(4) << 20, kLeastText = uint64_t(64) << 20;

class EncodeAll {
 public:
  EncodeAll(FileSystem& fs, const EncodingOptions& options, const CorpusOptions& corpus,
            const Tokenizer& tokenizer, std::vector<std::unique_ptr<TokenWriter>>& sets, EncodingState& state,
            const std::function<void(const EncodingState&)>& record)
      : options_(options),
        sets_(sets),
        state_(state),
        record_(record),
        most_text_(std::max(kLeastText, kTextOfThread * uint64_t(options.threads))),
        reader_(fs, corpus),
        work_(options.threads, [&tokenizer, &corpus, answers = options.answers] {
          return [&tokenizer, &corpus, answers,
                  encoder = std::shared_ptr(tokenizer.encoder())](const Block& block) {
            return encode_block(tokenizer, *encoder, block, corpus, answers);
          };
        }) {
    if (state.position != CorpusPosition{}) reader_.seek(state.position);
    for (const auto& set : sets) text_bytes_ += set->state().text_bytes;
  }

  void run() {
    plan_record();
    try {
      Block block;
      while (read(block)) {
        while (!jobs_.empty() && (work_.is_full() || text_in_work_ + block.bytes.size() > most_text_))
          write_oldest();
        jobs_.push_back({.path = block.path,
                         .end = block.end,
                         .stored_bytes = block.stored_bytes,
                         .text_bytes = block.bytes.size(),
                         .whole_file = block.whole_file,
                         .held_out = block.held_out,
                         .of_rows = block.kind == Block::Kind::rows});
        text_in_work_ += block.bytes.size();
        work_.submit(std::move(block));
      }
      while (!jobs_.empty()) write_oldest();
      if (read_error_) std::rethrow_exception(read_error_);
    } catch (const Error& e) {
      const bool is_of_input = e.code() == ErrorCode::kData || read_error_;
      if (is_of_input && has_recorded_ && is_consistent_) record();
      throw;
    }
  }

 private:
  struct Job {
    std::shared_ptr<const std::string> path;
    CorpusPosition end;
    uint64_t stored_bytes = 0, text_bytes = 0;
    bool whole_file = false, held_out = false, of_rows = false;
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

  void write_oldest() {
    const EncodedBlock encoded = work_.take();
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    text_in_work_ -= job.text_bytes;
    is_consistent_ = false;
    size_t begin = 0;
    for (const EncodedBlock::Text& text : encoded.texts) {
      if (!in_document_)
        state_.part = job.whole_file && options_.cuts_files ? uint64_t(job.held_out) : set_of_next_document();
      TokenWriter& set = *sets_[state_.part];
      set.add(std::span(encoded.ids).subspan(begin, text.end - begin));
      if (options_.answers) set.add_weights(std::span(encoded.weights).subspan(begin, text.end - begin));
      set.count_text(text.text_bytes);
      text_bytes_ += text.text_bytes;
      if (text.ends_document) set.end_document();
      in_document_ = !text.ends_document;
      begin = text.end;
    }
    state_.position = job.end;
    state_.stored_bytes = job.stored_bytes;
    state_.empty_documents += encoded.empty_documents;
    state_.left_out_count += encoded.left_out.size();
    for (const LeftOut& record : encoded.left_out)
      if (state_.left_out.size() < kShownLeftOut) state_.left_out.push_back(record);
    if (encoded.faults.any()) add_faults(job, encoded.faults);
    is_consistent_ = true;
    if (options_.progress) options_.progress(state_.stored_bytes, text_bytes_);
    if (real_clock().monotonic_s() >= next_record_s_) record();
  }

  void add_faults(const Job& job, const TextFaults& faults) {
    if (state_.last_faulty != *job.path) {
      state_.last_faulty = *job.path;
      ++state_.faulty_count;
      if (state_.faulty.size() < kShownFaulty) state_.faulty.push_back({*job.path, job.of_rows, {}});
    }
    if (state_.faulty.back().path == *job.path) state_.faulty.back().faults.add(faults);
  }

  /// A document goes to validation whenever the share of the documents so far passes a whole number.
  uint64_t set_of_next_document() {
    if (sets_.size() == 1) return 0;
    const uint64_t shares = options_.train_share + options_.val_share, val = options_.val_share;
    const auto passed = [&](uint64_t n) { return n % shares * val / shares + n / shares * val; };
    const uint64_t n = state_.split_documents++;
    return passed(n + 1) != passed(n) ? 1 : 0;
  }

  void record() {
    state_.sets.clear();
    for (const auto& set : sets_) {
      set->sync();
      state_.sets.push_back(set->state());
    }
    record_(state_);
    has_recorded_ = true;
    plan_record();
  }
  /// Early work is recorded more often, so that an interruption costs at most about a tenth of it.
  void plan_record() {
    constexpr double kSoonest = 0.2, kShare = 0.1;
    const double now = real_clock().monotonic_s();
    next_record_s_ = now + std::min(options_.record_every_s, std::max(kSoonest, kShare * (now - start_s_)));
  }

  const EncodingOptions& options_;
  std::vector<std::unique_ptr<TokenWriter>>& sets_;
  EncodingState& state_;
  const std::function<void(const EncodingState&)>& record_;
  const uint64_t most_text_;
  BlockReader reader_;
  std::exception_ptr read_error_;
  uint64_t text_bytes_ = 0, text_in_work_ = 0;
  bool in_document_ = state_.position.in_document, has_recorded_ = state_.position != CorpusPosition{};
  bool is_consistent_ = true;  // the writers are where state_ says
  const double start_s_ = real_clock().monotonic_s();
  double next_record_s_ = 0;
  std::deque<Job> jobs_;  // as in work_
  OrderedWork<Block, EncodedBlock> work_;
};

}  // namespace

void encode_all(FileSystem& fs, const EncodingOptions& options, const CorpusOptions& corpus,
                const Tokenizer& tokenizer, std::vector<std::unique_ptr<TokenWriter>>& sets,
                EncodingState& state, const std::function<void(const EncodingState&)>& record) {
  EncodeAll(fs, options, corpus, tokenizer, sets, state, record).run();
}

}  // namespace trainctl::data
