#include "test/data/fuzz_tokenizer.h"

#include "data/tiktoken.h"
#include "data/tokenizer_json.h"
#include "runtime/base/error.h"
#include "test/support/must.h"

namespace trainctl::test {
namespace {

const std::string kText =
    "It's 12345 texts,\r\n\n  with e\xcc\x81 and \xff <|endoftext|> <mask>  \xe4\xbd\xa0\xe5\xa5\xbd -- a-b "
    "c!\n";

}  // namespace

void fuzz_tokenizer(const std::string& bytes) {
  try {
    const auto tokenizer = data::is_tiktoken(bytes) ? data::open_tiktoken(bytes, "tokenizer.model")
                                                    : data::open_tokenizer_json(bytes, "f");
    const auto ids = tokenizer->encode(kText);
    for (const int32_t id : ids)
      must(id >= 0 && id < tokenizer->vocab_size(), "an id outside the vocabulary");
    must(tokenizer->end_of_text() >= 0 && tokenizer->end_of_text() < tokenizer->vocab_size(), "end of text");
    const auto encoder = tokenizer->encoder();
    std::vector<int32_t> in_parts;
    for (std::string_view rest = kText; !rest.empty();) {
      const std::string_view part = rest.substr(0, tokenizer->first_part(rest, 8));
      must(!part.empty(), "an empty part");
      encoder->encode(part, in_parts);
      rest.remove_prefix(part.size());
    }
    must(in_parts == ids, "parts give other ids");
    must(tokenizer->decode(ids).size() < 100 * bytes.size() + 10000, "decoded text without end");
  } catch (const Error& error) {
    must(error.code() == ErrorCode::kData, "another kind of error");
    must(*error.what() != '\0', "no sentence");
  }
}

}  // namespace trainctl::test
