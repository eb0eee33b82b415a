// Goal: what a caretaker does first: removing does not wait for reading, the store gets its turns, a milestone is
// never passed over, and a repair can be interrupted. Method: a caretaker on a file system and an object store in
// memory, where a checkpoint is saved during each read, or the n-th read is interrupted.
#include "test/runtime/supervise/care/care_world.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("a repair can be interrupted at every read of the folder and of the store") {
  const std::string shard = kFolder + "/step-00000040/shard-00001-of-00003.safetensors";
  const World before = world_with_two_new();
  tended(before);
  before.fs->remove_file(kMarks);
  const auto reads_of = [&](const World& world, int interrupted_at) {
    Care care;
    CareOptions options = options_of(world, care);
    int reads = 0;
    options.go_on = [&] {
      if (reads++ == interrupted_at) throw CareInterrupted{};
    };
    try {
      tend(world, options);
    } catch (const CareInterrupted&) {
    }
    return reads;
  };
  const int without_repair = reads_of(before.copy(), -1);
  before.fs->poke(shard, [](std::string& text) { text[text.size() - 5] ^= 4; });
  const int with_repair = reads_of(before.copy(), -1);
  CHECK(with_repair > without_repair + 100);
  for (int n = 0; n < with_repair; ++n) {
    const World world = before.copy();
    INFO("read " << n);
    REQUIRE(reads_of(world, n) == n + 1);
    REQUIRE(not_brought_to_end(world) == "");
  }
}

TEST_CASE("where checkpoints are saved faster than they are read, older ones go and copies are made") {
  const World world = world_with_two_new();
  Care care;
  CareOptions options = options_of(world, care);
  constexpr int64_t kLast = 200;
  int64_t newest = 40, verified = -1;
  size_t most = 0;
  int copies = 0;
  options.go_on = [&] {
    // One more during each read of a whole checkpoint.
    if (care.count(EventKind::checkpoint_verified) == verified || newest == kLast) return;
    verified = care.count(EventKind::checkpoint_verified);
    world.save(newest += 10);
    most = std::max(most, world.folder()->list().size());
    copies = care.count(EventKind::checkpoint_uploaded);
  };
  CHECK(tend(world, options) == "");
  CHECK(newest == kLast);
  CHECK(most <= 6);
  CHECK(copies >= 5);
}

TEST_CASE("a milestone is copied, also when newer checkpoints were copied before it") {
  const World world = world_with_two_new();
  Care care;
  CareOptions options = options_of(world, care);
  options.keep_every_steps = 30;
  CHECK(tend(world, options) == "");
  CHECK(world.place().store->list() == Steps{40, 30});
  CHECK(care.count(EventKind::checkpoint_uploaded) == 2);
}
