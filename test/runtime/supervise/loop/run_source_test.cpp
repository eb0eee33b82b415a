// Goal: a state in memory that misbehaved twice after a load is passed over, and the run's records say so once.
// Method: lists of events with two bad loads, and what two nodes hold; the recorded events are read back.
#include "runtime/supervise/loop/run_source.h"

#include <catch2/catch.hpp>

#include "test/runtime/supervise/loop/supervised_stage.h"

using namespace trainctl;

namespace {

NodePieces piece_of(const std::string& node, int64_t step) {
  return {.node = node,
          .pieces = {{.step = step,
                      .epoch = 1,
                      .rank = node == "a" ? 0 : 1,
                      .ranks = 2,
                      .run_id = "",
                      .bytes = 10,
                      .problem = ""}}};
}

struct Search {
  Search() {
    AttemptFile file;
    file.epoch = 3;
    file.beginnings = with_beginning(with_beginning({{1, 0}}, {2, 12}), {3, 12});
    real_file_system().replace_text(stage.directory.attempt(), file.to_json());
  }
  /// From the memory of both nodes, which hold steps 12 and 11.
  void find(const std::vector<std::string>& events, RunCheckpoints::Found found) {
    std::vector<NodePieces> memory;
    for (const int64_t step : {12, 11})
      for (const char* node : {"a", "b"}) memory.push_back(piece_of(node, step));
    source.find({}, std::move(found), memory, 12, events, recovery);
  }

  test::SupervisedStage stage;
  RunSource source{*stage.run};
  Recovery recovery{{.widths = {{.data = 2, .ranks = 2}}, .nodes = {"a", "b"}}, 0};
};

const std::string kLoaded2 = R"({"kind":"start","epoch":2,"from_step":12,"tier":"memory","checkpoint":""})";
const std::string kLoaded3 = R"({"kind":"start","epoch":3,"from_step":12,"tier":"memory","checkpoint":""})";
const std::string kDiverged = R"({"kind":"failure","step":12,"code_name":"diverged"})";

}  // namespace

TEST_CASE("a doubted state in memory is passed over, and recorded", "[run_source]") {
  Search once;
  once.find({kLoaded2, kDiverged}, {});
  CHECK(once.source.step() == 12);
  CHECK(once.stage.events("checkpoint_suspect").empty());

  Search twice;
  const std::vector<std::string> events = {kLoaded2, kDiverged, kLoaded3, kDiverged};
  twice.find(events, {});
  CHECK(twice.source.step() == 11);
  CHECK(twice.stage.printed("step 12 in memory is passed over") == 1);
  const auto recorded = twice.stage.events("checkpoint_suspect");
  REQUIRE(recorded.size() == 1);
  CHECK(recorded[0].at("step") == 12);
  CHECK(recorded[0].at("epochs") == std::vector<uint64_t>{2, 3});

  // The search of the directory has recorded it already.
  Search both;
  RunCheckpoints::Found found;
  found.events.emplace_back(EventKind::checkpoint_suspect, suspect_checkpoints(events).at(0).event_json());
  both.find(events, std::move(found));
  CHECK(both.source.step() == 11);
  CHECK(both.stage.events("checkpoint_suspect").empty());
}
