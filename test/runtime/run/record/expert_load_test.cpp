// Goal: the numbers of experts' loads are what they say; their lines stay small for large models; an expert
// that gets no tokens, or far too many, is reported once, and once more when that is over. Method: counts
// made by hand, with known answers; lines of steps in a row.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/json.h"
#include "runtime/run/record/uneven_experts.h"
#include "runtime/train/measure/expert_load.h"

using namespace trainctl;
using Catch::Contains;

namespace {

ExpertSlots two_layers() {
  return {.steps = 10,
          .experts = 4,
          .top_k = 2,
          .layers = {1, 3},
          .slots = {5, 5, 5, 5, 0, 12, 4, 0},
          .quiet = {0, 0, 0, 0, 10, 0, 0, 30}};
}

StepLine line_of(int64_t step, double most, int64_t idle_steps = 0) {
  StepLine line{.step = step};
  line.experts = ExpertSummary{.step = step,
                               .steps = 100,
                               .experts = 64,
                               .top_k = 8,
                               .most = most,
                               .most_layer = 2,
                               .most_expert = 7,
                               .idle = idle_steps > 0,
                               .idle_steps = idle_steps,
                               .idle_layer = idle_steps > 0 ? 5 : -1,
                               .idle_expert = idle_steps > 0 ? 9 : -1};
  return line;
}

}  // namespace

TEST_CASE("the load of a layer: even, uneven, with one expert alone, without tokens", "[experts]") {
  const std::vector<int64_t> even = {7, 7, 7}, uneven = {2, 6, 0, 0}, alone = {0, 0, 9}, none = {0, 0};
  CHECK(layer_load(even).most == 1);
  CHECK(layer_load(even).least == 1);
  CHECK(layer_load(even).entropy == Approx(1));
  CHECK(layer_load(even).idle == 0);
  const LayerLoad load = layer_load(uneven);
  CHECK(load.most == 3);
  CHECK(load.least == 0);
  CHECK(load.busiest == 1);
  CHECK(load.idle == 2);
  CHECK(load.entropy == Approx((0.25 * std::log(4) + 0.75 * std::log(4. / 3)) / std::log(4)));
  CHECK(layer_load(alone).entropy == 0);
  CHECK(layer_load(alone).most == 3);
  CHECK(layer_load(none).busiest == -1);
  CHECK(layer_load(none).idle == 2);
  CHECK(layer_load(std::vector<int64_t>{4}).entropy == 1);  // a layer of one expert is even
}

TEST_CASE("the worst of all layers is in the step's line, and the expert that is idle for longest",
          "[experts]") {
  const ExpertSummary s = expert_summary(two_layers(), 40);
  CHECK(s.step == 40);
  CHECK(s.steps == 10);
  CHECK(s.most == 3);
  CHECK(s.most_layer == 3);
  CHECK(s.most_expert == 1);
  CHECK(s.entropy_layer == 3);
  CHECK(s.entropy < 0.5);
  CHECK(s.idle == 2);
  CHECK(s.idle_steps == 30);
  CHECK(s.idle_layer == 3);
  CHECK(s.idle_expert == 3);
  CHECK_FALSE(s.dropped);
  CHECK_THAT(experts_text(s), Contains("3 × the mean at most (layer 3, expert 1)") &&
                                  Contains("2 experts without tokens (layer 3, expert 3 for 30 steps)") &&
                                  Contains("step 40") && !Contains("dropped"));
  ExpertSlots dropping = two_layers();
  dropping.dropped = {1, 2};
  CHECK_THAT(experts_text(expert_summary(dropping, 40)), Contains("3 dropped"));
  ExpertSlots even = two_layers();
  even.slots.assign(8, 3), even.quiet.assign(8, 0);
  CHECK_THAT(experts_text(expert_summary(even, 40)), Contains("1 × the mean") && Contains("all have tokens"));
}

TEST_CASE("a line has the numbers of each layer, and only some have those of each expert", "[experts]") {
  ExpertSlots slots = two_layers();
  slots.bias = {0, 0.25, -0.5, 0, 0, 0, 0, 0.125};
  const Json with = parse_json(expert_line(2, 40, slots, true));
  CHECK(with["epoch"] == 2);
  CHECK(with["layers"] == Json({1, 3}));
  CHECK(with["most"] == Json({1, 3}));
  CHECK(with["idle"] == Json({0, 2}));
  CHECK(with["load"] == Json::parse("[[1,1,1,1],[0,3,1,0]]"));
  CHECK(with["bias_least"] == Json::parse("[-0.5,0]"));
  CHECK(with["bias_most"] == Json::parse("[0.25,0.125]"));
  CHECK(with["bias"][1] == Json::parse("[0,0,0,0.125]"));
  CHECK_FALSE(with.contains("dropped"));
  const Json without = parse_json(expert_line(2, 40, two_layers(), false));
  CHECK_FALSE(without.contains("load"));
  CHECK_FALSE(without.contains("bias_least"));
  CHECK(without["entropy"].size() == 2);
}

TEST_CASE("the lines of a large model have few numbers on average", "[experts]") {
  ExpertSlots large{.steps = 100, .experts = 256, .top_k = 8};
  for (int l = 0; l < 60; ++l) large.layers.push_back(l);
  large.slots.assign(60 * 256, 1234567);
  large.quiet.assign(60 * 256, 0);
  size_t bytes = 0, maps = 0;
  constexpr int64_t kLast = 100000, kEvery = 100;
  const size_t without = expert_line(1, 1, large, false).size(), with = expert_line(1, 1, large, true).size();
  for (int64_t step = kEvery; step <= kLast; step += kEvery) {
    const bool map = has_expert_map(step, kLast, kEvery, 60, 256);
    bytes += map ? with : without, maps += map;
  }
  CHECK(maps >= 200);
  CHECK(bytes < 32'000'000);
  CHECK(has_expert_map(kLast, kLast, kEvery, 60, 256));
  CHECK(has_expert_map(7, 99, 1, 4, 64));  // of a small model every one
}

TEST_CASE("an expert without tokens for many steps is reported once", "[experts]") {
  UnevenExperts uneven;
  std::vector<UnevenExperts::Notice> all;
  const auto pass = [&](const StepLine& line) {
    for (UnevenExperts::Notice& notice : uneven.step(line)) all.push_back(std::move(notice));
  };
  for (int64_t step = 100; step < UnevenExperts::kSteps; step += 100) pass(line_of(step, 2, step));
  CHECK(all.empty());
  for (int64_t step = UnevenExperts::kSteps; step <= 3000; step += 100) pass(line_of(step, 2, step));
  REQUIRE(all.size() == 1);
  CHECK(all[0].kind == EventKind::experts_idle);
  CHECK_THAT(all[0].line, Contains("expert 9 of layer 5 has had no token for 500 steps"));
  CHECK(parse_json(all[0].json)["idle_layer"] == 5);
  CHECK(all[0].line == " ! " + parse_json(all[0].json)["text"].get<std::string>());
  // It has some again, for long enough; then another has none.
  for (int64_t step = 3100; step <= 4000; step += 100) pass(line_of(step, 2));
  REQUIRE(all.size() == 2);
  CHECK(all[1].kind == EventKind::experts_even);
  pass(line_of(4100, 2, 600));
  REQUIRE(all.size() == 3);
  CHECK(all[2].kind == EventKind::experts_idle);
  pass(StepLine{.step = 4101});  // a line without experts says nothing
  CHECK(all.size() == 3);
}

TEST_CASE("an expert with far more tokens than the mean one is reported once, and short peaks are not",
          "[experts]") {
  UnevenExperts uneven;
  CHECK(UnevenExperts::most_allowed(*line_of(1, 1).experts) == 4);
  size_t notices = 0;
  for (int64_t step = 100; step <= 2000; step += 100)
    notices += uneven.step(line_of(step, step % 400 == 0 ? 1.5 : 7)).size();
  CHECK(notices == 0);  // never so for 500 steps in a row
  std::vector<UnevenExperts::Notice> found;
  for (int64_t step = 2100; step <= 4000; step += 100)
    for (UnevenExperts::Notice& notice : uneven.step(line_of(step, 4.5))) found.push_back(std::move(notice));
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == EventKind::experts_uneven);
  CHECK_THAT(found[0].line, Contains("expert 7 of layer 2 has 4.5 times"));
  // Of 8 experts of which each token meets 2, one gets at most 4 times the mean.
  ExpertSummary few{.experts = 8, .top_k = 2};
  CHECK(UnevenExperts::most_allowed(few) == 3);
  // Where each token meets all experts, they are even.
  StepLine all_meet{.step = 1};
  all_meet.experts = ExpertSummary{.steps = 1000, .experts = 4, .top_k = 4, .most = 1};
  CHECK(UnevenExperts().step(all_meet).empty());
}
