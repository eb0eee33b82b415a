// Goal: a file system that does not answer keeps nothing but its thread: what is being published can be given
//       up at any of its calls, and when that call is answered after all nothing of an older epoch is
//       published any more.
// Method: a save of two ranks on files in memory, each of whose calls in turn hangs at a gate; the clock is
//         the test's; a newer epoch begins while the call hangs.
#include <poll.h>

#include <catch2/catch.hpp>

#include "ckpt/counting_file_system.h"
#include "ckpt/folders.h"
#include "runtime/run/saves/save_publisher.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/child.h"
#include "test/support/gates.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/thread_clock.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr const char* kFolder = "/run/ckpt";

/// A folder with a checkpoint of step 10 and a complete save of step 20, by epoch 3; the call `hangs` of
/// publishing it hangs.
struct Stage {
  explicit Stage(int hangs)
      : hanging(below, {.asked = [this, hangs] {
                  if (calls++ == hangs) gate.pass();
                }}) {
    below.make_directory("/run");
    test::save(below, kFolder, make_state(7, 10), 2);
    SaveCollector collector(1);
    const auto saving = ckpt::directory_store(below, kFolder)->saving(state.info);
    saving->join();
    std::vector<ckpt::ChunkData> chunks;
    for (size_t t = 0; t < state.tensors.size(); ++t)
      for (const parallel::Box& box : state.grids[t]) held.push_back(cut_out(state, t, box));
    for (size_t t = 0, kept = 0; t < state.tensors.size(); ++t)
      for (const parallel::Box& box : state.grids[t]) chunks.push_back({int(t), box, held[kept++].data()});
    const auto receipt =
        ckpt::write_shard(*saving, ckpt::shard_file_name(0, 1), state.info, state.tensors, chunks);
    save = *collector.add(0, {.state = state.info, .tensors = state.tensors, .receipt = receipt});
    publisher.emplace(hanging, clock,
                      SaveFolder::Options{.directory = kFolder, .must_hold = [mine = life] { CHECK(mine); }});
  }
  /// The threads that were given up have ended.
  bool is_quiet() {
    return publisher.reset(), eventually(60, [&] { return life.use_count() == 1; });
  }
  std::vector<int64_t> steps() { return ckpt::list_steps(below, kFolder); }

  PlainState state = make_state(7, 20);
  std::vector<std::vector<std::byte>> held;
  PowerLossFileSystem below;
  Gate gate;
  std::atomic<int> calls = 0;
  ckpt::CountingFileSystem hanging;
  ThreadClock clock;
  CollectedSave save;
  std::shared_ptr<int> life = std::make_shared<int>();
  std::optional<SavePublisher> publisher;
};

SaveOutcome outcome_of(SavePublisher& publisher) {
  pollfd fd{.fd = publisher.fd(), .events = POLLIN, .revents = 0};
  REQUIRE(::poll(&fd, 1, 1'200'000) == 1);
  return publisher.take().value();
}

}  // namespace

TEST_CASE("a save is published on another thread, and then what is left of others is removed") {
  Stage stage(-1);
  SavePublisher& publisher = *stage.publisher;
  CHECK((!publisher.is_busy() && publisher.quiet_s() == 0 && !publisher.take()));
  publisher.publish(stage.save, {});
  const SaveOutcome outcome = outcome_of(publisher);
  CHECK((outcome.ok && outcome.step == 20));
  CHECK_FALSE(publisher.is_busy());
  CHECK(stage.steps() == std::vector<int64_t>{20, 10});
  PlainState other = make_state(7, 30);
  ckpt::prepare_saving(stage.below, kFolder, other.info);
  publisher.remove_all();
  CHECK(outcome_of(publisher).step == -1);
  CHECK(stage.below.list(ckpt::saving_root(kFolder)).empty());
}

TEST_CASE("each call of a file system hangs: given up, it publishes nothing once a newer epoch has begun") {
  int published = 0;
  for (int hangs = 0;; ++hangs) {
    INFO("call " << hangs);
    Stage stage(hangs);
    SavePublisher& publisher = *stage.publisher;
    publisher.publish(stage.save, {});
    // The last call that could hang is behind it.
    if (eventually(60, [&] { return stage.calls > hangs || publisher.take(); }) && !publisher.is_busy()) {
      published = hangs;
      break;
    }
    stage.gate.await_visitor();
    stage.clock.pass(12);
    CHECK(publisher.quiet_s() == 12);
    const SaveOutcome outcome = publisher.give_up();
    CHECK((!outcome.ok && !outcome.taken && outcome.step == 20));
    CHECK(outcome.message ==
          "the file system of /run/ckpt has not answered for 12 s while publishing step 20");
    CHECK_FALSE(publisher.is_busy());
    ckpt::supersede(stage.below, kFolder, {"tiny-7Q2K", 4, 10});
    CHECK(stage.steps() == std::vector<int64_t>{10});
    stage.gate.open();
    REQUIRE(stage.is_quiet());
    CHECK(stage.steps() == std::vector<int64_t>{10});
    CHECK(stage.below.list(ckpt::saving_root(kFolder)).empty());
  }
  CHECK(published > 20);
}

TEST_CASE("another save is published while the thread of the one before still hangs") {
  Stage stage(3);
  SavePublisher& publisher = *stage.publisher;
  publisher.publish(stage.save, {});
  stage.gate.await_visitor();
  CHECK_FALSE(publisher.give_up().ok);
  const int64_t before = stage.calls;
  publisher.remove_all();
  CHECK(outcome_of(publisher).step == -1);
  CHECK(stage.calls > before);
  stage.gate.open();
  REQUIRE(stage.is_quiet());
  CHECK(stage.steps() == std::vector<int64_t>{10});
}
