// Goal: models of fastText give the probabilities that fastText gives; damaged and other files are refused.
// Method: golden models of every loss, with what fastText predicts (test/golden/fasttext); one of them cut at
// many lengths, and with parts of its header changed.
#include "data/clean/fasttext.h"

#include "data/clean/filter.h"
#include "runtime/base/json.h"
#include "test/data/token_fixtures.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

const std::string kFolder = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/fasttext/";
/// fastText looks the logistic function up in tables of steps of 1/32: it is off by up to a quarter of that.
constexpr double kTableStep = 0.01;
/// Its softmax adds floats, and adds 1e-5 before it takes a logarithm.
constexpr double kFloats = 0.0001;

}  // namespace

TEST_CASE("fasttext: the probabilities are those of fastText", "[clean][fasttext]") {
  int compared = 0;
  for (const auto& model : Json::parse(read_bytes(kFolder + "expected.json"))) {
    const std::string name = model["model"];
    const bool uses_tables = name == "hs" || name == "ova";
    const FastTextModel loaded = FastTextModel::load(real_file_system(), kFolder + name + ".bin");
    REQUIRE(loaded.labels() == std::vector<std::string>{"en", "de", "fr"});
    for (const auto& text : model["texts"]) {
      const auto found = loaded.probabilities(text["text"].get<std::string>());
      CAPTURE(name, text["text"], found);
      for (size_t i = 0; i < 3; ++i) {
        if (!text["p"].contains(loaded.labels()[i])) continue;
        CHECK(std::abs(found.at(i) - text["p"][loaded.labels()[i]].get<double>()) <
              (uses_tables ? kTableStep : kFloats));
        ++compared;
      }
    }
  }
  CHECK(compared >= 100);
}

TEST_CASE("fasttext: what is no model is refused", "[clean][fasttext]") {
  TemporaryFolder folder;
  const std::string path = folder / "m.bin", whole = read_bytes(kFolder + "softmax.bin");
  const auto refusal = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    return data_error([&] { FastTextModel::load(real_file_system(), path); });
  };
  for (size_t n = 0; n < whole.size(); n += 1 + n / 9) {
    CAPTURE(n);
    CHECK_THAT(refusal(whole.substr(0, n)), Contains("m.bin is no model of fastText that can be read: "));
  }
  const auto with = [&](size_t at, char c) {
    std::string bytes = whole;
    bytes[at] = c;
    return bytes;
  };
  CHECK_THAT(refusal(with(0, 'x')), Contains("magic number"));
  CHECK_THAT(refusal(with(4, 13)), Contains("version 13"));
  CHECK_THAT(refusal(with(8, 5)), Contains("do not fit"));  // dim
  CHECK_THAT(refusal(with(8 + 6 * 4, 9)), Contains("loss"));
  CHECK_THAT(refusal(with(8 + 7 * 4, 1)), Contains("not supervised"));
  CHECK_THAT(refusal(with(8 + 12 * 4 + 8, 1)), Contains("entries"));  // size of the dictionary
  CHECK_THAT(data_error([&] { FastTextModel::load(real_file_system(), folder / "none.bin"); }),
             Contains("none.bin"));
}

TEST_CASE("filter: labels of a model", "[clean][filter][fasttext]") {
  TemporaryFolder folder;
  write_bytes(
      folder / "a.jsonl",
      "{\"text\":\"the dog runs\"}\n{\"text\":\"der hund\\nl\xc3\xa4uft\"}\n{\"text\":\"le chien\"}\n");
  FilterOptions options;
  options.cleaning.corpus.files = {folder / "a.jsonl"};
  options.cleaning.out = folder / "out";
  options.fasttext = kFolder + "softmax.bin";
  CHECK_THAT(usage_error([&] { filter(options); }), Contains("give both --fasttext and --label"));
  options.labels = {"en", "it"};
  CHECK_THAT(usage_error([&] { filter(options); }), Contains("has no label `it`; it has en, de, fr"));
  options.labels = {"en", "__label__fr"};
  const CleaningResult result = filter(options);
  CHECK(read_bytes(folder / "out/a.jsonl") == "{\"text\":\"the dog runs\"}\n{\"text\":\"le chien\"}\n");
  REQUIRE(result.reasons.size() == 1);
  CHECK(result.reasons[0].name == "min_label_probability");
  const auto removed = Json::parse(read_bytes(folder / "out/removed.jsonl"));
  CHECK(removed["label"] == "de");
  CHECK(removed["value"].get<double>() < 0.5);
}
