// Goal: tiktoken files are read with the pattern and the special tokens of their encoding; training makes
// the same tokenizer.json for any number of threads; tokenizing gives the same files for any number of
// threads.
// Method: files made here; a small corpus whose merges are known; files compared byte for byte.
#include <random>

#include "data/bpe_trainer.h"
#include "data/tiktoken.h"
#include "data/tokenize/tokenize.h"
#include "data/tokenizer_json.h"
#include "runtime/base/json.h"
#include "test/data/token_fixtures.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

std::string base64(const std::string& bytes) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (i + j < bytes.size() ? uint8_t(bytes[i + j]) : 0);
    const size_t digits = std::min<size_t>(bytes.size() - i, 3) + 1;
    for (size_t j = 0; j < 4; ++j) text += j < digits ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

/// The 256 bytes (byte b has rank b), the given tokens, and tokens that no text has, up to `count`.
std::string tiktoken_file(const std::vector<std::string>& tokens, int64_t count) {
  std::string file;
  int64_t rank = 0;
  const auto put = [&](const std::string& token) {
    file += base64(token) + " " + std::to_string(rank++) + "\n";
  };
  for (int b = 0; b < 256; ++b) put(std::string(1, char(b)));
  for (const std::string& token : tokens) put(token);
  for (uint32_t i = 0; rank < count; ++i)
    put("\xff" + std::string(1, char(i)) + std::string(1, char(i >> 8)) + char(i >> 16));
  return file;
}

std::string train(const std::vector<std::string>& texts, int64_t vocab, int threads) {
  size_t given = 0;
  return train_bpe(
      [&](std::string_view& next) {
        if (given == texts.size()) return false;
        next = texts[given++];
        return true;
      },
      vocab, threads);
}

std::vector<std::string> corpus(int parts) {
  std::mt19937 random(5);
  const std::vector<std::string> words{"the",   " model", " learns", " tokens", "\n\n", " naïve",  " 42",
                                       " 训练", "'s",     "=====",   "   ",     "\xff", " 123456", "."};
  std::vector<std::string> texts;
  for (int i = 0; i < parts; ++i) {
    std::string text;
    for (int w = 0; w < 200; ++w) text += words[random() % words.size()];
    texts.push_back(text);
  }
  return texts;
}

}  // namespace

TEST_CASE("tiktoken: the encoding follows from the name, or from the number of tokens", "[tiktoken]") {
  const std::string llama = tiktoken_file({"he", "ll", "hell", "hello", " wor", "12", "123", "xyz"}, 128000);
  CHECK(is_tiktoken(llama));
  CHECK_FALSE(is_tiktoken("{}"));
  CHECK_FALSE(is_tiktoken("not a model"));
  const auto tokenizer = open_tiktoken(llama, "x/tokenizer.model");
  CHECK(tokenizer->vocab_size() == 128000 + 256);
  CHECK(tokenizer->end_of_text() == 128001);
  CHECK(tokenizer->end_of_text_name() == "<|end_of_text|>");
  CHECK(tokenizer->encode("hellohell") == std::vector<int32_t>{259, 258});
  // No parts of "xyz" are tokens, but a piece that is a token is that token.
  CHECK(tokenizer->encode("xyz") == std::vector<int32_t>{263});
  CHECK(tokenizer->encode("xyzx") == std::vector<int32_t>{'x', 'y', 'z', 'x'});
  CHECK(tokenizer->encode("1234") == std::vector<int32_t>{262, '4'});
  CHECK(tokenizer->encode("<|end_of_text|>").size() > 1);  // plain text
  CHECK(tokenizer->decode(std::vector<int32_t>{258, 128001, 'o'}) == "hello");
  const auto gpt2 = open_tiktoken(tiktoken_file({"12", "123", "1234"}, 50256), "r50k_base.tiktoken");
  CHECK(gpt2->end_of_text() == 50256);
  CHECK(gpt2->vocab_size() == 50257);
  CHECK(gpt2->encode("1234") == std::vector<int32_t>{258});  // digits are not divided
  const auto cl100k = open_tiktoken(tiktoken_file({}, 100256), "any name");
  CHECK(cl100k->end_of_text() == 100257);
  CHECK(cl100k->vocab_size() == 100277);
  // Files named tokenizer.model are told apart by their number of tokens.
  const auto llama4 = open_tiktoken(tiktoken_file({"lC"}, 200000), "tokenizer.model");
  CHECK(llama4->end_of_text() == 200001);
  CHECK(llama4->vocab_size() == 202048);
  CHECK(llama4->encode("lC") == std::vector<int32_t>{'l', 'C'});  // a capital letter begins a word
  const auto glm4 = open_tiktoken(tiktoken_file({}, 151329), "tokenizer.model");
  CHECK(glm4->end_of_text() == 151329);
  CHECK(glm4->vocab_size() == 151343);
  CHECK(open_tokenizer_file(llama, "tokenizer.model")->name() == "bpe");
}

TEST_CASE("tiktoken: what is wrong is refused by its line", "[tiktoken]") {
  const auto refusal = [](const std::string& file, const char* name) {
    return data_error([&] { open_tiktoken(file, name); });
  };
  const std::string good = tiktoken_file({}, 0);
  CHECK_THAT(refusal(good + "!!!! 256\n", "tokenizer.model"), Contains("tokenizer.model, line 257: "));
  CHECK_THAT(refusal(good + "QUI= x\n", "tokenizer.model"), Contains("line 257"));
  CHECK_THAT(refusal(good + "QUI= -1\n", "tokenizer.model"), Contains("line 257"));
  CHECK_THAT(refusal(good + "QUI= 99999999999\n", "tokenizer.model"), Contains("line 257"));
  CHECK_THAT(refusal(good + "QUI= 255\n", "tokenizer.model"), Contains("its rank 255 was on a line before"));
  CHECK_THAT(refusal(good + "QQ== 256\n", "tokenizer.model"), Contains("was on a line before"));
  CHECK_THAT(refusal(good.substr(good.find('\n') + 1), "tokenizer.model"),
             Contains("no token for the byte 0x00"));
  CHECK_THAT(refusal(good, "other"), Contains("neither its name nor its 256 tokens"));
  CHECK_THAT(refusal(good, "tokenizer.model"), Contains("neither its name nor its 256 tokens"));
  CHECK_THAT(refusal(good, "cl100k_base.tiktoken"), Contains("has 256 tokens, but cl100k_base has 100256"));
}

TEST_CASE("training merges the most frequent pair, of equal ones that with the smallest ids", "[train]") {
  // Pieces: "aab" 3 times, "ab" twice, " cd" twice. Ids as in GPT-2: ! is 0, a is 64, the space 220.
  const Json file = parse_json(train({"aab\naab\naab\nab\nab", " cd cd"}, 1000, 1));
  const Json merges = file["model"]["merges"];
  // "ab" 5; then "a ab" 3; newlines are pieces of their own; "cd" and " c" twice each, " c" (220 66) after
  // "cd" (66 67).
  CHECK(merges == parse_json(R"([["a", "b"], ["a", "ab"], ["c", "d"], ["Ġ", "cd"]])"));
  CHECK(file["model"]["vocab"]["!"] == 0);
  CHECK(file["model"]["vocab"]["a"] == 64);
  CHECK(file["model"]["vocab"]["Ġ"] == 220);
  CHECK(file["model"]["vocab"]["ab"] == 256);
  CHECK(file["added_tokens"][0]["id"] == 260);
  CHECK(parse_json(train({"aab\naab\naab\nab\nab", " cd cd"}, 258, 1))["model"]["merges"].size() == 1);
  CHECK_THAT(data_error([] { train({"a"}, 256, 1); }),
             Contains("a vocabulary of 256 cannot be trained; choose 257 to"));
  CHECK_THAT(data_error([] { train({}, 300, 1); }), Contains("no text"));
}

TEST_CASE("training gives the same bytes for any number of threads and loses no text", "[train]") {
  const auto texts = corpus(50);
  const std::string file = train(texts, 400, 1);
  for (const int threads : {2, 3, 8}) CHECK(train(texts, 400, threads) == file);
  const auto tokenizer = open_tokenizer_json(file, "t");
  CHECK(tokenizer->vocab_size() <= 400);
  CHECK(tokenizer->end_of_text() == tokenizer->vocab_size() - 1);
  CHECK(tokenizer->encodes_in_parts());
  size_t bytes = 0, ids = 0;
  for (const std::string& text : texts) {
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
    bytes += text.size();
    ids += tokenizer->encode(text).size();
  }
  CHECK(ids * 3 < bytes);
}

TEST_CASE("token files do not depend on the number of threads", "[tokenize]") {
  TemporaryFolder folder;
  std::string text, lines;
  for (const std::string& part : corpus(3000)) text += part;  // more than two parts of 1 MiB
  for (int i = 0; i < 30000; ++i)
    lines += i % 97 == 0 ? "{\"text\": \"\"}\n"
                         : "{\"text\": \"line " + std::to_string(i) + " of some text\"}\n\n";
  write_bytes(folder / "a.txt", text);
  write_bytes(folder / "b.jsonl", lines);
  write_bytes(folder / "c.txt", "");
  REQUIRE(text.size() > (2u << 20));
  REQUIRE(lines.size() > (1u << 20));
  std::vector<std::string> files;
  for (const int threads : {1, 2, 3, 7}) {
    const auto result = tokenize({.inputs = {folder / "a.txt", folder / "b.jsonl", folder / "c.txt"},
                                  .out = folder / "t",
                                  .train_vocab = 500,
                                  .train_kind = TrainedKind::bpe,
                                  .train_share = 9,
                                  .val_share = 1,
                                  .threads = threads,
                                  .force = true});
    CHECK(result.tokenizer == TokenizerChoice::file(folder / "tokenizer.json"));
    CHECK(result.empty_documents == 1 + (30000 + 96) / 97);
    CHECK(result.parts[0].sidecar.tokenizer == TokenizerChoice::file("tokenizer.json"));
    std::string all;
    for (const char* name :
         {"tokenizer.json", "t.idx", "t.bin", "t.json", "t-val.idx", "t-val.bin", "t-val.json"})
      all += read_bytes(folder / name);
    files.push_back(all);
    CHECK(files.back() == files.front());
  }
  const auto tokenizer = open_tokenizer(TokenizerChoice::file(folder / "tokenizer.json"));
  const auto source = open_source({.path = folder / "t"});
  std::vector<int32_t> ids(source->token_count());
  source->read(0, ids);
  const std::string decoded = tokenizer->decode(ids);
  CHECK(text.substr(0, 1 << 21) == decoded.substr(0, 1 << 21));
  // The first document was cut into parts, without a trace.
  const auto first = std::find(ids.begin(), ids.end(), tokenizer->end_of_text());
  const auto whole = tokenizer->encode(tokenizer->decode(std::span(ids).first(size_t(first - ids.begin()))));
  CHECK(std::equal(ids.begin(), first, whole.begin(), whole.end()));
}

TEST_CASE("a mistake in JSON lines has its line, whichever thread finds it", "[tokenize]") {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 60000; ++i) lines += "{\"text\": \"line " + std::to_string(i) + " of some text\"}\n";
  const size_t length = lines.size();
  REQUIRE(length > (2u << 20));
  write_bytes(folder / "a.jsonl", lines + "{\"body\": 1}\n" + lines + "nothing\n");
  for (const int threads : {1, 4}) {
    const auto run = [&] {
      tokenize({.inputs = {folder / "a.jsonl"},
                .out = folder / "t",
                .threads = threads,
                .kept_after_s = kKeepsNothing});
    };
    CHECK_THAT(data_error(run), Contains("a.jsonl, line 60001: no string under \"text\" (keys: body)"));
  }
  CHECK(real_file_system().list(folder.path()) == std::vector<std::string>{"a.jsonl"});
}
