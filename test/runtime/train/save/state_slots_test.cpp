// Goal: slots that an epoch before has left count as room for the next one, which uses them again; those of another
// mesh or size do not. Method: files of slots in a folder of the memory file system, and the rule by numbers.
#include <catch2/catch.hpp>

#include "ckpt/pieces.h"
#include "runtime/train/save/state_slots.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("the room for slots in memory", "[slots]") {
  CHECK(MemoryRoom{.available = 100, .slots = 60, .planned = 40}.is_enough());
  CHECK_FALSE(MemoryRoom{.available = 100, .slots = 61, .planned = 40}.is_enough());
  // After a failure the slots are there, and what is free is less by them.
  CHECK(MemoryRoom{.available = 40, .held = 60, .slots = 60, .planned = 40}.is_enough());
  CHECK(MemoryRoom{.slots = 60, .planned = 40}.is_enough());  // not known
}

TEST_CASE("slots of an epoch before are found, those of another mesh or size are not", "[slots]") {
  const TemporaryFolder folder("slots", "/dev/shm");
  constexpr uint64_t kBytes = 64 << 10;
  const NodeRanks here{.first = 2, .count = 2};
  CHECK(held_slots(folder.path(), here, 4, kBytes) == 0);
  for (const int rank : {1, 2, 3})
    ckpt::shared_memory(folder.path() + "/" + ckpt::piece_file_name(rank, 4), kBytes);
  CHECK(held_slots(folder.path(), here, 4, kBytes) == 2 * kBytes);
  CHECK(held_slots(folder.path(), here, 4, 2 * kBytes) == 0);
  CHECK(held_slots(folder.path(), here, 8, kBytes) == 0);
}
