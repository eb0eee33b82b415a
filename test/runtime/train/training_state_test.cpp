// Goal: a checkpoint's description gives back the state of the training that it was made of, and the decisions
//       of the trainer about evaluation and reports hold for every step and size.
// Method: the pure parts alone, over small domains.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/train/evaluation.h"
#include "runtime/train/state_info.h"
#include "runtime/train/step_report.h"

using namespace trainctl;

namespace {

JobSpec small_job() {
  JobSpec job;
  job.data.seq_len = 16;
  job.batch = {.global_sequences = 8, .micro_sequences = 2};
  job.parallelism.lanes = 2;
  job.schedule.total_steps = 100;
  return job;
}

}  // namespace

TEST_CASE("the state of the training comes back from its description") {
  const JobSpec job = small_job();
  const RankOptions options{.run_id = "calm-7F3K", .spec_hash = "0a1b", .epoch = 4};
  TrainingState state{.step = 12,
                      .start = {.step = 10, .samples = 1000, .tokens = 16000},
                      .bad_steps = {.total = 3, .in_a_row = 1},
                      .last_loss = 2.5};
  const ckpt::StateInfo info = state_info(state, job, options, "cpu v4", "[]");
  CHECK(info.run_id == "calm-7F3K");
  CHECK(info.epoch == 4);
  CHECK(info.step == 12);
  CHECK(info.tokens == 16000 + 2 * 8 * 16);
  CHECK(info.numerics == "cpu v4");
  CHECK(info.resolved_spec_json == "{}");
  const TrainingState back = training_state(info, false);
  CHECK(back.step == 12);
  // The start of the process that resumes is the step of the checkpoint.
  CHECK(back.start.step == 12);
  CHECK(back.start.samples == 1000 + 2 * 8);
  CHECK(back.start.tokens == info.tokens);
  CHECK(back.bad_steps.total == 3);
  CHECK(back.bad_steps.in_a_row == 1);
  CHECK(training_state(info, true).start.samples == 0);
  // A loss that is no number is not written as one.
  CHECK(try_parse_json(info.extra_json).at("loss") == 2.5);
  state.last_loss = NAN;
  CHECK(try_parse_json(state_info(state, job, options, "", "[]").extra_json).at("loss").is_null());
}

TEST_CASE("what was decided about the loss is in the description, and new data have lost no samples",
          "[loss]") {
  const JobSpec job = small_job();
  const Remedies remedies{.skipped = {{80, 16}, {104, 8}}, .rates = {{11, 20, 0.5}}};
  const TrainingState state{.step = 12, .start = {.step = 10, .samples = 1000}, .remedies = remedies};
  const ckpt::StateInfo info = state_info(state, job, {}, "cpu", "[]");
  CHECK(training_state(info, false).remedies == remedies);
  CHECK(training_state(info, true).remedies == Remedies{.rates = remedies.rates});
  CHECK(training_state(info, false).start.samples == 1000 + 2 * 8);  // trained ones
  CHECK(try_parse_json(info.extra_json).at("lr") == learning_rate(job.schedule, 11) * 0.5);
  // A run without decisions writes what it always wrote.
  CHECK(!try_parse_json(state_info({.step = 12}, job, {}, "cpu", "[]").extra_json).contains("remedies"));
  ckpt::StateInfo damaged = info;
  damaged.extra_json = R"({"samples": 8, "remedies": {"skipped": [{"first": "x"}]}})";
  CHECK_THROWS_AS(training_state(damaged, false), Error);
}

TEST_CASE("a checkpoint without a position in the data is refused, unless the data are new") {
  const ckpt::StateInfo info{.step = 5, .tokens = 80};
  CHECK_THROWS_AS(training_state(info, false), Error);
  CHECK(training_state(info, true).start.tokens == 80);
}

TEST_CASE("an evaluation reads whole micro-batches, the same with any lanes, and no more than asked for") {
  JobSpec job = small_job();
  for (job.parallelism.lanes = 1; job.parallelism.lanes <= 4; job.parallelism.lanes *= 2)
    for (const int64_t most : {0, 1, 7, 20})
      for (int64_t available = 1; available <= 40; ++available) {
        job.eval.max_sequences = most;
        const int64_t unit = 2, read = Evaluation(job).sequences(available);
        const int64_t limit = most > 0 ? std::min(most, available) : available;
        CAPTURE(unit, most, available);
        CHECK(read % unit == 0);
        CHECK(read >= unit);  // the data hold that much (Evaluation::check_size)
        if (limit >= unit) CHECK((read <= limit && read + unit > limit));
      }
}

TEST_CASE("the first and the last step are always shown; numbers of ranks only when asked for") {
  ObservabilitySpec spec;
  spec.log_every_steps = 10;
  spec.rank_metrics_every_steps = 0;
  for (int64_t step = 1; step <= 25; ++step) {
    CHECK(reports_due(spec, step, 25, 8).log == (step == 1 || step == 10 || step == 20 || step == 25));
    CHECK_FALSE(reports_due(spec, step, 25, 8).ranks);
  }
  spec.rank_metrics_every_steps = 4;
  for (int64_t step = 1; step <= 25; ++step)
    CHECK(reports_due(spec, step, 25, 8).ranks == (step % 4 == 0 || step == 25));
}

TEST_CASE("of many ranks fewer steps have times, so that the supervisor gets no more a step") {
  ObservabilitySpec spec;
  spec.rank_metrics_every_steps = 0;
  constexpr int64_t kLast = 100001;
  for (const int ranks : {1, 8, 4096, 4097, 16384, 100000})
    for (const int64_t every : {1, 10}) {
      spec.log_every_steps = every;
      int64_t timed = 0;
      for (int64_t step = 1; step <= kLast; ++step) {
        const ReportsDue due = reports_due(spec, step, kLast, ranks);
        CHECK((due.log || !due.times));
        if (step == 1 || step == kLast) CHECK(due.times);
        if (ranks <= kMostTimesAStep) CHECK(due.times == due.log);
        timed += due.times;
      }
      CAPTURE(ranks, every, timed);
      CHECK(double(timed) / double(kLast) * ranks <= 1.02 * kMostTimesAStep);
      // And not much fewer than that.
      if (every == 1) CHECK(double(timed) / double(kLast) * ranks >= std::min(ranks, kMostTimesAStep / 2));
    }
  // A line of every rank's numbers is made when it is asked for.
  spec.rank_metrics_every_steps = 3;
  CHECK(reports_due(spec, 3, kLast, 100000).times);
}
