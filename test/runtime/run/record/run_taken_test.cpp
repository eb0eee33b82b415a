// Goal: a supervisor whose run another one has taken publishes nothing, removes nothing, and says who has it.
// Method: the lock is lost as a server of files loses it: it forgets it, and another process takes it. A save
//         with every receipt in is finished after that, at each of the two moments at which it looks.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/saves/save_collector.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::TemporaryFolder;

namespace {

/// A process that takes the run's lock and holds it.
class OtherSupervisor {
 public:
  explicit OtherSupervisor(const RunDirectory& run) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto lock = RunLock::try_take(run);
      const char byte = lock ? 'y' : 'n';
      if (::write(ready[1], &byte, 1) == 1) ::pause();
      ::_exit(0);
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    holds_ = byte == 'y';
    for (const int fd : ready) ::close(fd);
  }
  ~OtherSupervisor() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  bool holds() const { return holds_; }

 private:
  pid_t pid_ = -1;
  bool holds_ = false;
};

void forget_lock(const RunDirectory& run) { real_file_system().remove_file(run.file("supervisor.lock")); }

/// A save of two ranks whose shards are written.
struct Saved {
  test::PlainState state = test::make_state(7, 12);
  std::string directory;
  SaveCollector collector{2};
  std::optional<SaveFolder> checkpoints;
  std::optional<CollectedSave> complete;

  Saved(const std::string& folder, std::function<void()> must_hold) : directory(folder + "/ckpt") {
    real_file_system().make_directory(directory);
    checkpoints.emplace(real_file_system(),
                        SaveFolder::Options{.directory = directory, .must_hold = std::move(must_hold)});
  }
  void hand_in() {
    ckpt::prepare_saving(real_file_system(), directory, state.info);
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<std::vector<std::byte>> values;
      std::vector<ckpt::ChunkData> chunks;
      for (size_t t = 0, number = 0; t < state.tensors.size(); ++t)
        for (const parallel::Box& box : state.grids[t])
          if (int(number++ % 2) == rank) values.push_back(test::cut_out(state, t, box));
      for (size_t t = 0, number = 0, kept = 0; t < state.tensors.size(); ++t)
        for (const parallel::Box& box : state.grids[t])
          if (int(number++ % 2) == rank) chunks.push_back({int(t), box, values[kept++].data()});
      const ckpt::ShardReceipt receipt =
          ckpt::write_shard(real_file_system(), saving(), ckpt::shard_file_name(rank, 2), state.info,
                            state.tensors, chunks);
      complete = collector.add(rank, {.state = state.info, .tensors = state.tensors, .receipt = receipt});
      CHECK(complete.has_value() == (rank == 1));
    }
  }
  std::string saving() const { return ckpt::saving_directory(directory, state.info); }
  std::vector<int64_t> published() const { return ckpt::list_steps(real_file_system(), directory); }
};

}  // namespace

TEST_CASE("a holder of the run's lock sees that another process has taken it", "[run_taken]") {
  TemporaryFolder folder;
  const RunDirectory run{folder.path()};
  const auto lock = RunLock::try_take(run);
  REQUIRE(lock);
  CHECK(lock->before() == "");
  CHECK_NOTHROW(lock->must_hold());
  forget_lock(run);
  CHECK_NOTHROW(lock->must_hold());  // nobody has it: the folder may be gone, or the disk away
  {
    const OtherSupervisor other(run);
    REQUIRE(other.holds());
    std::string message;
    try {
      lock->must_hold();
    } catch (const RunTaken& taken) {
      message = taken.what();
    }
    CHECK(message.find("another supervisor (pid " + std::to_string(other.pid()) + " on ") == 0);
  }
  CHECK_THROWS_AS(lock->must_hold(), RunTaken);  // also when that one is gone
  const auto next = RunLock::try_take(run);
  REQUIRE(next);
  CHECK(next->before().find("pid ") == 0);
  CHECK_NOTHROW(next->must_hold());
}

TEST_CASE("a save is not published by a supervisor that has lost the run", "[run_taken]") {
  TemporaryFolder folder;
  const RunDirectory run{folder.path()};
  const auto lock = RunLock::try_take(run);
  REQUIRE(lock);
  Saved save(folder.path(), [&] { lock->must_hold(); });
  save.hand_in();
  forget_lock(run);
  const OtherSupervisor other(run);
  REQUIRE(other.holds());
  const SaveOutcome outcome = save.checkpoints->publish(*save.complete);
  CHECK(outcome.taken);
  CHECK_FALSE(outcome.ok);
  CHECK(outcome.message.find("another supervisor (pid ") == 0);
  CHECK(save.published().empty());
  // The shards are the other supervisor's to publish.
  CHECK(std::filesystem::exists(save.saving() + "/" + ckpt::shard_file_name(0, 2)));
  save.checkpoints->remove_all();
  CHECK(std::filesystem::exists(save.saving() + "/" + ckpt::shard_file_name(1, 2)));
}

TEST_CASE("a save looks at the lock before it publishes and before it removes older ones", "[run_taken]") {
  for (const int lost_at : {1, 2, 3}) {
    CAPTURE(lost_at);
    TemporaryFolder folder;
    int looks = 0;
    std::vector<size_t> published_at;
    Saved* seen = nullptr;
    Saved save(folder.path(), [&] {
      published_at.push_back(seen->published().size());
      if (++looks == lost_at) throw RunTaken(ErrorCode::kLauncher, "taken");
    });
    seen = &save;
    save.hand_in();
    const SaveOutcome outcome = save.checkpoints->publish(*save.complete);
    CHECK(outcome.taken == (lost_at <= 2));
    CHECK(save.published().size() == (lost_at == 1 ? 0u : 1u));
    CHECK(published_at == (lost_at == 1 ? std::vector<size_t>{0} : std::vector<size_t>{0, 1}));
  }
}
