// Goal: the text of a line of JSON is what a complete parser says, and a line is refused exactly where it
// refuses it.
// Method: lines by hand; seeded lines of all kinds of values and seeded edits of them, against
// the JSON library.
#include "data/corpus/json_line.h"

#include <random>

#include "runtime/base/json.h"
#include "test/data/token_fixtures.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::data;

namespace {

/// The same by a complete parser.
LineText by_parser(const std::string& line, std::string& text) {
  const Json object = try_parse_json(line);
  if (!object.is_object()) return LineText::no_object;
  const auto field = object.find("text");
  if (field == object.end()) return LineText::no_string;
  if (field->is_string()) {
    text = *field;
    return LineText::found;
  }
  if (!field->is_array()) return LineText::no_string;
  text.clear();
  bool is_first = true;
  for (const Json& element : *field) {
    if (element.is_null()) continue;
    if (!element.is_string()) return LineText::no_string;
    text += (is_first ? "" : "\n") + element.get<std::string>();
    is_first = false;
  }
  return LineText::found;
}

Json any_value(std::mt19937& random, int depth) {
  static const std::vector<std::string> texts{"",
                                              "plain",
                                              "a longer text with spaces and more",
                                              "quote \" slash \\ / tab \t newline \n",
                                              "Größe",
                                              "你好",
                                              "👩‍👧",
                                              "\x01\x1f",
                                              "text",
                                              "12345678",
                                              "1234567\"",
                                              "\x7f"};
  switch (random() % (depth > 3 ? 5 : 8)) {
    case 0: return texts[random() % texts.size()];
    case 1: return int64_t(random()) - int64_t(1) << 31;
    case 2: return double(random()) / 1e5 * (random() % 2 ? 1 : 1e-9);
    case 3: return random() % 2 == 0;
    case 4: return nullptr;
    case 5: {
      Json list = Json::array();
      for (int n = int(random() % 4); n > 0; --n) list.push_back(any_value(random, depth + 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (int n = int(random() % 4); n > 0; --n)
        object[texts[random() % texts.size()]] = any_value(random, depth + 1);
      return object;
    }
  }
}

}  // namespace

TEST_CASE("JSON lines: what counts as a line with a text", "[corpus]") {
  const auto found = [](const std::string& line) {
    std::string text;
    return find_json_text(line, "text", text) == LineText::found ? "=" + text : std::string();
  };
  CHECK(found(R"({"text":"a"})") == "=a");
  CHECK(found("\xef\xbb\xbf \t{ \"text\" :\t\"a\" , \"b\":[1,{}] } \r") == "=a");
  CHECK(found(R"({"te\u0078t":"\ud83d\ude00\u00e9\n"})") == "=😀é\n");
  CHECK(found(R"({"text":"first","text":"last"})") == "=last");
  CHECK(found(R"({"text":["one",null,"two",""]})") == "=one\ntwo\n");
  CHECK(found(R"({"text":[]})") == "=");
  CHECK(found(R"({"a":{"text":"inner"},"text":""})") == "=");
  for (const char* none : {R"({"a":{"text":"inner"}})", R"({"text":1})", R"({"text":null})",
                           R"({"text":["a",1]})", R"({"text":[["a"]]})", R"({"text":"a","text":1})", "{}"}) {
    CAPTURE(none);
    std::string text;
    CHECK(find_json_text(none, "text", text) == LineText::no_string);
  }
  const std::string deep = R"({"text":"a","b":)" + std::string(999, '[') + std::string(999, ']') + "}";
  CHECK(found(deep) == "=a");
  const std::string deeper =
      R"({"text":"a","b":)" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  for (const std::string& broken : {std::string(),
                                    std::string("[]"),
                                    std::string("\"text\""),
                                    std::string(R"({"text":"a")"),
                                    std::string(R"({"text":"a"}})"),
                                    std::string(R"({"text":"a",})"),
                                    std::string(R"({"text" "a"})"),
                                    std::string(R"({"text":"\ud83d"})"),
                                    std::string(R"({"text":"\ude00"})"),
                                    std::string(R"({"text":"\ud83d\u0041"})"),
                                    std::string(R"({"text":"\x"})"),
                                    std::string("{\"text\":\"a\nb\"}"),
                                    std::string("{\"text\":\"\xff\"}"),
                                    std::string("{\"text\":\"\xed\xa0\x80\"}"),
                                    std::string(R"({"text":"a","n":01})"),
                                    std::string(R"({"text":"a","n":1.})"),
                                    std::string(R"({"text":"a","n":+1})"),
                                    std::string(R"({"text":"a","n":-})"),
                                    std::string(R"({"text":"a","n":1e})"),
                                    std::string(R"({"text":"a","n":nul})"),
                                    std::string(R"({"text":"a","n":[1,]})"),
                                    std::string(R"({"text":"a","n":[1 2]})"),
                                    std::string(R"({"text":"a","n":{"b"}})"),
                                    std::string("{\"text\":\"a\"} \x00", 14),
                                    deeper}) {
    CAPTURE(broken.substr(0, 100));
    std::string text;
    CHECK(find_json_text(broken, "text", text) == LineText::no_object);
  }
}

TEST_CASE("JSON lines: any line is read as a complete parser reads it", "[corpus]") {
  const uint64_t seed = trainctl::test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  constexpr std::string_view kBytes = "\"\\{}[]:,0-.eE+ntfu \x01\x80\xc3\xa9\xed\xff";
  for (int round = 0; round < 20'000; ++round) {
    Json object = Json::object();
    for (int n = int(random() % 3); n > 0; --n) object["k" + std::to_string(n)] = any_value(random, 0);
    if (random() % 8 != 0) object[random() % 2 ? "text" : "text2"] = any_value(random, 0);
    if (random() % 2 != 0) object["text"] = any_value(random, 3);
    std::string line = object.dump(-1, random() % 2 != 0);
    for (int edits = int(random() % 4); edits > 1; --edits) {
      const size_t at = random() % line.size();
      const char byte = kBytes[random() % kBytes.size()];
      switch (random() % 3) {
        case 0: line[at] = byte; break;
        case 1: line.insert(at, 1, byte); break;
        default: line.erase(at, 1);
      }
      if (line.empty()) line = " ";
    }
    std::string text, expected;
    const LineText result = find_json_text(line, "text", text), wanted = by_parser(line, expected);
    CAPTURE(round, line);
    // That parser refuses numbers beyond a double.
    if (wanted == LineText::no_object && line.find_first_of("eE") != line.npos && result != wanted) continue;
    REQUIRE(int(result) == int(wanted));
    if (wanted == LineText::found) REQUIRE(text == expected);
  }
}
