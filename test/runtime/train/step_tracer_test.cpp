// Goal: all ranks record the same steps: those behind the sums in which every rank knew of one order; what is
// recorded is written and reported once, also when the run ends early, when another order takes its place,
// or when the folder is gone; a rank that still writes begins nothing new.
// Method: the window over all small orders; a tracer with a control and a clock of the test; a file system
// whose writes wait for the test.
#include <catch2/catch.hpp>
#include <filesystem>
#include <mutex>

#include "runtime/base/error.h"
#include "runtime/train/control/step_tracer.h"
#include "ckpt/counting_file_system.h"
#include "test/support/child.h"
#include "test/support/gates.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr double kWritesS = 600;  ///< for what is written at once, however slow the machine is

struct Orders final : Control {
  StopLevel stop_level() const override { return StopLevel::none; }
  void activity(const Activity&) override {}
  void device_activity(const Activity&) override {}
  void report(const StepReport&) override {}
  void report_times(int64_t, const RankTimes&) override {}
  void event(EventKind, const std::string&) override {}
  void hand_in(const HandedIn&) override {}
  std::optional<SaveResult> saved(int64_t) const override { return std::nullopt; }
  SaveResult await_saved(int64_t) override { return {}; }
  void done() override {}
  int64_t trace_number() const override { return order.number; }
  TraceOrder trace_order() const override { return order; }
  void traced(const TraceResult& result) override {
    const std::lock_guard lock(mutex);
    results.push_back(result);
  }
  std::vector<TraceResult> taken() {
    const std::lock_guard lock(mutex);
    return results;
  }
  TraceOrder order;
  std::mutex mutex;
  std::vector<TraceResult> results;
};

struct Stage {
  explicit Stage(FileSystem& fs = real_file_system()) : tracer({.rank = 3, .ranks = 8}, spans, control, fs) {
    spans->reserve(16);
    control.order = {.number = 7, .first_step = 0, .steps = 2, .ranks = {1, 3}, .folder = dir.path()};
  }
  /// A whole step, as the trainer makes it: whether it is recorded.
  bool step(int64_t number, const TraceOffer* all = nullptr) {
    const bool recorded = tracer.begin_step(number);
    { const RecordSpan span(spans.get(), {.step = number}); }
    const TraceOffer own = tracer.offered();
    tracer.agreed(all ? *all : own, number);
    return recorded;
  }
  Recording written() const { return Recording::decode(read_file(dir / "rank-00003.spans"), "x"); }
  const TemporaryFolder dir;
  Orders control;
  std::shared_ptr<SpanRecorder> spans = std::make_shared<SpanRecorder>();
  StepTracer tracer;
};

}  // namespace

TEST_CASE("an order begins behind the sums in which all ranks knew of it alone") {
  for (int64_t low = 0; low < 4; ++low)
    for (int64_t high = low; high < 4; ++high)
      for (int64_t first : {0, 3, 9})
        for (int64_t steps : {1, 4}) {
          TraceWindow window;
          CHECK_FALSE(window.has(6));
          const bool begins = window.agreed({low, high}, 5, first, steps);
          CHECK(begins == (low == high && low > 0));
          if (!begins) continue;
          CHECK(window.first_step() == std::max<int64_t>(6, first));
          CHECK(window.last_step() == window.first_step() + steps - 1);
          CHECK_FALSE(window.agreed({low, high}, 6, first, steps));  // it has begun
          CHECK(window.agreed({low + 1, low + 1}, 6, first, steps));
        }
  TraceOffer all{5, 5};
  for (const TraceOffer& offer : {TraceOffer{3, 3}, TraceOffer{8, 8}}) all.add(offer);
  CHECK(all.low == 3);
  CHECK(all.high == 8);
}

TEST_CASE("the steps of an order are recorded, written and reported") {
  Stage s;
  CHECK_FALSE(s.step(11));
  CHECK(s.step(12));
  CHECK(s.step(13));
  CHECK_FALSE(s.step(14));
  s.tracer.end(14, kWritesS);
  const auto results = s.control.taken();
  REQUIRE(results.size() == 1);
  CHECK(results[0].problem.empty());
  CHECK(results[0].number == 7);
  CHECK(results[0].first_step == 12);
  CHECK(results[0].last_step == 13);
  CHECK(results[0].spans == 2);
  const Recording recording = s.written();
  CHECK(recording.rank == 3);
  CHECK(recording.first_step == 12);
  CHECK(recording.last_step == 13);
  REQUIRE(recording.spans.size() == 2);
  CHECK(recording.spans[0].step == 12);
  CHECK(recording.spans[1].step == 13);
}

TEST_CASE("nothing begins while a rank does not know of the order") {
  Stage s;
  const TraceOffer other{0, 7};
  for (int64_t step = 1; step < 5; ++step) CHECK_FALSE(s.step(step, &other));
  CHECK_FALSE(s.step(5));
  CHECK(s.step(6));
}

TEST_CASE("a rank that does not record says nothing") {
  Stage s;
  s.control.order.ranks = {1, 2};
  for (int64_t step = 1; step < 6; ++step) CHECK_FALSE(s.step(step));
  s.tracer.end(5, kWritesS);
  CHECK(s.control.taken().empty());
}

TEST_CASE("a run that ends early writes what there is, or says that there is nothing") {
  Stage s;
  s.control.order.steps = 100;
  s.step(1), s.step(2), s.step(3);
  s.tracer.end(3, kWritesS);
  REQUIRE(s.control.taken().size() == 1);
  CHECK(s.control.taken()[0].last_step == 3);
  CHECK(s.written().spans.size() == 2);
  Stage late;
  late.step(1);
  late.tracer.end(1, kWritesS);
  REQUIRE(late.control.taken().size() == 1);
  CHECK(late.control.taken()[0].first_step == 2);
  CHECK(late.control.taken()[0].last_step == 1);
  CHECK(std::filesystem::is_empty(late.dir.path()));
}

TEST_CASE("another order takes the place of one that nobody waits for") {
  Stage s;
  s.step(1), s.step(2);
  s.control.order.number = 8;
  CHECK(s.step(3));  // still of order 7
  CHECK(s.step(4));
  s.step(5), s.step(6);
  s.tracer.end(6, kWritesS);
  REQUIRE(s.control.taken().size() == 1);
  CHECK(s.control.taken()[0].number == 8);
  CHECK(s.control.taken()[0].first_step == 4);
  CHECK(s.control.taken()[0].last_step == 5);
}

TEST_CASE("a window that ends while another order is known here alone goes into its own folder") {
  Stage s;
  std::filesystem::create_directory(s.dir / "next");
  const TraceOffer not_all{7, 8};
  s.step(1);
  s.control.order.number = 8;
  s.control.order.folder = s.dir / "next";
  for (int64_t step = 2; step <= 4; ++step) s.step(step, &not_all);
  s.tracer.end(4, kWritesS);
  REQUIRE(s.control.taken().size() == 1);
  CHECK(s.control.taken()[0].number == 7);
  CHECK(s.written().last_step == 3);
  CHECK(std::filesystem::is_empty(s.dir / "next"));
}

TEST_CASE("a folder that is gone is a problem, and no folder is made") {
  Stage s;
  s.control.order.folder = s.dir / "gone";
  for (int64_t step = 1; step < 5; ++step) s.step(step);
  s.tracer.end(4, kWritesS);
  REQUIRE(s.control.taken().size() == 1);
  CHECK_THAT(s.control.taken()[0].problem, Catch::Contains("gone is gone: the trace was given up"));
  CHECK(std::filesystem::is_empty(s.dir.path()));
}

TEST_CASE("a rank that still writes offers no new order, and the end has a limit") {
  Gate gate;
  ckpt::CountingFileSystem slow(real_file_system(), {.asked = [&] { gate.pass(); }});
  Stage s(slow);
  s.step(1), s.step(2), s.step(3), s.step(4);  // step 4 begins with the end of the window
  s.control.order.number = 9;
  CHECK(s.tracer.offered().high == 7);
  s.tracer.end(4, 0.01);
  CHECK(s.control.taken().empty());
  gate.open();
  s.tracer.end(4, kWritesS);
  REQUIRE(s.control.taken().size() == 1);
  CHECK(s.control.taken()[0].problem.empty());
  CHECK(s.tracer.offered().high == 9);
}
