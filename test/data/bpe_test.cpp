// Goal: byte-level BPE gives the ids of Hugging Face's tokenizers, by one path as by another: scanners and
// PCRE2, short and long pieces, whole texts and parts, one encoder or many calls; decoding restores the
// bytes.
// Method: golden ids (test/golden/tokenizers/make_tokenizers.py), a plain loop as reference for the merges,
// fuzzed text with broken UTF-8 from the seed below.
#include <random>

#include "data/bpe_tokenizer.h"
#include "data/byte_level.h"
#include "data/byte_pairs.h"
#include "data/normalize.h"
#include "data/split_pieces.h"
#include "data/tokenizer_json.h"
#include "runtime/base/json.h"
#include "test/data/token_fixtures.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

const std::string kGolden = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/tokenizers/";

std::unique_ptr<Tokenizer> golden(const std::string& name) {
  return open_tokenizer_json(read_bytes(kGolden + name + ".json"), name);
}

/// Text of every kind of character that the patterns distinguish, and of broken bytes if wanted.
std::string fuzzed(std::mt19937& random, int parts, bool broken) {
  static const std::vector<std::string> texts{"it's",
                                              "WE'LL",
                                              "'\xc5\xbf",
                                              "''",
                                              "value",
                                              " the",
                                              "\r\n",
                                              "\n\n",
                                              "\t",
                                              "  ",
                                              "   ",
                                              "12345",
                                              "\xc2\xbd",
                                              "!!",
                                              " --",
                                              "<|endoftext|>",
                                              "/*",
                                              "\xc2\xa0",
                                              "\xe2\x80\x83",
                                              "\xe3\x80\x80",
                                              "\xe1\xa0\x8e",
                                              "\xc2\x85",
                                              "e\xcc\x81",
                                              "\xcc\xa3\xcc\x80",
                                              "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9",
                                              "\xed\x95\x9c\xea\xb5\xad",
                                              "\xe4\xbd\xa0\xe5\xa5\xbd",
                                              "\xef\xbf\xbd",
                                              "\xd9\xa1\xd9\xa2",
                                              "\xf0\x9e\xa4\x80",
                                              "\xf0\x96\xb9\x80",
                                              "ab",
                                              "=",
                                              std::string(1, '\0')};
  std::string text;
  for (int i = 0; i < parts; ++i) {
    if (broken && random() % 8 == 0) {
      text += char(random());
    } else if (random() % 8 == 0) {
      uint32_t c = random() % 0x110000;
      if (c >= 0xd800 && c < 0xe000) c = 'x';
      append_utf8(text, c);
    } else {
      text += texts[random() % texts.size()];
    }
  }
  return text;
}

std::vector<std::string> pieces_of(KnownPattern pattern, const std::string& text, bool by_regex) {
  std::vector<std::string> pieces;
  if (!by_regex) {
    scan(pattern, text, [&](std::string_view piece) { pieces.emplace_back(piece); });
    return pieces;
  }
  std::vector<PieceStage> stages(1);
  stages[0].pattern = std::make_shared<const Regex>(regex_of(pattern), "test");
  PieceSplitter(stages).split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

/// What the finder makes of a text: parts in quotes, added tokens as their ids.
std::string divided_by(const AddedTokenFinder& finder, std::string_view text) {
  std::string result;
  finder.divide(
      text, [&](std::string_view part) { result += "'" + std::string(part) + "'"; },
      [&](int32_t id) { result += std::to_string(id); });
  return result;
}

}  // namespace

TEST_CASE("the golden ids of every shape of tokenizer.json", "[bpe]") {
  const Json ids = parse_json(read_bytes(kGolden + "ids.json"));
  REQUIRE(ids.size() == 6);
  for (const auto& [name, cases] : ids.items()) {
    const auto tokenizer = golden(name);
    CHECK(tokenizer->name() == "bpe");
    CHECK(tokenizer->end_of_text_name() == "<|endoftext|>");
    const auto encoder = tokenizer->encoder();
    REQUIRE(cases.size() == 30);
    for (int round = 0; round < 2; ++round)  // the second time from the cache
      for (const Json& one : cases) {
        const std::string text = one["text"];
        CAPTURE(name, text, round);
        std::vector<int32_t> found;
        encoder->encode(text, found);
        CHECK(found == one["ids"].get<std::vector<int32_t>>());
        CHECK(tokenizer->encode(text) == found);
      }
  }
}

TEST_CASE("scanners divide text as their regular expressions do", "[bpe]") {
  const uint64_t seed = trainctl::test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  for (const KnownPattern pattern : {KnownPattern::gpt2, KnownPattern::cl100k, KnownPattern::qwen2}) {
    CHECK(known_pattern(regex_of(pattern)) == pattern);
    for (int round = 0; round < 400; ++round) {
      const std::string text = fuzzed(random, 1 + int(random() % 60), round % 2 == 0);
      CAPTURE(int(pattern), text);
      const auto pieces = pieces_of(pattern, text, false);
      REQUIRE(pieces == pieces_of(pattern, text, true));
      std::string joined;
      for (const std::string& piece : pieces) joined += piece;
      REQUIRE(joined == text);
    }
    // Every character, among others.
    std::string text;
    for (uint32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xd800 && c < 0xe000) continue;
      for (const char* before : {"a", "1", " ", "."}) {
        text += before;
        append_utf8(text, c);
      }
      if (c % 4096 != 4095) continue;
      CAPTURE(int(pattern), c);
      REQUIRE(pieces_of(pattern, text, false) == pieces_of(pattern, text, true));
      text.clear();
    }
  }
}

TEST_CASE("merges: the smallest rank first, of equal ones the leftmost, in short and in long pieces",
          "[bpe]") {
  const uint64_t seed = trainctl::test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  std::array<int32_t, 256> byte_ids;
  for (int b = 0; b < 256; ++b) byte_ids[size_t(b)] = 255 - b;
  for (int round = 0; round < 60; ++round) {
    // Ranks at random, so that merged tokens may merge before others; many merges, so that the table grows.
    BytePairs pairs(byte_ids, 4);
    std::map<std::pair<int32_t, int32_t>, std::pair<uint32_t, int32_t>> table;
    std::vector<int32_t> tokens{255 - 'a', 255 - 'b', 255 - 'c'};
    const int merges = 200;
    for (int m = 0; m < merges; ++m) {
      const std::pair<int32_t, int32_t> pair{tokens[random() % tokens.size()],
                                             tokens[random() % tokens.size()]};
      const uint32_t rank = random() % 50;
      tokens.push_back(256 + m);
      table[pair] = {rank, 256 + m};
      pairs.add(pair.first, pair.second, rank, 256 + m);
    }
    for (const size_t length : {1, 2, 3, 17, 95, 96, 97, 98, 300}) {
      std::string piece;
      for (size_t i = 0; i < length; ++i) piece += char('a' + random() % 3);
      std::vector<int32_t> expected;
      for (const char c : piece) expected.push_back(byte_ids[uint8_t(c)]);
      while (true) {
        std::optional<size_t> best;
        for (size_t i = 0; i + 1 < expected.size(); ++i) {
          const auto found = table.find({expected[i], expected[i + 1]});
          if (found != table.end() &&
              (!best || found->second.first < table.at({expected[*best], expected[*best + 1]}).first))
            best = i;
        }
        if (!best) break;
        expected[*best] = table.at({expected[*best], expected[*best + 1]}).second;
        expected.erase(expected.begin() + ptrdiff_t(*best) + 1);
      }
      BytePairs::Workspace workspace;
      std::vector<int32_t> ids{7};
      pairs.encode(piece, workspace, ids);
      CAPTURE(round, piece);
      REQUIRE(ids.front() == 7);
      REQUIRE(std::vector<int32_t>(ids.begin() + 1, ids.end()) == expected);
    }
  }
}

TEST_CASE("every byte there and back, and parts encode as the whole", "[bpe]") {
  const uint64_t seed = trainctl::test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  size_t cuts = 0;
  for (const char* name : {"llama3", "qwen2", "digits"}) {
    const auto tokenizer = golden(name);
    CHECK(tokenizer->encodes_in_parts() == (name != std::string("digits")));
    const auto encoder = tokenizer->encoder();
    for (int round = 0; round < 200; ++round) {
      const std::string text = fuzzed(random, 80, true);
      const auto whole = tokenizer->encode(text);
      CAPTURE(name, text);
      // Special tokens leave no text; NFC and white space at <mask> change it.
      if (name == std::string("llama3") && text.find("<|endoftext|>") == text.npos)
        REQUIRE(tokenizer->decode(whole) == text);
      std::vector<int32_t> ids;
      for (std::string_view rest = text; !rest.empty(); ++cuts) {
        const size_t n = tokenizer->first_part(rest, 8 + random() % 64);
        REQUIRE(n > 0);
        encoder->encode(rest.substr(0, n), ids);
        rest.remove_prefix(n);
      }
      REQUIRE(ids == whole);
    }
  }
  CHECK(cuts > 1000);
}

TEST_CASE("broken bytes keep their values", "[bpe]") {
  const auto tokenizer = golden("llama3");
  const std::string text = "a\xff\xfe b\xc3 \xed\xa0\x80.\xf0\x9f\x98";
  const auto ids = tokenizer->encode(text);
  CHECK(tokenizer->decode(ids) == text);
  // They are divided as U+FFFD is: with marks, after a space, not with letters.
  std::vector<std::string> pieces;
  scan(KnownPattern::cl100k, text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  CHECK(pieces == std::vector<std::string>{"a", "\xff\xfe", " b", "\xc3", " \xed\xa0\x80.\xf0\x9f\x98"});
}

TEST_CASE("form C as Hugging Face's tokenizers make it", "[bpe]") {
  std::string buffer;
  const auto form_c = [&](std::string_view text) { return std::string(normalize_c(text, buffer)); };
  CHECK(form_c("plain") == "plain");
  CHECK(form_c("e\xcc\x81") == "\xc3\xa9");
  CHECK(form_c("xe\xcc\x81y") == "x\xc3\xa9y");
  CHECK(form_c("a\xcc\x80\xcc\xa3") == "\xe1\xba\xa1\xcc\x80");             // marks in order
  CHECK(form_c("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab") == "\xed\x95\x9c");  // Hangul
  CHECK(form_c("\xe2\x84\xab \xe0\xa5\x98") ==
        "\xc3\x85 \xe0\xa4\x95\xe0\xa4\xbc");         // U+212B; U+0958 stays apart
  CHECK(form_c("e\xff\xcc\x81") == "e\xff\xcc\x81");  // a broken byte between
  CHECK(form_c("\xc3\xcc\x81") == "\xc3\xcc\x81");
  CHECK(form_c("\xdf\xbd\xcc\x96") == "\xdf\xbd\xcc\x96");  // U+07FD is younger than the tables
  const std::string text = "ok \xc3\xa9 \xed\x95\x9c";
  CHECK(normalize_c(text, buffer).data() == text.data());  // nothing to do, nothing copied
}

TEST_CASE("added tokens: the leftmost, then the longest; white space at their sides", "[bpe]") {
  const AddedTokenFinder finder({{.id = 1, .content = "<a>"},
                                 {.id = 2, .content = "<a><b>"},
                                 {.id = 3, .content = "[m]", .lstrip = true, .rstrip = true}});
  const auto divided = [&](std::string_view text) { return divided_by(finder, text); };
  CHECK(divided("") == "");
  CHECK(divided("x<a>y<a><b>") == "'x'1'y'2");
  CHECK(divided("<a<a><b") == "'<a'1'<b'");
  CHECK(divided("x \xc2\xa0[m]\xe3\x80\x80\ny [m] [m]") == "'x'3'y'33");
  CHECK(divided("\x80[m]") == "'\x80'3");
}

TEST_CASE("an added token in the white space that another takes is found; what is left of that is text",
          "[bpe]") {
  const AddedTokenFinder finder({{.id = 4, .content = "<u>", .rstrip = true},
                                 {.id = 5, .content = "\n"},
                                 {.id = 6, .content = "<e>", .lstrip = true}});
  const auto divided = [&](std::string_view text) { return divided_by(finder, text); };
  CHECK(divided("<u>\n") == "45");
  CHECK(divided("<u> \nx") == "45'x'");
  CHECK(divided("<u>\n\nx<e>") == "455'x'6");
  CHECK(divided("<u>\n \n x") == "45' '5' x'");
  CHECK(divided("<u>  <e>") == "46");
}

TEST_CASE("what changes no id refuses no tokenizer.json, and added tokens are numbered as there", "[bpe]") {
  const Json good = parse_json(read_bytes(kGolden + "llama3.json"));
  const auto as_good = open_tokenizer_json(good.dump(), "t.json");
  const std::string text = "Some words, 123 of them.\n\n<|endoftext|>x";
  const auto with = [&](const char* at, const Json& value) {
    Json changed = good;
    changed.make_at(at) = value;
    return open_tokenizer_json(changed.dump(), "t.json");
  };
  for (const auto& [at, value] : std::vector<std::pair<const char*, const char*>>{
           {"/post_processor", R"({"type": "BertProcessing", "cls": ["x", 1], "sep": ["x", 1]})"},
           {"/post_processor", R"({"type": "RobertaProcessing"})"},
           {"/decoder", "null"},
           {"/decoder", R"({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Fuse"}]})"},
           {"/added_tokens/0/id", "70000"}}) {
    CAPTURE(at, value);
    CHECK(with(at, parse_json(value))->encode(text) == as_good->encode(text));
  }
  Json nested = good["pre_tokenizer"];
  nested["pretokenizers"] = Json::array({good["pre_tokenizer"]});
  CHECK(with("/pre_tokenizer", nested)->encode(text) == as_good->encode(text));
  Json merges = Json::array({"#version: 0.2"});
  for (const Json& merge : good["model"]["merges"]) merges.push_back(merge);
  CHECK(with("/model/merges", merges)->encode(text) == as_good->encode(text));
  Json sentence_piece = good;
  sentence_piece["model"]["vocab"] = Json{{"<unk>", 0}, {"<0x00>", 1}, {"a", 2}};
  CHECK_THAT(data_error([&] { open_tokenizer_json(sentence_piece.dump(), "t.json"); }),
             Contains("SentencePiece's kind") && Contains("tokenizer.model"));
}

TEST_CASE("regular expressions that Oniguruma reads otherwise are refused by name", "[bpe]") {
  const auto refusal = [](const char* pattern) { return data_error([&] { Regex(pattern, "f"); }); };
  for (const auto& [pattern, message] :
       std::vector<std::pair<const char*, const char*>>{{R"(\w+)", "does not know \\w"},
                                                        {R"(\h)", "does not know \\h"},
                                                        {R"(^a)", "does not know ^"},
                                                        {R"(a$)", "does not know $"},
                                                        {R"((?i)a)", "does not know (?i)"},
                                                        {R"((?i:ss))", "does not know ss after (?i:"},
                                                        {R"([a&&b])", "does not know && inside []"},
                                                        {R"([a[bc]])", "does not know a [] inside []"},
                                                        {R"([[:alpha:]])", "does not know a [:name:]"},
                                                        {R"([\S])", "inside []"},
                                                        {R"(\p{^L})", "does not know \\p{^L}"},
                                                        {R"(\p{Foo})", "does not know \\p{Foo}"},
                                                        {R"(a{1,3}+)", "does not know the repetition {1,3}+"},
                                                        {R"(a{,3})", "does not know the repetition {,3}"},
                                                        {R"([a)", "does not know a [ without its ]"},
                                                        {R"(a*)", "also matches the empty text"},
                                                        {R"((a)", "is no regular expression"},
                                                        {R"(\u12g4)", "does not know \\u12g4"},
                                                        {R"(\ud800)", "is no regular expression"}}) {
    CAPTURE(pattern);
    CHECK_THAT(refusal(pattern), Contains("f: ") && Contains(message));
  }
}

TEST_CASE("a tokenizer.json with an unknown part is refused by that part", "[bpe]") {
  const Json good = parse_json(read_bytes(kGolden + "llama3.json"));
  for (const auto& [at, value, message] : std::vector<std::tuple<const char*, const char*, const char*>>{
           {"/new", "1", "the file.new = 1"},
           {"/normalizer", R"({"type": "Lowercase"})",
            "normalizer = {\"type\":\"Lowercase\"}; it knows NFC and null"},
           {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]})",
            "normalizer.normalizers[1]"},
           {"/pre_tokenizer", "null", "pre_tokenizer has no ByteLevel"},
           {"/pre_tokenizer/pretokenizers/0", R"({"type": "Whitespace"})", "pre_tokenizer.pretokenizers[0]"},
           {"/pre_tokenizer/pretokenizers/0/behavior", R"("Doubled")", "behavior = \"Doubled\""},
           {"/pre_tokenizer/pretokenizers/0/pattern", R"({"Regex": "\\w+"})",
            "pretokenizers[0]: trainctl does not know \\w"},
           {"/pre_tokenizer/pretokenizers/0/pattern", "7", "pattern = 7"},
           {"/pre_tokenizer/pretokenizers/1/drop", "1", "pretokenizers[1].drop = 1"},
           {"/pre_tokenizer/pretokenizers/2", R"({"type": "Digits"})", "no stage after ByteLevel"},
           {"/model/type", R"("WordPiece")", "model.type = \"WordPiece\"; it knows \"BPE\""},
           {"/model/dropout", "0.1", "model.dropout = 0.1"},
           {"/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix"},
           {"/model/ignore_merges", "3", "model.ignore_merges is neither"},
           {"/model/vocab/new", "-1", "model.vocab[\"new\"] = -1"},
           {"/model/vocab/new", "5", "gives the id 5 to"},
           {"/model/merges/0", R"(["a"])", "model.merges[0] = [\"a\"]"},
           {"/model/merges/0", R"("a b c")", "two tokens with one space"},
           {"/model/merges/0", R"(["zq", "zq"])", "needs the token \"zq\""},
           {"/added_tokens/0/single_word", "true", "added_tokens[0].single_word = true"},
           {"/added_tokens/0/id", "-7", "added_tokens[0].id = -7"}}) {
    Json changed = good;
    changed.make_at(at) = parse_json(value);
    CAPTURE(at, value);
    CHECK_THAT(data_error([&] { open_tokenizer_json(changed.dump(), "t.json"); }),
               Contains("t.json: ") && Contains(message));
  }
  Json changed = good;
  changed["model"]["vocab"].erase("\xc4\x80");
  CHECK_THAT(data_error([&] { open_tokenizer_json(changed.dump(), "t"); }),
             Contains("no token for the byte 0x00"));
  CHECK_THAT(data_error([&] { open_tokenizer_json("{", "t"); }), Contains("t: the file is not JSON"));
}
