// Goal: the space that checkpoints need is counted right, the last save is tried again as promised on every rank alike, and a run without
// a good status.json is still known.
// Method: jobs and files by hand; ranks as threads with a clock that jumps.
#include <catch2/catch.hpp>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "runtime/observe/status.h"
#include "runtime/base/error.h"
#include "runtime/run/record/known_status.h"
#include "runtime/supervise/preflight/storage.h"
#include "runtime/model/params.h"
#include "runtime/run/record/journal.h"
#include "runtime/train/save/last_save.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using Catch::Contains;

TEST_CASE("the space for checkpoints: kept, not yet verified, being written, never more than are written") {
  const test::TemporaryFolder dir;
  JobSpec job = test::tiny_job(Family::llama, dir.path());
  const uint64_t one = uint64_t(parameter_table(job.model, job.optimizer).total_count()) * 12;
  job.schedule.total_steps = 1000;
  job.checkpoint = {.every_steps = 100, .keep_last = 3};
  CHECK(space_need(job, 0).checkpoint == one);
  CHECK(space_need(job, 0).at_once == 5);
  CHECK(space_need(job, 3).bytes() == 2 * one);    // on a resume most of it is there
  CHECK(space_need(job, 9).bytes() == one);        // one more is always written
  job.checkpoint.keep_last = 1;                    // two are kept all the same
  CHECK(space_need(job, 0).at_once == 4);
  job.checkpoint.keep_last = 1 << 20;
  CHECK(space_need(job, 0).at_once == 11);
  job.checkpoint = {.every_steps = 100, .keep_last = 2, .keep_every_steps = 500};
  CHECK(space_need(job, 0).at_once == 6);
  job.checkpoint = {.every_steps = 0, .keep_last = 3};
  CHECK(space_need(job, 0).at_once == 1);
}

TEST_CASE("too little space is refused with the numbers, unknown space is not") {
  const SpaceNeed need{.checkpoint = 1000000000, .at_once = 4, .present = 1};
  CHECK(need.bytes() == 3000000000u);
  CHECK(space_refusal(need, 3000000000u, "/ckpt").is_none());
  CHECK(space_refusal(need, std::nullopt, "/ckpt").is_none());
  const std::string text = space_refusal(need, 2999999999u, "/ckpt").text();
  for (const char* part : {"3.00 GB more in /ckpt", "4 of 1.00 GB each", "1 of them there already", "checkpoint.keep_last"})
    CHECK_THAT(text, Contains(part));
}

namespace {

/// Jumps over every sleep.
struct JumpingClock final : Clock {
  double now = 0;
  double monotonic_s() override { return now; }
  double unix_s() override { return now; }
  void sleep_s(double seconds) override { now += seconds; }
};

struct Asked final : Control {
  std::atomic<StopLevel> level = StopLevel::none;
  std::vector<EventKind> events;
  const double left_s;
  explicit Asked(double left) : left_s(left) {}
  StopLevel stop_level() const override { return level; }
  double stop_left_s() const override { return left_s; }
  void activity(const Activity&) override {}
  void device_activity(const Activity&) override {}
  void report(const StepReport&) override {}
  void report_times(int64_t, const RankTimes&) override {}
  void event(EventKind kind, const std::string&) override { events.push_back(kind); }
  void hand_in(const HandedIn&) override {}
  std::optional<SaveResult> saved(int64_t) const override { return std::nullopt; }
  SaveResult await_saved(int64_t) override { return {}; }
  void done() override {}
};

struct Attempts {
  bool saved = false;
  int count = 0;
  double seconds = 0;
  size_t announced = 0;
};

/// Three ranks whose save fails `failures` times; rank `asked` is asked to stop before attempt `stop_at`.
std::vector<Attempts> save_on_threads(const LastSave& last, int failures, int asked, int stop_at,
                                      double left_s = INFINITY) {
  auto worlds = parallel::make_thread_world(3, 60);
  std::vector<Attempts> result(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      JumpingClock clock;
      Asked control(left_s);
      Attempts& mine = result[size_t(rank)];
      const auto save = [&] {
        ++mine.count;
        if (rank == asked && mine.count == stop_at) control.level = StopLevel::save_and_stop;
        return mine.count > failures;
      };
      mine.saved = save_at_the_end(last, save, *worlds[size_t(rank)], control, clock);
      mine.seconds = clock.now;
      mine.announced = control.events.size();
    });
  for (std::thread& thread : threads) thread.join();
  return result;
}

}  // namespace

TEST_CASE("the last save: tried again with growing pauses, given up by all ranks when one is asked to stop") {
  CHECK(save_retry_wait_s(1, 30) == 1);
  CHECK(save_retry_wait_s(4, 30) == 8);
  CHECK(save_retry_wait_s(6, 30) == 30);
  CHECK(save_retry_wait_s(1000000, 30) == 30);
  CHECK(save_retry_wait_s(5, 0.25) == 0.25);
  for (const Attempts& a : save_on_threads({.step = 20}, 0, -1, 0)) CHECK((a.saved && a.count == 1 && a.seconds == 0));
  const auto third = save_on_threads({.step = 20}, 2, -1, 0);
  for (const Attempts& a : third) CHECK((a.saved && a.count == 3 && a.seconds >= 3 && a.seconds < 3.5));
  CHECK((third[0].announced == 2 && third[1].announced == 0));
  for (const Attempts& a : save_on_threads({.step = 20}, 1000, 2, 4)) CHECK((!a.saved && a.count == 4));
  // Asked to stop before: attempts end by themselves, soon.
  for (const Attempts& a : save_on_threads({.step = 20, .stopped = true}, 1000, 1, 1))
    CHECK((!a.saved && a.count > 2 && a.seconds <= kStoppedRetryS + 0.5));
  // Sooner where the stop leaves less time than the next wait takes.
  for (const Attempts& a : save_on_threads({.step = 20, .stopped = true}, 1000, 1, 1, 3))
    CHECK((!a.saved && a.count == 3 && a.seconds <= 3.5));
}

TEST_CASE("how long the end of a run waits for saves under way") {
  CHECK(wait_for_writes_s(INFINITY, 60, true) == 60);
  CHECK(wait_for_writes_s(INFINITY, 60, false) == 60);
  CHECK(wait_for_writes_s(40, 60, true) == 20);  // the last save needs time, too
  CHECK(wait_for_writes_s(40, 60, false) == 40);
  CHECK(wait_for_writes_s(-1, 60, true) == 0);
}

TEST_CASE("a run is known from its other records where status.json is damaged or missing") {
  const test::TemporaryFolder dir;
  FileSystem& fs = real_file_system();
  const RunDirectory run{dir.path() + "/r"};
  fs.make_directory(run.path);
  fs.write_new_text(run.job(), R"({"schedule":{"total_steps":40}})");
  fs.write_new_text(run.file("run.json"), RunIdentity{.run_id = "r-1", .command = {"launch"}}.to_json());
  CHECK_FALSE(status_of_run(fs, run));   // never started
  {
    Journal events(run.events()), metrics(run.metrics());
    events.append(event_line(5, EventKind::start, R"({"epoch":1})"));
    events.append(event_line(6, EventKind::restart, R"({"restart":1,"reason":"rank 1 died"})"));
    events.append("no JSON at all");
    events.append(event_line(7, EventKind::start, R"({"epoch":2})"));
    metrics.append(R"({"step":1,"loss":3.5})");
    metrics.append(R"({"step":2,"loss":3.25})");
  }
  const auto missing = status_of_run(fs, run);
  REQUIRE(missing);
  CHECK_THAT(missing->note, Contains("status.json is missing") && Contains("events"));
  const RunStatus& s = missing->status;
  CHECK((s.run_id == "r" && s.state == RunState::running && !s.ended() && s.epoch == 2 && s.restarts == 1));
  CHECK((s.step == 2 && s.total_steps == 40 && s.saved_step == -1 && s.advice == "trainctl resume " + run.path));
  CHECK_THAT(render_status(s, SupervisorState::none, 8), Contains("2/40") && Contains("3.25"));

  fs.write_new_text(run.status(), "{\"v\":1,");
  Journal(run.events())
      .append(event_line(8, EventKind::end, R"({"state":"failed","exit_code":9,"reason":"a hang"})"));
  const auto damaged = status_of_run(fs, run);
  REQUIRE(damaged);
  CHECK_THAT(damaged->note, Contains("status.json is damaged"));
  CHECK((damaged->status.state == RunState::failed && damaged->status.exit_code == 9 &&
         damaged->status.reason == "a hang"));

  fs.replace_text(run.status(), s.to_json());
  CHECK(status_of_run(fs, run)->note == "");
}
