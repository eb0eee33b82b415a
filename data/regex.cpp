#include "data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "data/utf8.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

// Of the stack of PCRE2's machine code; a pattern that repeats groups needs a part of it for each repetition.
constexpr size_t kFirstStackBytes = 32 << 10, kMostStackBytes = 64 << 20;

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof text) < 0) return fmt::format("error {}", code);
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

/// Copies `text` with U+FFFD for each broken byte. Returns false, and copies nothing, if there is none.
/// `broken`: where the broken bytes are in the text.
bool replace_broken(std::string_view text, std::string& valid, std::vector<size_t>& broken) {
  for (size_t i = 0; i < text.size();) {
    const size_t n = uint8_t(text[i]) < 0x80 ? 1 : character_length(text.substr(i));
    if (n == 0) broken.push_back(i);
    i += std::max<size_t>(n, 1);
  }
  if (broken.empty()) return false;
  size_t done = 0;
  for (const size_t at : broken) {
    valid.append(text, done, at - done);
    append_utf8(valid, kReplacement);
    done = at + 1;
  }
  valid.append(text, done);
  return true;
}

}  // namespace

struct Regex::Code {
  pcre2_code* pcre = nullptr;
  ~Code() { pcre2_code_free(pcre); }
};

Regex::Regex(std::string_view pattern, std::string where) : code_(new Code), where_(std::move(where)) {
  const std::string translated = pcre_of_oniguruma(pattern, where_);
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->pcre = pcre2_compile(units(translated), translated.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset,
                              context.get());
  if (code_->pcre == nullptr)
    throw Error(ErrorCode::kData, fmt::format("{}: the pattern {} is no regular expression: {}", where_,
                                              pattern, message_of(error)));
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code_->pcre, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0)
    throw Error(ErrorCode::kData, fmt::format("{}: the pattern {} also matches the empty text, which divides "
                                              "nothing; change it so that it does not",
                                              where_, pattern));
  pcre2_jit_compile(code_->pcre, PCRE2_JIT_COMPLETE);  // where there is no JIT, the interpreter matches
}

Regex::~Regex() = default;

struct Regex::Matcher::State {
  explicit State(const Regex& regex)
      : owner(regex),
        match(pcre2_match_data_create_from_pattern(regex.code_->pcre, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kFirstStackBytes, kMostStackBytes, nullptr)) {
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~State() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  const Regex& owner;
  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

Regex::Matcher::Matcher(const Regex& regex) : state_(new State(regex)) {}
Regex::Matcher::~Matcher() = default;

void Regex::Matcher::divide_valid(std::string_view text, std::vector<Stretch>& stretches) {
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(state_->match);
  size_t done = 0;
  while (done < text.size()) {
    const int result = pcre2_match(state_->owner.code_->pcre, units(text), text.size(), done,
                                   PCRE2_NO_UTF_CHECK, state_->match, state_->context);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      throw Error(
          ErrorCode::kData,
          fmt::format("{}: its pattern cannot be matched on a text of {} bytes: {}; shorten the documents",
                      state_->owner.where_, text.size(), message_of(result)));
    // A look-behind could place a match before the start; the pattern matches no empty text.
    ENSURE(found[0] >= done && found[1] > found[0], "match {} to {} after {}", found[0], found[1], done);
    if (found[0] > done) stretches.push_back({done, found[0], false});
    stretches.push_back({found[0], found[1], true});
    done = found[1];
  }
  if (done < text.size()) stretches.push_back({done, text.size(), false});
}

void Regex::Matcher::divide(std::string_view text, std::vector<Stretch>& stretches) {
  std::string valid;
  std::vector<size_t> broken;
  const size_t first = stretches.size();
  if (!replace_broken(text, valid, broken)) return divide_valid(text, stretches);
  divide_valid(valid, stretches);
  // Each broken byte before a place has made it two bytes larger.
  size_t before = 0;
  const auto original = [&](size_t place) {
    while (before < broken.size() && broken[before] + 2 * before < place) ++before;
    return place - 2 * before;
  };
  for (size_t i = first; i < stretches.size(); ++i) {
    stretches[i].begin = original(stretches[i].begin);
    stretches[i].end = original(stretches[i].end);
  }
}

}  // namespace trainctl::data
