// Goal: a number on the command line is what its digits say, or the line is refused.
// Method: options of each kind of number, in several commands, with texts that C's readers take for numbers.
#include <catch2/catch.hpp>

#include "test/cmd/program_run.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("numbers on the command line are digits", "[cmd]") {
  const SpecFile spec("{}");
  // Of each kind of option: int, int64, uint64, double, a flag with a number, and texts that hold numbers.
  const std::vector<std::vector<std::string>> wholes = {
      {"logs", "x", "--tail="},     {"launch", spec.path(), "--max-steps="},
      {"sample", "x", "--seed="},   {"list", "--most="},
      {"trace", "x", "--steps="},   {"plan", spec.path(), "--nodes="},
      {"resume", "x", "--verify="}, {"sample", "x", "--tokens="}};
  const std::vector<std::vector<std::string>> decimals = {
      {"sample", "x", "--temperature="}, {"stop", "x", "--timeout="}, {"simulate", spec.path(), "--days="}};
  const auto refused = [](std::vector<std::string> words, const std::string& number) {
    words.back() += number;
    INFO(words[0] << " '" << words.back() << "'");
    const Outcome outcome = run(std::move(words));
    CHECK(outcome.status == 2);
    CHECK(outcome.err.find("`" + number + "` is not a") != std::string::npos);
  };
  for (const auto& words : wholes)
    for (const char* number : {"+2", " 2", "2 ", "0x2", "2.5", "1e1", "99999999999999999999"})
      refused(words, number);
  for (const auto& words : decimals)
    for (const char* number : {"+2", " 2", "2 ", "0x2", "nan", "inf", "2,5"}) refused(words, number);
  const SpecFile job(
      R"({"version":1,"model":{"preset":"gpt2-tiny"},"data":{"train":[{"path":"a.idx"}]},
"schedule":{"total_steps":10}})");
  CHECK(run({"plan", job.path(), "--no-data", "--gpus", "+2"}).status == 2);
  CHECK(run({"trace", "x", "--ranks", "0,+2"}).status != 0);
}
