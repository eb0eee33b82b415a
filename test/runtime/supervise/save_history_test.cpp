// Goal: what the next attempt knows of failures and saves is what events.jsonl tells, however attempts ended.
// Method: chosen sequences of events, also damaged lines.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "runtime/base/record.h"
#include "runtime/run/record/journal.h"
#include "runtime/supervise/history/save_history.h"

using namespace trainctl;

namespace {

/// "start@100 ranks_up@110 failure@500" as lines of events.jsonl.
std::vector<std::string> events(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const size_t at = word.find('@');
    lines.push_back(
        event_line(std::stod(word.substr(at + 1)), *of_word<EventKind>(word.substr(0, at)), "{}"));
    begin = end + 1;
  }
  return lines;
}

SaveHistory directory_after(const std::string& text) { return past_saves(events(text)).tiers.at(0); }

}  // namespace

TEST_CASE("failures and time of all attempts", "[save_history]") {
  CHECK(past_saves({}).tiers.at(0).observed_s == 0);
  CHECK(past_saves({}).intervals.empty());
  struct Case {
    const char* events;
    int64_t failures;
    double observed_s;
  };
  const Case cases[] = {
      {"supervisor@1 start@10 ranks_up@12 checkpoint@50 end@110", 0, 100},
      {"supervisor@1 start@10 ranks_up@12 failure@110 attempt@111 restart@112 start@120 ranks_up@122 end@220",
       1, 200},
      // Never trained: nothing was lost.
      {"start@10 failure@20 start@30 ranks_up@31 end@40", 0, 20},
      // The pause between two supervisors does not count.
      {"supervisor@1 start@10 ranks_up@12 stop_requested@100 end@110 supervisor@1000 start@1010 "
       "ranks_up@1012 end@1020",
       0, 110},
      // The supervisor was killed and wrote no end.
      {"supervisor@1 start@10 ranks_up@12 checkpoint@90 supervisor@1000 start@1010 ranks_up@1011 "
       "checkpoint@1030",
       1, 100},
      // Another one took the ranks over.
      {"supervisor@1 start@10 ranks_up@12 supervisor@50 takeover@50 attached@55 checkpoint@100 end@110", 0,
       100},
      // A node came back: the run ended its attempt itself.
      {"start@10 ranks_up@12 regroup@60 attempt@65 restart@66 start@70 ranks_up@72 failure@80", 1, 66},
  };
  for (const Case& c : cases) {
    INFO(c.events);
    const SaveHistory history = directory_after(c.events);
    CHECK(history.failures == c.failures);
    CHECK(history.observed_s == c.observed_s);
    CHECK(history.step_s == 0);
  }
}

TEST_CASE("the newest interval of each tier, and damaged lines", "[save_history]") {
  std::vector<std::string> lines = events("start@10 ranks_up@12");
  const auto add = [&](SaveTier tier, double cost_s) {
    lines.push_back(event_line(
        20, EventKind::interval,
        record_text(SaveInterval{.tier = tier, .steps = 5, .step_s = 2, .cost_s = cost_s, .write_s = 3})));
  };
  add(SaveTier::memory, 0.01);
  add(SaveTier::directory, 1);
  add(SaveTier::directory, 4);
  lines.push_back(R"({"v":1,"t":30,"kind":"interval","tier":"cellar"})");
  lines.push_back(R"({"v":1,"t":30,"kind":7})");
  lines.push_back(R"({"v":1,"kind":"end"})");
  lines.push_back("{\"v\":1,\"t\":3");
  const PastSaves past = past_saves(lines);
  REQUIRE(past.tiers.size() == 2);
  CHECK(past.tiers[0].tier == SaveTier::directory);
  CHECK(past.tiers[0].cost_s == 4);
  CHECK(past.tiers[0].write_s == 3);
  CHECK(past.tiers[0].step_s == 2);
  CHECK(past.tiers[1].tier == SaveTier::memory);
  CHECK(past.tiers[1].cost_s == 0.01);
  REQUIRE(past.intervals.size() == 2);
  CHECK(past.intervals[1].cost_s == 4);
}
