// Goal: checkpoints in the memory of a node outlive the process that wrote them; the newest is never touched;
// too little memory is said with its size before anything is written. Method: a child process saves into a
// real shared-memory file and is killed in the middle of the next save; the parent reads. Crashes at every
// write are in power_loss_test.cpp.
#include <catch2/catch.hpp>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "ckpt/memory_store.h"
#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// A name on the machine's memory file system, removed at the end.
struct SharedFile {
  SharedFile() : path("/dev/shm/trainctl-test-memory-" + std::to_string(::getpid())) {
    ::unlink(path.c_str());
  }
  ~SharedFile() { ::unlink(path.c_str()); }
  const std::string path;
};

uint64_t file_bytes(const PlainState& state) {
  uint64_t bytes = 0;
  for (const auto& values : state.values) bytes += values.size();
  return bytes + 20000;
}

class PlainMemory final : public ckpt::NodeMemory {
 public:
  explicit PlainMemory(size_t bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  void write(uint64_t offset, std::span<const std::byte> data) override {
    std::memcpy(bytes_.data() + offset, data.data(), data.size());
    ++writes;
  }
  void read(uint64_t offset, std::span<std::byte> data) override {
    std::memcpy(data.data(), bytes_.data() + offset, data.size());
  }
  int writes = 0;

 private:
  std::vector<std::byte> bytes_;
};

bool memory_loads(ckpt::Store& store, const PlainState& state) {
  auto files = store.open(state.info.step);
  if (!files) return false;
  const auto checkpoint = ckpt::Checkpoint::open(std::move(files));
  return reads_back(*checkpoint, state) && ckpt::verify(*checkpoint).findings.empty();
}

}  // namespace

TEST_CASE("a checkpoint in shared memory outlives a writer that is killed while it saves the next") {
  const SharedFile file;
  const PlainState first = make_state(1, 10), second = make_state(1, 20), third = make_state(1, 30);
  const uint64_t bytes = ckpt::memory_for_checkpoints(file_bytes(first));
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto memory = ckpt::shared_memory(file.path, bytes);
    const auto store = ckpt::memory_store(*memory, file.path);
    save(*store, first, 2);
    save(*store, second, 2);
    const auto saving = store->saving(third.info);
    saving->begin();
    saving->put_text("shard-00000-of-00002.safetensors", "half a shard");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  const auto memory = ckpt::shared_memory(file.path, bytes);
  const auto store = ckpt::memory_store(*memory, file.path);
  CHECK(store->list() == std::vector<int64_t>{20});
  CHECK(memory_loads(*store, second));
  save(*store, third, 3);
  CHECK(store->list() == std::vector<int64_t>{30, 20});
  CHECK(memory_loads(*store, third));
  CHECK(memory_loads(*store, second));
  // A file of another size is made anew.
  CHECK(ckpt::memory_store(*ckpt::shared_memory(file.path, bytes / 2), "m")->list().empty());
}

TEST_CASE("too little memory is said with its size") {
  PlainMemory memory(20000);
  const auto store = ckpt::memory_store(memory, "/dev/shm/m");
  CHECK_THROWS_WITH(save(*store, make_state(1, 10), 1),
                    Catch::Contains("No space left on /dev/shm/m: each of its two slots has 9.8 KiB"));
  CHECK(store->list().empty());
  PlainMemory none(100);
  const auto empty = ckpt::memory_store(none, "m");
  CHECK(empty->list().empty());
  CHECK_THROWS_WITH(save(*empty, make_state(1, 10), 1), Catch::Contains("too little for two slots"));
  const std::string huge = "/dev/shm/trainctl-test-huge-" + std::to_string(::getpid());
  CHECK_THROWS_WITH(ckpt::shared_memory(huge, uint64_t(1) << 50), Catch::Contains("for copies of the state"));
  CHECK(::access(huge.c_str(), F_OK) != 0);
  CHECK_THROWS_WITH(ckpt::shared_memory("/nowhere/m", 4096), Catch::Contains("cannot open /nowhere/m"));
  // What memory_for_checkpoints says is enough, for both slots.
  const PlainState state = make_state(1, 10);
  PlainMemory enough(ckpt::memory_for_checkpoints(file_bytes(state)));
  const auto fits = ckpt::memory_store(enough, "m");
  for (const int64_t step : {10, 20, 30}) save(*fits, make_state(1, step), 8);
  CHECK(fits->list() == std::vector<int64_t>{30, 20});
}

TEST_CASE("a newer save takes the place of one that fell behind") {
  PlainMemory memory(400000);
  const auto store = ckpt::memory_store(memory, "m");
  save(*store, make_state(1, 10), 2);
  const auto slow = store->saving(make_state(1, 20).info);
  slow->begin();
  const auto file = slow->put("shard", 8);
  save(*store, make_state(1, 30), 2);
  const int writes = memory.writes;
  CHECK_THROWS_WITH(file->append(std::vector<std::byte>(8)),
                    Catch::Contains("a newer save has taken its place"));
  CHECK_THROWS_WITH(slow->put("other", 8), Catch::Contains("a newer save has taken its place"));
  CHECK_THROWS_WITH(slow->commit("", [] { return true; }),
                    Catch::Contains("a newer save has taken its place"));
  CHECK(memory.writes == writes);
  CHECK(memory_loads(*store, make_state(1, 30)));
}

TEST_CASE("removed, set aside and replaced checkpoints in memory") {
  PlainMemory memory(400000);
  const auto store = ckpt::memory_store(memory, "m");
  save(*store, make_state(1, 10), 2);
  save(*store, make_state(1, 20), 2);
  store->set_aside_after({.epoch = 4, .step = 10});
  CHECK(store->list() == std::vector<int64_t>{10});
  CHECK(store->open(20) == nullptr);
  PlainState again = make_state(2, 10);
  again.info.epoch = 4;
  save(*store, again, 2);  // the same step of a later epoch
  CHECK(store->list() == std::vector<int64_t>{10});
  CHECK(memory_loads(*store, again));
  CHECK_THROWS_WITH(save(*store, make_state(1, 10), 2), Catch::Contains("is out of date"));
  CHECK(memory_loads(*store, again));
  store->remove(10, UINT64_MAX);
  CHECK(store->list().empty());
}

TEST_CASE("every flipped bit in a slot of memory is found") {
  const PlainState state = make_state(1, 10, 200);
  PlainMemory memory(60000);
  const auto store = ckpt::memory_store(memory, "m");
  save(*store, state, 1);
  uint64_t found = 0, unused = 0;
  for (uint64_t bit = 0; bit < 30000 * 8; bit += 37) {
    std::byte byte;
    memory.read(bit / 8, {&byte, 1});
    const std::byte bad = byte ^ std::byte(1 << bit % 8);
    memory.write(bit / 8, {&bad, 1});
    bool is_whole = false;
    try {
      is_whole = memory_loads(*store, state);
    } catch (const Error&) {
    }
    ++(is_whole ? unused : found);  // beyond the files there is nothing to find
    memory.write(bit / 8, {&byte, 1});
  }
  INFO(found << " found, " << unused << " in unused memory");
  uint64_t used = 64;
  const auto files = store->open(10);
  for (const std::string& name : files->names()) used += files->open(name)->size();
  // All but gaps between files, which are shorter than 64 bytes each.
  CHECK(found >= (used - 64) * 8 / 37);
  CHECK(memory_loads(*store, state));
}

TEST_CASE("a store of one slot: each checkpoint takes the place of the one before; a reader knows it") {
  const uint64_t bytes = ckpt::memory_for_checkpoints(64 << 10) / 2;
  const SharedFile file;
  const PlainState first = make_state(1, 10), second = make_state(1, 20);
  const auto memory = ckpt::shared_memory(file.path, bytes);
  const auto store = ckpt::memory_store(*memory, file.path, 1);
  const auto steps_read = [&] { return ckpt::memory_store(*memory, file.path)->list(); };
  CHECK(steps_read().empty());
  save(*store, first, 2);
  CHECK(steps_read() == std::vector<int64_t>{10});
  const auto saving = store->saving(second.info);
  saving->begin();
  CHECK(steps_read().empty());  // there is no other place
  save(*store, second, 2);
  CHECK(steps_read() == std::vector<int64_t>{20});
  CHECK(reads_back(*ckpt::Checkpoint::open(ckpt::memory_store(*memory, file.path)->open(20)), second));
  store->set_aside_after({.step = 10});
  CHECK(steps_read().empty());
}
