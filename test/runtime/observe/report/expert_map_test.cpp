// Goal: the report's pictures of experts have the numbers of the run's lines, stay small for large models, and
// lose no expert without tokens; damaged lines take nothing else away. Method: lines as the program writes
// them, through the pure functions, and the page that is made of them.
#include <catch2/catch.hpp>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/observe/report/expert_map.h"
#include "runtime/observe/report/page.h"
#include "runtime/observe/report/report_data.h"
#include "runtime/train/measure/expert_load.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::report;
using Catch::Matchers::Contains;
using trainctl::test::TemporaryFolder;

namespace {

/// Layers 1, 2, ... with the same slots in each.
std::string expert_text(int64_t step, const std::vector<int64_t>& slots, size_t layers = 2,
                        bool with_map = true) {
  ExpertSlots s{.steps = 5, .experts = int64_t(slots.size()), .top_k = 2};
  for (size_t l = 0; l < layers; ++l) {
    s.layers.push_back(int(l) + 1);
    s.slots.insert(s.slots.end(), slots.begin(), slots.end());
  }
  s.quiet.assign(s.slots.size(), 0);
  return expert_line(1, step, s, with_map);
}

}  // namespace

TEST_CASE("the map of experts shows the newest loads, and the layers over the steps", "[experts]") {
  ExpertMap map;
  map.take(expert_text(5, {2, 2, 2, 2}));
  map.take(expert_text(10, {8, 0, 0, 0}));
  map.take(expert_text(15, {3, 1, 2, 2}, 2, false));
  map.take(R"({"v":1,"step":16,"experts":4,"layers":[1,2],"most":[1]})");
  map.take("rubbish");
  CHECK(map.damaged() == 2);
  const OrderedJson j = expert_map_json(map, 15, 1000);
  CHECK(j["experts"] == 4);
  CHECK(j["layers"] == OrderedJson({1, 2}));
  CHECK(j["steps"] == OrderedJson({5, 10, 15}));
  CHECK(j["covered"] == OrderedJson({5, 5, 5}));
  CHECK(j["most"] == OrderedJson::parse("[[1,1],[4,4],[1.5,1.5]]"));
  CHECK(j["idle"][1] == OrderedJson({3, 3}));
  CHECK(j["map"]["step"] == 10);
  CHECK(j["map"]["load"] == OrderedJson::parse("[[4,0,0,0],[4,0,0,0]]"));
  CHECK_FALSE(j["map"].contains("bias"));
  CHECK_FALSE(j.contains("dropped"));
  // The attempt after step 9 is given up, then step 7 is done again.
  CHECK(expert_map_json(map, 9, 1000)["steps"] == OrderedJson({5}));
  map.take(expert_text(7, {1, 1, 1, 1}));
  CHECK(expert_map_json(map, 15, 1000)["steps"] == OrderedJson({5, 7}));
  CHECK(expert_map_json(ExpertMap(), 15, 1000).is_null());
}

TEST_CASE("the map of a large model and a long run stays small, and keeps the worst", "[experts]") {
  std::vector<int64_t> slots(256, 1000);
  ExpertMap map;
  for (int64_t step = 100; step <= 100000; step += 100) {
    slots[17] = step == 50000 ? 9000 : 1000;
    map.take(expert_text(step, slots, 60, step % 10000 == 0));
  }
  const OrderedJson j = expert_map_json(map, 100000, 8000);
  CHECK(j["steps"].size() <= 8000 / 60 + 1);
  CHECK(j["steps"].back() == 100000);
  CHECK(j["left_out"].get<size_t>() == 1000 - j["steps"].size());
  CHECK_THAT(j["steps"].dump(), Contains(",50000,"));
  CHECK(j["map"]["experts_a_cell"] == 1);
  CHECK(j.dump().size() < 400'000);
  // More experts than cells: one without tokens is still seen.
  slots.assign(1024, 1000);
  slots[700] = 0;
  ExpertMap larger;
  larger.take(expert_text(1, slots, 64));
  const OrderedJson l = expert_map_json(larger, 1, 8000);
  CHECK(l["map"]["experts_a_cell"] == 2);
  CHECK(l["map"]["load"][0].size() == 512);
  CHECK(l["map"]["load"][63][350] == 0);
}

TEST_CASE("the page has the map where the run has experts, and only there", "[experts]") {
  RunData run{.id = "made"};
  run.steps.take(step_line_text({.step = 10, .loss = 1}));
  CHECK_FALSE(report_json({&run}, 5000)["runs"][0].contains("experts"));
  run.experts.take(expert_text(10, {8, 0, 0, 0}));
  const OrderedJson data = report_json({&run}, 5000);
  CHECK(data["runs"][0]["experts"]["map"]["step"] == 10);
  const std::string page = page_html(data);
  CHECK_THAT(page, Contains(R"("load":[[4,0,0,0],[4,0,0,0]])"));
  CHECK_THAT(page, Contains("function expertMaps(experts)"));
}
