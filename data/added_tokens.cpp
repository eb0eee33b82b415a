#include "data/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "data/character_classes.h"
#include "data/utf8.h"

namespace trainctl::data {
namespace {

bool is_space(uint32_t code_point) {
  const CharacterClass kind = character_classes()[code_point];
  return kind == CharacterClass::space || kind == CharacterClass::newline;
}

size_t spaces_at_start(std::string_view text) {
  size_t n = 0;
  while (n < text.size()) {
    const CodePoint c = code_point_at(text.substr(n));
    if (!is_space(c.value)) break;
    n += c.length;
  }
  return n;
}

/// Where the white space at the end of the text begins.
size_t spaces_at_end(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && (uint8_t(text[begin]) & 0xc0) == 0x80) --begin;
    const CodePoint c = code_point_at(text.substr(begin, end - begin));
    if (c.length != end - begin || !is_space(c.value)) break;
    end = begin;
  }
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const auto first = uint8_t(tokens_[i].content.at(0));
    by_first_byte_[first].push_back(uint32_t(i));
    first_bytes_.set(first);
  }
}

const AddedToken* AddedTokenFinder::token_at(std::string_view text, size_t at) const {
  for (const uint32_t i : by_first_byte_[uint8_t(text[at])])
    if (text.compare(at, tokens_[i].content.size(), tokens_[i].content) == 0) return &tokens_[i];
  return nullptr;
}

size_t AddedTokenFinder::next_place(std::string_view text, size_t at) const {
  if (first_bytes_.count() == 1) return std::min(text.find(tokens_[0].content[0], at), text.size());
  while (at < text.size() && !first_bytes_[uint8_t(text[at])]) ++at;
  return at;
}

void AddedTokenFinder::divide(std::string_view text, const std::function<void(std::string_view)>& on_text,
                              const std::function<void(int32_t)>& on_token) const {
  size_t done = 0;
  const auto put_text = [&](size_t end) {
    if (done < end) on_text(text.substr(done, end - done));
  };
  if (!tokens_.empty()) {
    for (size_t at = next_place(text, 0); at < text.size();) {
      const AddedToken* token = token_at(text, at);
      if (token == nullptr) {
        at = next_place(text, at + 1);
        continue;
      }
      // As the tokenizers library: the next one is looked for behind the token itself, also in white space
      // that rstrip took. What it leaves of that is text again.
      const size_t own_end = at + token->content.size();
      size_t begin = at, end = own_end;
      if (token->lstrip) begin = std::max(spaces_at_end(text.substr(0, begin)), done);
      if (token->rstrip) end += spaces_at_start(text.substr(end));
      put_text(begin);
      on_token(token->id);
      done = end;
      at = next_place(text, own_end);
    }
  }
  put_text(text.size());
}

}  // namespace trainctl::data
