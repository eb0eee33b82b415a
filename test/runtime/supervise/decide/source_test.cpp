// Goal: a run goes on from the newest state that can be had, from the nearest tier that has it, and never
// from one that is incomplete, damaged, foreign or of a line that the run has left. Method: the rule by
// hand on small cases; then random histories of a run, in which each state that is chosen must be one that
// the run's present line has computed, and no better one may be there.
#include "runtime/supervise/decide/source.h"

#include <catch2/catch.hpp>

#include <map>
#include <random>

#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

NodePieces node_with(const std::string& name, int64_t step, uint64_t epoch, std::vector<int> ranks, int of) {
  NodePieces node{.node = name, .pieces = {}};
  for (const int rank : ranks)
    node.pieces.push_back(
        {.step = step, .epoch = epoch, .rank = rank, .ranks = of, .run_id = "r", .bytes = 10, .problem = ""});
  return node;
}

SourceQuestion question_of(std::vector<NodePieces> memory, std::optional<int64_t> directory_step) {
  return {.run_id = "r",
          .beginnings = {{1, 0}},
          .at_most = {},
          .refused = {},
          .doubted = {},
          .memory = std::move(memory),
          .directory_step = directory_step};
}

}  // namespace

TEST_CASE("the newest step wins, and memory at an equal step", "[source]") {
  const auto chosen = [](int64_t in_memory, std::optional<int64_t> in_directory) {
    return choose_source(question_of({node_with("a", in_memory, 1, {0, 1}, 2)}, in_directory)).source;
  };
  CHECK(chosen(41, 30)->tier == Tier::memory);
  CHECK(chosen(41, 30)->state == StateId{41, 1});
  CHECK(chosen(41, 30)->nodes == std::vector<std::string>{"a", "a"});
  CHECK(chosen(41, 30)->bytes == 20);
  CHECK(chosen(41, 41)->tier == Tier::memory);
  CHECK(chosen(41, std::nullopt)->tier == Tier::memory);
  CHECK(chosen(41, 42)->tier == Tier::directory);
  CHECK(chosen(41, 42)->state.step == 42);
  CHECK_FALSE(choose_source(question_of({}, std::nullopt)).source);
  CHECK(choose_source(question_of({}, 7)).source->tier == Tier::directory);
}

TEST_CASE("the store is asked where the directory has nothing, by a resume also for what is newer",
          "[source]") {
  CHECK(store_newer_than(std::nullopt, false) == -1);
  CHECK(store_newer_than(std::nullopt, true) == -1);
  CHECK_FALSE(store_newer_than(40, false));
  CHECK(store_newer_than(40, true) == 40);
}

TEST_CASE("a state has its words and its tier", "[source]") {
  const auto words = [](const BeginFrom& state) { return std::pair(state.text(), state.tier()); };
  using Words = std::pair<std::string, std::string>;
  CHECK(words({}) == Words{"step 0: there is no checkpoint", ""});
  CHECK(words({.step = 40, .folder = "/r/ckpt/step-40"}) == Words{"checkpoint step 40", "directory"});
  CHECK(words({.step = 40, .folder = "/r/ckpt/step-40", .from_store = true}) ==
        Words{"checkpoint step 40", "store"});
  CHECK(words({.step = 7, .folder = "/p/ckpt/step-7", .of_parent = true}) ==
        Words{"/p/ckpt/step-7", "directory"});
  CHECK(words({.step = 41, .memory = Source{.tier = Tier::memory, .nodes = {"a", "a"}}}) ==
        Words{"step 41, from the memory of 1 node", "memory"});
}

TEST_CASE("second copies of pieces are named, for what is damaged in the first", "[source]") {
  using Others = std::vector<std::pair<int, std::string>>;
  auto question = question_of({node_with("a", 41, 1, {0, 1}, 2), node_with("b", 41, 1, {0}, 2),
                               node_with("c", 41, 1, {0, 1}, 2), node_with("d", 40, 1, {0, 1}, 2)},
                              30);
  CHECK(choose_source(question).source->nodes == std::vector<std::string>{"a", "a"});
  CHECK(choose_source(question).source->others == Others{{0, "b"}, {0, "c"}, {1, "c"}});
  CHECK(choose_source(question).source->bytes == 20);
  question.memory[0].pieces[0].problem = "its table is torn";  // rank 0 of node a
  CHECK(choose_source(question).source->nodes == std::vector<std::string>{"b", "a"});
  CHECK(choose_source(question).source->others == Others{{0, "c"}, {1, "c"}});
}

TEST_CASE("a set that cannot be used is passed over with a sentence", "[source]") {
  auto question = question_of({node_with("a", 41, 1, {0, 1}, 4), node_with("b", 41, 1, {3}, 4),
                               node_with("a", 40, 1, {0, 1}, 4), node_with("b", 40, 1, {2, 3}, 4)},
                              30);
  const auto first = choose_source(question);
  CHECK(first.source->state.step == 40);
  CHECK(first.source->nodes == std::vector<std::string>{"a", "a", "b", "b"});
  REQUIRE(first.passed_over.size() == 1);
  CHECK(first.passed_over[0] ==
        "step 41 in memory is passed over: no node has the piece of rank 2, and 3 of 4 pieces are there");
  question.memory[3].pieces[1].problem = "its table is torn";
  const auto second = choose_source(question);
  CHECK(second.source->tier == Tier::directory);
  CHECK(second.passed_over.at(1) ==
        "step 40 in memory is passed over: the piece of rank 3 is damaged: its table is torn");
  question.memory[3].pieces[1].problem = "";
  question.refused = {{40, 1}};
  CHECK(choose_source(question).source->tier == Tier::directory);
  question.refused = {{40, 2}};
  CHECK(choose_source(question).source->state.step == 40);
  question.at_most = 39;
  CHECK(choose_source(question).source->tier == Tier::directory);
  CHECK(choose_source(question).passed_over.empty());
}

TEST_CASE("pieces of another run or with senseless numbers count for nothing", "[source]") {
  auto question = question_of({node_with("a", 41, 1, {0, 1}, 2)}, std::nullopt);
  question.run_id = "other";
  CHECK_FALSE(choose_source(question).source);
  for (const int ranks : {0, -1})
    CHECK_FALSE(choose_source(question_of({node_with("a", 41, 1, {0}, ranks)}, std::nullopt)).source);
  CHECK_FALSE(choose_source(question_of({node_with("a", 41, 1, {-1, 0, 2}, 2)}, std::nullopt)).source);
}

TEST_CASE("a doubted set is passed over while there is an older state", "[source]") {
  auto question = question_of({node_with("a", 41, 1, {0}, 1), node_with("b", 40, 1, {0}, 1)}, 30);
  question.beginnings = with_beginning(with_beginning(question.beginnings, {2, 41}), {3, 41});
  question.doubted = {{.step = 41, .epoch = 3, .why = "it diverges."}};
  const auto choice = choose_source(question);
  CHECK(choice.source->state == StateId{40, 1});
  REQUIRE(choice.passed_over.size() == 1);
  CHECK(choice.passed_over[0] == "step 41 in memory is passed over: it diverges.");
  CHECK(choice.doubted_steps == std::vector<int64_t>{41});
  question.memory.pop_back();
  CHECK(choose_source(question).source->tier == Tier::directory);
  question.directory_step.reset();  // better than none
  CHECK(choose_source(question).source->state == StateId{41, 1});
  CHECK(choose_source(question).passed_over.back() ==
        "step 41 in memory is used all the same: there is no older state");
  // Computed again by an epoch that began before it: another state.
  question.directory_step = 30;
  question.memory = {node_with("a", 41, 4, {0}, 1)};
  question.beginnings = with_beginning({{1, 0}}, {4, 30});
  CHECK(choose_source(question).source->state == StateId{41, 4});
}

TEST_CASE("what a run has gone back behind never wins later", "[source]") {
  auto question = question_of({node_with("a", 41, 1, {0}, 1)}, 30);
  question.beginnings = with_beginning(question.beginnings, {2, 41});
  CHECK(choose_source(question).source->state.step == 41);  // epoch 2 itself began from it
  question.beginnings = with_beginning(question.beginnings, {3, 40});
  CHECK(question.beginnings == std::vector<Beginning>{{1, 0}, {3, 40}});
  CHECK(choose_source(question).source->tier == Tier::directory);
  question.memory = {node_with("a", 40, 1, {0}, 1)};
  CHECK(choose_source(question).source->state == StateId{40, 1});
  // A run of an older program does not know what its epochs began from.
  question.beginnings = {{5, 40}};
  CHECK(choose_source(question).source->tier == Tier::directory);
  question.beginnings.clear();
  CHECK(choose_source(question).source->tier == Tier::directory);
}

TEST_CASE("random histories: only states of the run's present line, and the newest of them", "[source]") {
  for (const uint64_t seed : test_seeds(300)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    std::map<int64_t, uint64_t> line;  // step -> the epoch that computed it last
    std::vector<Beginning> beginnings;
    std::vector<NodePieces> memory{{"a", {}}, {"b", {}}};
    std::vector<StateId> whole;
    int64_t step = 0;
    for (uint64_t epoch = 1; epoch <= 8; ++epoch) {
      const int64_t from = epoch == 1 ? 0 : int64_t(random() % uint64_t(step + 1));
      beginnings = with_beginning(beginnings, {epoch, from});
      line.erase(line.upper_bound(from), line.end());
      step = from;
      const int ranks = 1 + int(random() % 4);
      for (int i = int(random() % 6); i > 0; --i) {
        line[++step] = epoch;
        bool all = true;
        for (int rank = 0; rank < ranks; ++rank) {
          if (random() % 8 == 0) {
            all = false;
            continue;
          }
          memory[random() % 2].pieces.push_back({.step = step,
                                                 .epoch = epoch,
                                                 .rank = rank,
                                                 .ranks = ranks,
                                                 .run_id = "r",
                                                 .bytes = 1,
                                                 .problem = ""});
        }
        if (all) whole.push_back({step, epoch});
      }
      const std::optional<int64_t> directory = random() % 2 && !line.empty()
                                                   ? std::optional(int64_t(random() % uint64_t(step + 1)))
                                                   : std::nullopt;
      int64_t best = directory.value_or(-1);
      for (const StateId& state : whole)
        if (line.contains(state.step) && line[state.step] == state.epoch) best = std::max(best, state.step);
      SourceQuestion question = question_of(memory, directory);
      question.beginnings = beginnings;
      const auto choice = choose_source(question);
      REQUIRE(choice.source.has_value() == (best >= 0));
      if (!choice.source) continue;
      CHECK(choice.source->state.step == best);
      if (choice.source->tier == Tier::memory) {
        CHECK(line.at(choice.source->state.step) == choice.source->state.epoch);
        CHECK(int(choice.source->nodes.size()) == choice.source->ranks);
      }
    }
  }
}
