// What a rank does, as a value.
//
// Goal: an activity says the same as value, as sentence and as JSON, whatever texts it holds; a reader never sees a mixture of two; who
// keeps others waiting is found from the fields alone. Method: each phase and kind goes through JSON and back; texts of broken UTF-8,
// too long, with quotes; two threads on one slot; small wait-for graphs.
#include "runtime/base/activity.h"
#include "runtime/base/json.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <thread>

using namespace trainctl;

namespace {

Activity wait_for(std::initializer_list<int> peers) {
  Activity a{.kind = Activity::waiting, .phase = RunPhase::forward, .step = 3, .communicator = "tp group", .operation = "all-reduce"};
  for (const int peer : peers) a.add_peer(peer);
  return a;
}

}  // namespace

TEST_CASE("the sentence names step, place, progress and who is waited for") {
  CHECK(render({}) == "starting");
  CHECK(render({.kind = Activity::waiting, .operation = "MPI_Init"}) == "starting, waiting in MPI_Init");
  CHECK(render({.phase = RunPhase::backward, .step = 12, .micro_batch = 0, .virtual_stage = 5}) ==
        "step 12: backward of micro-batch 0, virtual stage 5");
  CHECK(render({.phase = RunPhase::loading, .done = 1'500'000, .total = 3'000'000, .in_bytes = true, .detail = "/runs/a/ckpt"}) ==
        "loading /runs/a/ckpt (1.5 of 3.0 MB)");
  CHECK(render({.phase = RunPhase::evaluating, .step = 8, .done = 3, .total = 10}) == "step 8: evaluation (3 of 10)");
  CHECK(render(wait_for({4})) == "step 3: forward, waiting for rank 4 (tp group: all-reduce)");
  CHECK(render(wait_for({4, 6})) == "step 3: forward, waiting for ranks 4, 6 (tp group: all-reduce)");
  CHECK(render(wait_for({1, 2, 3, 4, 5, 6, 7, 8, 9})) ==
        "step 3: forward, waiting for ranks 1, 2, 3, 4, 5, 6, 7, 8 and more (tp group: all-reduce)");
}

TEST_CASE("JSON gives back what was written, for every phase") {
  for (int phase = 0; phase <= int(RunPhase::leaving); ++phase)
    for (const bool waits : {false, true}) {
      Activity a = waits ? wait_for({7, 9}) : Activity{.step = 2, .micro_batch = 1, .virtual_stage = 3};
      a.phase = RunPhase(phase);
      a.done = 5;
      a.total = 1ull << 40;
      a.in_bytes = waits;
      REQUIRE(run_phase_of(name_of(a.phase)) == a.phase);
      const auto back = activity_from_json(to_json(a));
      REQUIRE(back);
      CHECK(render(*back) == render(a));
      CHECK(to_json(*back) == to_json(a));
      CHECK(back->waits_for(9) == waits);
      CHECK_FALSE(back->waits_for(8));
    }
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  CHECK(activity_from_json(to_json({.phase = RunPhase::forward, .step = kLeast}))->step == kLeast);
  for (const char* text : {"", "x", "{}", "[]", R"({"kind":"waiting"})", R"({"kind":"computing","phase":"dancing"})",
                           R"({"kind":"computing","phase":"forward","step":"three"})"})
    CHECK_FALSE(activity_from_json(text));
}

TEST_CASE("any text becomes valid JSON and is cut between two characters") {
  const auto detail = [](const std::string& text) {
    const auto j = Json::parse(to_json({.detail = text}));   // throws on broken UTF-8
    return j.at("detail").get<std::string>();
  };
  CHECK(detail("a \"b\" \\ µ 空 😀") == "a \"b\" \\ µ 空 😀");
  CHECK(detail("line\nend\x7f") == "line?end\x7f");
  CHECK(detail("\xff\xc3[\xed\xa0\x80]") == "??[???]");
  CHECK(detail("\xe7\xa9") == "??");
  CHECK(detail(std::string(300, 'x')) == std::string(102, 'x'));
  CHECK(detail(std::string(101, 'x') + "空") == std::string(101, 'x'));
  Activity longest{.detail = std::string(200, '"'), .communicator = std::string(200, '"'), .operation = std::string(200, '"')};
  longest.kind = Activity::waiting;
  longest.step = longest.micro_batch = longest.virtual_stage = 2'000'000'000;
  longest.done = longest.total = ~0ull;
  for (int i = 0; i < 9; ++i) longest.add_peer(2'000'000'000 + i);
  CHECK(to_json(longest).size() <= kActivityJsonBytes);
  CHECK(activity_from_json(to_json(longest)));
}

TEST_CASE("a slot is read whole while it is written") {
  ActivitySlot slot;
  CHECK_FALSE(slot.read());
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int64_t i = 0; !stop; ++i) {
      slot.write({.step = i, .done = uint64_t(i), .total = uint64_t(i)});
      std::this_thread::yield();
    }
  });
  int64_t last = -1;
  for (int i = 0; i < 20000; ++i) {
    const auto a = slot.read();
    if (!a) continue;
    REQUIRE(a->done == uint64_t(a->step));
    REQUIRE(a->total == uint64_t(a->step));
    REQUIRE(a->step >= last);
    last = a->step;
  }
  stop = true;
  writer.join();
}

TEST_CASE("a device's wait counts while its host does not wait") {
  const Activity computes{.phase = RunPhase::optimizer, .step = 2}, device = wait_for({5});
  CHECK(render(with_device(computes, device)) == "step 2: optimizer, waiting for rank 5 (tp group: all-reduce)");
  CHECK(render(with_device(computes, computes)) == "step 2: optimizer");
  CHECK(render(with_device(computes, std::nullopt)) == "step 2: optimizer");
  CHECK(render(with_device(wait_for({7}), device)) == render(wait_for({7})));
}

TEST_CASE("of those that compute, the ones waited for hold the others up") {
  const Activity computes{.phase = RunPhase::forward}, waits = wait_for({2}), waits_for_all = wait_for({1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(awaited_of({0, 2}, {&computes, &waits, &computes}) == std::vector{2});
  CHECK(awaited_of({0, 1}, {&computes, &computes, nullptr}) == std::vector{0, 1});
  CHECK(awaited_of({0, 12}, {&computes, &waits_for_all}) == std::vector{0, 12});
  CHECK(awaited_of({}, {&waits}).empty());
}
