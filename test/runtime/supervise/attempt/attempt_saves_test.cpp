// Goal: every rank gets an answer to its part of a save: also a rank that connects late, a rank whose part
//       comes before the save is known, after another supervisor has published, and after one that died had
//       answered some nodes only; a failure fails one save; what waits for a disk is limited.
// Method: AttemptSaves and its SavePublisher, on files in a temporary folder, by a clock that the test moves;
//         the messages to the ranks are kept. The only wait is for the descriptor that says that publishing
//         has ended.
#include <poll.h>

#include <catch2/catch.hpp>
#include <optional>

#include "ckpt/counting_file_system.h"
#include "runtime/observe/console.h"
#include "runtime/supervise/attempt/attempt_saves.h"
#include "runtime/supervise/attempt/run_log.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/child.h"
#include "test/support/gates.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_clock.h"

using namespace trainctl;
using protocol::Down;

namespace {

constexpr int kRanks = 2;

/// A supervisor with two ranks, which save their whole state from rank 0.
struct Rig final : AttemptSaves::Effects {
  explicit Rig(const std::string& folder, bool attach, FileSystem& files = real_file_system())
      : run{folder}, fs(files) {
    fs.make_directory(run.file("logs"));
    fs.make_directory(run.file("ckpt"));
    log.emplace(fs, clock, run, console);
    publisher.emplace(
        fs, clock,
        SaveFolder::Options{.directory = run.file("ckpt"), .must_hold = [mine = life] { REQUIRE(mine); }});
    saves.emplace(*publisher, clock, *this, kRanks, attach);
  }
  void send_ranks(const Down& down) override {
    for (int rank = 0; rank < kRanks; ++rank) note(rank, down);
  }
  void send_rank(int rank, const Down& down) override { note(rank, down); }
  void save_progressed() override { ++progressed; }
  void save_published(int64_t step) override { published.push_back(step); }
  void save_ended(const SaveOutcome& outcome, double seconds) override { log->saved(outcome, seconds); }
  void save_ended_before(const SaveOutcome& outcome) override { log->saved_before(outcome); }
  void save_superseded(int64_t step, const std::string& why) override {
    superseded += fmt::format("{}: {}\n", step, why);
  }
  void save_hangs(const std::string& text) override { log->publishing_hangs(text); }
  void note(int rank, const Down& down) {
    const char* const kind = down.kind == Down::saved ? "saved" : "alive";
    sent += fmt::format("{}:{}{} ", rank, kind, down.kind == Down::alive ? "" : down.ok ? "+" : "-");
    last = down;
  }
  std::string take_sent() { return std::exchange(sent, ""); }

  /// Rank 1 owns nothing.
  void hand_in(int rank, int64_t number = 0, const std::string& failure = "") {
    protocol::Shard shard{
        .epoch = state.info.epoch, .step = state.info.step, .number = number, .failure = failure};
    if (rank == 0) {
      if (failure.empty()) shard.receipt = write();
      shard.tensors = state.tensors;
      shard.state = state.info;
    }
    saves->hand_in(rank, std::move(shard));
  }
  ckpt::ShardReceipt write() {
    if (written) return *written;
    std::vector<std::vector<std::byte>> values;
    std::vector<ckpt::ChunkData> chunks;
    for (size_t t = 0; t < state.tensors.size(); ++t)
      for (const parallel::Box& box : state.grids[t]) values.push_back(test::cut_out(state, t, box));
    for (size_t t = 0, kept = 0; t < state.tensors.size(); ++t)
      for (const parallel::Box& box : state.grids[t]) chunks.push_back({int(t), box, values[kept++].data()});
    const auto saving = ckpt::directory_store(fs, run.file("ckpt"))->saving(state.info);
    saving->join();
    written = ckpt::write_shard(*saving, ckpt::shard_file_name(0, kRanks), state.info, state.tensors, chunks);
    return *written;
  }
  void await_answer() {
    pollfd fd{.fd = publisher->fd(), .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&fd, 1, 1'200'000) == 1);
    saves->turn();
  }
  /// The end of an attempt, on a disk that answers.
  void finish() {
    saves->finish();
    while (saves->is_busy()) {
      pollfd fd{.fd = publisher->fd(), .events = POLLIN, .revents = 0};
      REQUIRE(::poll(&fd, 1, 1'200'000) == 1);
      saves->turn();
    }
    saves->give_up();
  }
  std::vector<int64_t> steps() { return ckpt::list_steps(fs, run.file("ckpt")); }

  const RunDirectory run;
  FileSystem& fs;
  test::ThreadClock clock;
  std::string printed;
  TerminalConsole console{{.write = [this](const std::string& text) { printed += text; }}};
  std::shared_ptr<int> life = std::make_shared<int>();  ///< also held by the threads that publish
  std::optional<RunLog> log;
  test::PlainState state = test::make_state(7, 12);
  std::optional<ckpt::ShardReceipt> written;
  std::string sent;
  Down last;
  int progressed = 0;
  std::vector<int64_t> published;
  std::string superseded;
  std::optional<SavePublisher> publisher;
  std::optional<AttemptSaves> saves;  // last: it calls the members above
};

}  // namespace

TEST_CASE("a save is published when all ranks have handed in, and answered once") {
  const test::TemporaryFolder folder;
  Rig rig(folder.path(), false);
  rig.hand_in(0);
  rig.hand_in(0);  // its connection broke in between: the agent sends it again
  rig.saves->turn();
  CHECK(rig.take_sent() == "0:alive 1:alive ");
  rig.saves->turn();  // not in every turn
  CHECK(rig.take_sent().empty());
  rig.hand_in(1);
  rig.await_answer();
  CHECK(rig.take_sent() == "0:saved+ 1:saved+ ");
  CHECK(rig.published == std::vector{rig.state.info.step});
  CHECK(rig.steps() == rig.published);
  CHECK(rig.progressed == 1);
  rig.hand_in(1);
  CHECK(rig.take_sent() == "1:saved+ ");
  rig.saves->hello(0);  // it connects again
  CHECK(rig.take_sent() == "0:saved+ ");
}

TEST_CASE("a rank that could not write fails this save, and the next one succeeds") {
  const test::TemporaryFolder folder;
  Rig rig(folder.path(), false);
  rig.hand_in(1, 0, "disk full");
  rig.hand_in(0);
  rig.finish();
  CHECK(rig.take_sent() == "0:saved- 1:saved- ");
  CHECK(rig.last.message == "rank 1 could not write its shard: disk full");
  CHECK(rig.steps().empty());
  rig.written.reset();
  rig.hand_in(0, 1);
  rig.hand_in(1, 1);
  rig.finish();
  CHECK(rig.take_sent() == "0:saved+ 1:saved+ ");
  CHECK(rig.steps() == std::vector{rig.state.info.step});
}

TEST_CASE("several saves are under way; what their ranks hand in may come in any order") {
  const test::TemporaryFolder folder;
  Rig rig(folder.path(), false);
  const test::PlainState first = rig.state, second = test::make_state(7, 13), third = test::make_state(7, 14);
  rig.hand_in(1, 0);
  rig.state = second;
  rig.written.reset();
  rig.hand_in(0, 1);
  rig.state = third;
  rig.written.reset();
  rig.hand_in(0, 2);
  rig.hand_in(1, 2, "disk full");
  rig.state = second;
  rig.hand_in(1, 1);
  rig.state = first;
  rig.written.reset();
  rig.hand_in(0, 0);
  rig.finish();
  // The third failed, the others were published, whatever retention cleaned meanwhile.
  CHECK(rig.take_sent() == "0:saved- 1:saved- 0:saved+ 1:saved+ 0:saved+ 1:saved+ ");
  CHECK(rig.published == std::vector<int64_t>{13, 12});
  for (const test::PlainState* state : {&first, &second})
    CHECK(test::reads_back(
        *ckpt::Checkpoint::open(rig.fs, ckpt::step_directory(rig.run.file("ckpt"), state->info.step)),
        *state));
}

TEST_CASE("the end of an attempt gives up a save that is not complete") {
  const test::TemporaryFolder folder;
  Rig rig(folder.path(), false);
  rig.hand_in(0);
  const std::string saving = ckpt::saving_directory(rig.run.file("ckpt"), rig.state.info);
  REQUIRE(rig.fs.is_directory(saving));
  rig.finish();
  CHECK_FALSE(rig.fs.is_directory(saving));
  CHECK(rig.steps().empty());
}

TEST_CASE("a file system that does not answer keeps nobody waiting, and is reported once") {
  const test::TemporaryFolder folder;
  test::Gate gate;
  std::atomic<bool> hangs = false;
  ckpt::CountingFileSystem files(real_file_system(), {.asked = [&] {
                                   if (hangs) gate.pass();
                                 }});
  Rig rig(folder.path(), false, files);
  rig.hand_in(0);
  hangs = true;
  rig.hand_in(1);
  gate.await_visitor();
  hangs = false;  // of the publishing thread alone
  rig.saves->turn();
  CHECK(rig.take_sent() == "0:alive 1:alive ");
  for (int i = 0; i < 3; ++i) {
    rig.clock.pass(12);
    rig.saves->turn();
    CHECK(rig.take_sent() == "0:alive 1:alive ");
  }
  const std::string said = fmt::format(
      "the file system of {} has not answered for 24 s while publishing step 12", rig.run.file("ckpt"));
  CHECK(rig.printed == " ! " + said + "\n");
  CHECK(rig.progressed == 0);  // a verdict can come
  // The end of the attempt gives it up.
  rig.saves->finish();
  CHECK((rig.saves->is_busy() && rig.saves->quiet_s() == 36));
  rig.saves->give_up();
  CHECK_FALSE(rig.saves->is_busy());
  CHECK(rig.take_sent() == "0:saved- 1:saved- ");
  CHECK_THAT(rig.last.message, Catch::Contains("has not answered for 36 s while publishing step 12"));
  CHECK(rig.log->save_failed_step() == 12);
  gate.open();
  rig.saves.reset();
  rig.publisher.reset();
  // What was given up publishes nothing later, though no newer epoch has begun.
  REQUIRE(test::eventually(60, [&] { return rig.life.use_count() == 1; }));
  CHECK(rig.steps().empty());
}

TEST_CASE("a slow file system that answers is progress of the run") {
  const test::TemporaryFolder folder;
  test::Turnstile turnstile;
  std::atomic<bool> slow = false;
  ckpt::CountingFileSystem files(real_file_system(), {.asked = [&] {
                                   if (slow) turnstile.pass();
                                 }});
  Rig rig(folder.path(), false, files);
  rig.hand_in(0);
  slow = true;
  rig.hand_in(1);
  for (int call = 1; call <= 10; ++call) {
    turnstile.await_visitor(call);
    rig.saves->turn();
    CHECK(rig.progressed == call - 1);
    rig.clock.pass(14);
    turnstile.let(1);
  }
  slow = false;
  turnstile.let(1);
  rig.finish();
  CHECK(rig.printed.find("has not answered") == std::string::npos);
  CHECK(rig.steps() == std::vector{rig.state.info.step});
}

TEST_CASE("after an attach a save that the supervisor before has published is answered as saved") {
  const test::TemporaryFolder folder;
  {
    Rig before(folder.path(), false);
    before.hand_in(0);
    before.hand_in(1);
    before.finish();
  }
  Rig rig(folder.path(), true);
  rig.hand_in(1);
  CHECK(rig.take_sent().empty());  // rank 0 may have an answer
  rig.hand_in(0, 0, "of no matter");
  CHECK(rig.take_sent() == "0:saved+ 1:saved+ ");
  CHECK(rig.published == std::vector{rig.state.info.step});
  // Of another epoch, the same step is another save.
  rig.state.info.epoch += 1;
  rig.hand_in(1, 3);
  CHECK(rig.take_sent().empty());
}

TEST_CASE("after an attach a save is answered as saved only when no loss of power can take it") {
  const test::TemporaryFolder folder;
  test::PowerLossFileSystem fresh;
  fresh.make_directories(folder / "ckpt");
  const auto disk = fresh.after_power_loss(test::Survival::everything, 1);
  disk->ignore_syncs_of("/ckpt");  // the supervisor died between the last rename and the sync of its name
  {
    Rig before(folder.path(), false, *disk);
    before.hand_in(0);
    before.hand_in(1);
    before.finish();
    REQUIRE(before.steps() == std::vector{before.state.info.step});
  }
  const auto steps_without_power = [&](const test::PowerLossFileSystem& of) {
    return ckpt::list_steps(*of.after_power_loss(test::Survival::nothing, 1),
                            RunDirectory{folder.path()}.file("ckpt"));
  };
  CHECK(steps_without_power(*disk).empty());
  const auto later = disk->copy();
  Rig rig(folder.path(), true, *later);
  rig.hand_in(0, 0, "of no matter");
  rig.hand_in(1);
  CHECK(rig.take_sent() == "0:saved+ 1:saved+ ");
  CHECK(steps_without_power(*later) == std::vector{rig.state.info.step});
}

namespace {

Down answer_of_before(int64_t number, bool ok) {
  return {.kind = Down::saved, .ok = ok, .number = number, .message = ok ? "root" : "disk full"};
}

}  // namespace

TEST_CASE("an answer of the supervisor before that reached one node goes to all") {
  // The node that has the answer does not hand in again.
  for (const bool answer_is_first : {true, false}) {
    const test::TemporaryFolder folder;
    Rig rig(folder.path(), true);
    if (answer_is_first) rig.saves->answered_before(answer_of_before(0, false));
    CHECK(rig.take_sent().empty());
    rig.hand_in(1);
    if (!answer_is_first) rig.saves->answered_before(answer_of_before(0, false));
    CHECK(rig.take_sent() == "0:saved- 1:saved- ");
    CHECK(rig.last.message == "disk full");
    rig.saves->answered_before(answer_of_before(0, false));  // of another node, too
    rig.saves->turn();
    CHECK(rig.take_sent().empty());  // no rank is kept waiting
    rig.hand_in(1);
    CHECK(rig.take_sent() == "1:saved- ");
    // The next save is another one.
    rig.written.reset();
    rig.hand_in(0, 1);
    rig.hand_in(1, 1);
    rig.finish();
    CHECK(rig.take_sent() == "0:saved+ 1:saved+ ");
  }
}

TEST_CASE("ranks get one answer to a save, whatever becomes of its checkpoint before all have it") {
  // Found by the simulated cluster: one node heard that the save is published, and the supervisor that
  // followed found the checkpoint damaged, or the reverse: the name was there, but not durable.
  for (const bool said_saved : {true, false}) {
    const test::TemporaryFolder folder;
    const auto checkpoint = ckpt::step_directory(folder.path() + "/ckpt", 12);
    {
      Rig before(folder.path(), false);
      before.hand_in(0);
      before.hand_in(1);
      before.finish();
      REQUIRE(before.fs.is_directory(checkpoint));
      if (said_saved) before.fs.remove_tree(checkpoint + "/COMMIT");
    }
    Rig rig(folder.path(), true);
    rig.hand_in(1);
    rig.saves->answered_before(answer_of_before(0, said_saved));
    CHECK(rig.take_sent() == (said_saved ? "0:saved+ 1:saved+ " : "0:saved- 1:saved- "));
    CHECK(rig.published == (said_saved ? std::vector<int64_t>{12} : std::vector<int64_t>{}));
  }
}

TEST_CASE("after an attach a damaged checkpoint is replaced by the next save of its step") {
  const test::TemporaryFolder folder;
  const auto checkpoint = ckpt::step_directory(folder.path() + "/ckpt", 12);
  {
    Rig before(folder.path(), false);
    before.hand_in(0);
    before.hand_in(1);
    before.finish();
    before.fs.remove_tree(checkpoint + "/COMMIT");
  }
  Rig rig(folder.path(), true);
  rig.hand_in(0, 0, "its files have another name now");
  rig.hand_in(1);
  rig.finish();
  CHECK(rig.take_sent() == "0:saved- 1:saved- ");
  // The ranks of a run's last save try again.
  rig.hand_in(0, 1);
  rig.hand_in(1, 1);
  rig.finish();
  CHECK(rig.take_sent() == "0:saved+ 1:saved+ ");
  CHECK(test::reads_back(*ckpt::Checkpoint::open(rig.fs, checkpoint), rig.state));
}

TEST_CASE("an answer of the supervisor before changes nothing of a save that all ranks hand in again") {
  const test::TemporaryFolder folder;
  Rig rig(folder.path(), true);
  rig.hand_in(0);
  rig.hand_in(1);
  rig.saves->answered_before(answer_of_before(0, false));  // it is being published
  rig.finish();
  CHECK(rig.take_sent() == "0:saved+ 1:saved+ ");
}

TEST_CASE("the supervisor that gave an answer learns nothing from its return") {
  const test::TemporaryFolder folder;
  Rig rig(folder.path(), false);
  rig.hand_in(1);
  rig.saves->answered_before(answer_of_before(0, false));
  CHECK(rig.take_sent().empty());
}

TEST_CASE("of more unpublished saves than are kept the oldest is given up") {
  const test::TemporaryFolder folder;
  Rig rig(folder.path(), false);
  constexpr auto kMost = int64_t(protocol::kMostUnpublishedSaves);
  // Rank 0 never comes.
  for (int64_t number = 0; number < kMost; ++number) rig.hand_in(1, number);
  CHECK(rig.take_sent().empty());
  rig.hand_in(1, kMost);
  CHECK(rig.take_sent() == "0:saved- 1:saved- ");
  CHECK((rig.last.number == 0 && rig.last.message == "8 newer saves are not published yet"));
  CHECK(rig.superseded == "12: 8 newer saves are not published yet\n");
  rig.hand_in(0, 0, "too late");
  CHECK(rig.take_sent() == "0:saved- ");
  // A later one ends well, and the files of what was given up go first.
  const std::string saving = ckpt::saving_directory(rig.run.file("ckpt"), rig.state.info);
  rig.fs.make_directories(saving);
  rig.state = test::make_state(7, 13);
  rig.hand_in(0, kMost + 1);
  rig.hand_in(1, kMost + 1);
  REQUIRE(test::eventually(60, [&] { return rig.saves->turn(), !rig.published.empty(); }));
  CHECK(rig.published == std::vector<int64_t>{13});
  CHECK_FALSE(rig.fs.is_directory(saving));
}

TEST_CASE("what is kept of saves does not grow with a disk that publishes none") {
  const test::TemporaryFolder folder;
  Rig rig(folder.path(), false);
  int64_t answered = 0;
  constexpr int64_t kSaves = 200;
  for (int64_t number = 0; number < kSaves; ++number) {
    rig.hand_in(1, number);
    const std::string sent = rig.take_sent();
    answered += !sent.empty();
  }
  CHECK(answered == kSaves - int64_t(protocol::kMostUnpublishedSaves));
  // Also one whose answer is forgotten is not collected again.
  rig.hand_in(0, 3);
  CHECK(rig.take_sent() == "0:saved- ");
  CHECK(rig.last.number == 3);
}
