// Goal: each rule keeps a text at its limit and removes one beyond it; the sets have the published limits;
// what was removed is named with its rule, value and beginning; mistakes are one sentence.
// Method: for each rule, texts with a value counted by hand on both sides of the limit.
#include "data/clean/filter.h"

#include <filesystem>
#include <sstream>

#include "data/clean/language.h"
#include "data/clean/text_measures.h"
#include "data/clean/word_list.h"
#include "runtime/base/json.h"
#include "test/data/token_fixtures.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;
using R = FilterRule;

namespace {

double measured(R rule, const std::string& text) {
  TextMeasures measures;
  measures.take(text);
  return measures.value(rule);
}

std::string json_line(const std::string& text) { return Json{{"text", text}}.dump() + "\n"; }

/// n different words of 4 letters, with spaces.
std::string words(int n) {
  std::string text;
  for (int i = 0; i < n; ++i)
    text += std::string(i > 0 ? " " : "") + char('a' + i / 26 % 26) + char('a' + i % 26) + "xy";
  return text;
}

std::vector<Json> removed_in(const std::string& folder) {
  std::vector<Json> values;
  std::istringstream lines(read_bytes(folder + "/removed.jsonl"));
  for (std::string line; std::getline(lines, line);) values.push_back(Json::parse(line));
  return values;
}

}  // namespace

TEST_CASE("filter: what is measured, counted by hand", "[clean][filter]") {
  struct Case {
    R rule;
    const char* text;
    double value;
  };
  for (const Case& c : {
           Case{R::min_chars, "a\xc3\xa9 b", 4},
           Case{R::max_chars, "", 0},
           Case{R::min_words,
                " one\ttwo\n\nthree\xc2\xa0"
                "four ",
                4},
           Case{R::max_words, "a-b, c", 2},
           Case{R::min_mean_word_length, "ab \xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 3},
           Case{R::max_mean_word_length, "", 0},
           Case{R::max_hashes_per_word, "#a ## b c", 3.0 / 4},
           Case{R::max_ellipses_per_word, "a... b\xe2\x80\xa6 c.. d.....", 3.0 / 4},
           Case{R::max_bullet_lines, "- a\n  \xe2\x80\xa2 b\n\n* c\nd-\n", 3.0 / 4},
           Case{R::max_ellipsis_lines, "a...\nb\xe2\x80\xa6 \nc..\nd", 2.0 / 4},
           Case{R::min_alphabetic_words, "a 1 \xc3\xa9 --", 2.0 / 4},
           Case{R::min_stop_words, "The the OF, (that) thebe bewith 1be2", 4},
           Case{R::max_duplicate_lines, "a\nb\n a \n\na\n", 2.0 / 4},
           Case{R::max_duplicate_line_chars, "aa\nb\naa\n", 2.0 / 5},
           Case{R::max_duplicate_paragraphs, "a\nb\n\na\n\n \na\nb\n", 1.0 / 3},
           Case{R::max_duplicate_paragraph_chars, "a\nb\n\na\n\na\nb", 3.0 / 7},
           Case{R::max_top_2gram_chars, "aa b cc aa b d", 6.0 / 9},
           Case{R::max_top_2gram_chars, "a a a a", 1},  // overlapping ones count once
           Case{R::max_top_3gram_chars, "a b c a b c d d", 6.0 / 8},
           Case{R::max_top_4gram_chars, "a b c d e", 0},  // nothing repeats
           Case{R::max_top_2gram_chars, "a b x aaa bbb y aaa bbb a b",
                12.0 / 18},  // of equal counts the longer
           Case{R::max_duplicate_5gram_chars, "a b c d e f a b c d e g", 10.0 / 12},
           Case{R::max_duplicate_6gram_chars, "a b c d e f a b c d e g", 0},
           Case{R::max_duplicate_10gram_chars, "a b c", 0},
       }) {
    CAPTURE(text_of(c.rule).name, c.text);
    CHECK(measured(c.rule, c.text) == Approx(c.value));
  }
  // One object measures one text after the other.
  TextMeasures measures;
  for (const char* text : {"a b", "a b c d", ""}) {
    measures.take(text);
    CHECK(measures.value(R::min_words) == measured(R::min_words, text));
    CHECK(measures.value(R::max_duplicate_lines) == 0);
  }
}

TEST_CASE("filter: each rule keeps what is at its limit and removes what is beyond", "[clean][filter]") {
  // Texts whose values surround the limit; the rule alone is in force.
  struct Case {
    const char* rule;
    std::string kept, removed;
  };
  const std::string ten = words(10);
  const std::vector<Case> cases = {
      {"min_chars=4", "abcd", "abc"},
      {"max_chars=4", "ab d", "ab de"},
      {"min_words=10", ten, words(9)},
      {"max_words=10", ten, words(11)},
      {"min_mean_word_length=4", ten, ten + " a"},
      {"max_mean_word_length=4", ten, ten + " abcde"},
      {"max_hashes_per_word=0.1", ten + "#", ten + "##"},
      {"max_ellipses_per_word=0.1", ten + "...", ten + "... a... "},
      {"max_bullet_lines=0.5", "- a\nb", "- a\n- b\nc"},
      {"max_ellipsis_lines=0.5", "a...\nb", "a...\nb...\nc"},
      {"min_alphabetic_words=0.8", "a b c d 1", "a b c 1 2"},
      {"min_stop_words=2", "the cat of", "the cat the"},
      {"max_duplicate_lines=0.5", "a\na", "a\na\na"},
      {"max_duplicate_line_chars=0.5", "a\na", "a\na\na"},
      {"max_duplicate_paragraphs=0.5", "a\n\na", "a\n\na\n\na"},
      {"max_duplicate_paragraph_chars=0.5", "a\n\na", "a\n\na\n\na"},
      {"max_top_2gram_chars=0.8", "a b a b c", "a b a b"},
      {"max_top_3gram_chars=0.75", "a b c a b c d e", "a b c a b c"},
      {"max_top_4gram_chars=0.8", "a b c d a b c d e f", "a b c d a b c d"},
      {"max_duplicate_5gram_chars=0.5", "1 2 3 4 5 1 2 3 4 5 " + std::string("a c e g i k m o q s"),
       "1 2 3 4 5 1 2 3 4 5"},
      {"max_duplicate_6gram_chars=0", "1 2 3 4 5 1 2 3 4 5", "1 2 3 4 5 6 1 2 3 4 5 6"},
      {"max_duplicate_7gram_chars=0", "1 2 3 4 5 6 1 2 3 4 5 6", "1 2 3 4 5 6 7 1 2 3 4 5 6 7"},
      {"max_duplicate_8gram_chars=0", "1 2 3 4 5 6 7 1 2 3 4 5 6 7", "1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8"},
      {"max_duplicate_9gram_chars=0", "1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8",
       "1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9"},
      {"max_duplicate_10gram_chars=0", "1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9",
       "1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0"},
      {"max_blocked_words=1", "bad classy", "Bad, very BAD"},
  };
  TemporaryFolder folder;
  write_bytes(folder / "list.txt", "bad\n");
  size_t n = 0;
  for (const Case& c : cases) {
    CAPTURE(c.rule);
    write_bytes(folder / "a.jsonl", json_line(c.kept) + json_line(c.removed));
    FilterOptions options;
    options.cleaning.corpus.files = {folder / "a.jsonl"};
    options.cleaning.out = folder / ("out" + std::to_string(n++));
    options.limits.set(c.rule);
    if (std::string(c.rule).starts_with("max_blocked")) options.blocklist = folder / "list.txt";
    const CleaningResult result = filter(options);
    CHECK(read_bytes(options.cleaning.out + "/a.jsonl") == json_line(c.kept));
    REQUIRE(result.reasons.size() == 1);
    CHECK(result.reasons[0].documents == 1);
    const auto removed = removed_in(options.cleaning.out);
    REQUIRE(removed.size() == 1);
    CHECK(removed[0]["reason"].get<std::string>() ==
          std::string(c.rule).substr(0, std::string(c.rule).find('=')));
    CHECK(removed[0]["line"] == 2);
    CHECK(removed[0]["begins"].get<std::string>() == c.removed.substr(0, 80));
    CHECK(removed[0]["value"].is_number());
    CHECK(removed[0]["limit"].is_number());
  }
  CHECK(n == kFilterRules - 2);  // all but those of languages and labels, which have tests of their own
}

TEST_CASE("filter: the sets have the limits of Rae et al. 2021", "[clean][filter]") {
  FilterLimits limits;
  limits.add_set("gopher-quality");
  CHECK(limits[R::min_words] == 50);
  CHECK(limits[R::max_words] == 100'000);
  CHECK(limits[R::min_mean_word_length] == 3);
  CHECK(limits[R::max_mean_word_length] == 10);
  CHECK(limits[R::max_hashes_per_word] == 0.1);
  CHECK(limits[R::max_bullet_lines] == 0.9);
  CHECK(limits[R::max_ellipsis_lines] == 0.3);
  CHECK(limits[R::min_alphabetic_words] == 0.8);
  CHECK(limits[R::min_stop_words] == 2);
  CHECK(!limits[R::max_duplicate_lines]);
  limits = {};
  limits.add_set("gopher-repetition");
  const double table_a1[] = {0.3, 0.2, 0.3, 0.2, 0.2, 0.18, 0.16, 0.15, 0.14, 0.13, 0.12, 0.11, 0.1};
  for (size_t i = 0; i < std::size(table_a1); ++i)
    CHECK(limits.limits[size_t(R::max_duplicate_lines) + i] == table_a1[i]);
  CHECK(!limits[R::min_words]);
  limits.add_set("gopher");
  limits.set("min_words=20");
  limits.set("max_words=off");
  CHECK(limits[R::min_words] == 20);
  CHECK(!limits[R::max_words]);
  FilterLimits file;
  file.add_file(R"({"min_words": 7, "max_words": null, "sets": ["gopher-quality"]})", "r.json");
  CHECK(file[R::min_words] == 7);  // wherever the sets stand
  CHECK(!file[R::max_words]);
  CHECK(file[R::min_stop_words] == 2);
}

TEST_CASE("filter: mistakes are one sentence", "[clean][filter]") {
  const auto of = [](auto&& f) {
    FilterLimits limits;
    return usage_error([&] { f(limits); });
  };
  CHECK_THAT(of([](FilterLimits& l) { l.add_set("c4"); }), Contains("no set of rules `c4`; use gopher"));
  CHECK_THAT(of([](FilterLimits& l) { l.set("min_words"); }), Contains("is not NAME=LIMIT"));
  CHECK_THAT(of([](FilterLimits& l) { l.set("min_wrds=3"); }),
             Contains("no rule `min_wrds`; the rules are min_chars"));
  CHECK_THAT(of([](FilterLimits& l) { l.set("min_words=few"); }), Contains("has no number"));
  CHECK_THAT(of([](FilterLimits& l) { l.set("min_words=-1"); }), Contains("the limit of min_words is -1"));
  for (const char* bad : {"[]", "x", R"({"sets": "gopher"})", R"({"min_words": "3"})", R"({"words": 3})",
                          R"({"min_words": -3})"}) {
    CAPTURE(bad);
    CHECK_THAT(of([&](FilterLimits& l) { l.add_file(bad, "r.json"); }),
               Contains("the rule file r.json cannot be used: "));
  }
  TemporaryFolder folder;
  write_bytes(folder / "a.jsonl", json_line("x"));
  write_bytes(folder / "list.txt", "one\n--\n");
  FilterOptions options;
  options.cleaning.corpus.files = {folder / "a.jsonl"};
  options.cleaning.out = folder / "out";
  const auto refusal = [&] { return usage_error([&] { filter(options); }); };
  CHECK_THAT(refusal(), Contains("there is no rule to filter by"));
  options.limits.set("max_blocked_words=1");
  CHECK_THAT(refusal(), Contains("needs --blocklist"));
  options.blocklist = folder / "none.txt";
  CHECK_THAT(refusal(), Contains("--blocklist cannot be read"));
  options.blocklist = folder / "list.txt";
  CHECK_THAT(refusal(), Contains("list.txt, line 2: there is no letter or digit"));
  options.blocklist = "";
  options.limits = {};
  options.limits.set("min_language_share=0.5");
  CHECK_THAT(refusal(), Contains("needs --language"));
  options.languages = {"xx-nothing"};
  CHECK_THAT(refusal(),
             Contains(has_language_detector() ? "CLD2 has no language `xx-nothing`" : "without CLD2"));
  CHECK(!std::filesystem::exists(folder / "out"));
  CHECK(!std::filesystem::exists(folder / "out.partial"));
}

TEST_CASE("filter: a word list knows whole words and phrases in any case", "[clean][filter]") {
  const WordList list(
      "# a comment\nbad\r\nvery   worse\n\n\xc3\x9c"
      "bel\n\xe6\x97\xa5\xe6\x9c\xac\n",
      "list");
  CHECK(list.hits("BAD, badly; not bad").count == 2);
  CHECK(list.hits("very. Worse").count == 1);
  CHECK(list.hits("very much worse").count == 0);
  CHECK(list.hits("\xc3\xbc"
                  "bel")
            .first ==
        "\xc3\x9c"
        "bel");
  CHECK(list.hits("\xe5\x9c\xa8\xe6\x97\xa5\xe6\x9c\xac\xe4\xba\xba").count == 1);  // Han without spaces
  CHECK(list.hits("").count == 0);
  CHECK_THAT(usage_error([] { WordList("\n#\n", "list"); }), Contains("list has no words"));
}

TEST_CASE("filter: languages", "[clean][filter]") {
  const std::string english =
      "The quick brown fox jumps over the lazy dog, and then it runs away into the deep forest where nobody "
      "can find it.";
  const std::string german =
      "Der schnelle braune Fuchs springt \xc3\xbc"
      "ber den faulen Hund und l\xc3\xa4uft dann in den tiefen Wald, wo ihn niemand findet.";
  if (!has_language_detector()) {
    CHECK_THAT(usage_error([&] { languages_of(english); }),
               Contains("without CLD2") && Contains("libcld2-dev"));
    return;
  }
  REQUIRE(!languages_of(english).empty());
  CHECK(languages_of(english)[0].code == "en");
  CHECK(languages_of(german + "\xff")[0].code == "de");
  CHECK(languages_of(english)[0].share > 0.9);
  CHECK(languages_of("").empty());
  std::string longer;
  while (longer.size() < 200'000) longer += german;
  CHECK(languages_of(longer)[0].code == "de");
  TemporaryFolder folder;
  write_bytes(folder / "a.jsonl", json_line(english) + json_line(german));
  FilterOptions options;
  options.cleaning.corpus.files = {folder / "a.jsonl"};
  options.cleaning.out = folder / "out";
  options.languages = {"de", "fr"};
  const CleaningResult result = filter(options);
  CHECK(read_bytes(folder / "out/a.jsonl") == json_line(german));
  CHECK(result.reasons[0].name == "min_language_share");
  const auto removed = removed_in(folder / "out");
  REQUIRE(removed.size() == 1);
  CHECK(removed[0]["language"] == "en");
  CHECK(removed[0]["limit"] == 0.5);
}

TEST_CASE("filter: one reason for each document, the first rule that refuses it; the same for any threads",
          "[clean][filter]") {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += json_line(i % 3 == 0 ? "short" : words(40 + i % 30));
  write_bytes(folder / "a.jsonl", lines);
  FilterOptions options;
  options.cleaning.corpus.files = {folder / "a.jsonl"};
  options.cleaning.corpus.block_bytes = 500;
  options.limits.add_set("gopher");
  options.limits.set("min_stop_words=off");
  std::string kept, removed;
  for (const int threads : {1, 4}) {
    options.cleaning.threads = threads;
    options.cleaning.out = folder / ("out" + std::to_string(threads));
    const CleaningResult result = filter(options);
    uint64_t sum = 0;
    for (const auto& reason : result.reasons) sum += reason.documents;
    CHECK(sum == result.removed());
    CHECK(result.reasons[0].name == "min_words");
    CHECK(result.reasons[0].documents == 100 + 10 * 6);  // of each 30, six have less than 50 words
    if (threads == 1) {
      kept = read_bytes(folder / "out1/a.jsonl");
      removed = read_bytes(folder / "out1/removed.jsonl");
    }
    CHECK(read_bytes(options.cleaning.out + "/a.jsonl") == kept);
    CHECK(read_bytes(options.cleaning.out + "/removed.jsonl") == removed);
  }
}
