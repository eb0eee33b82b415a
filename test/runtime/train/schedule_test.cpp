// Goal: what varies in time is a pure function of the step, and the programs the trainer runs are correct ones.
// Method: learning rates against the golden curves and by hand; sample indices of a step partition it for every width; the programs
// of every small job pass the checker; slots never collide.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <map>

#include "runtime/base/json.h"
#include "runtime/train/schedule.h"
#include "test/support/merged_schedule.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using parallel::kMergedSchedule;
using parallel::Schedule;

namespace {

/// From its first instruction to its last a micro-batch has its slot for itself.
void check_slots(const parallel::Program& program, const SlotPlan& plan) {
  const auto computes = [](const parallel::Instruction& i) { return i.op != parallel::Op::reduce && i.op != parallel::Op::step; };
  std::map<std::pair<int, int>, size_t> last;   // (virtual stage, micro-batch) -> index of its last instruction
  for (size_t i = 0; i < program.size(); ++i)
    if (computes(program[i])) last[{program[i].virtual_stage, program[i].micro_batch}] = i;
  std::map<std::pair<int, int>, int> holder;    // (virtual stage, slot) -> micro-batch
  for (size_t i = 0; i < program.size(); ++i) {
    const parallel::Instruction& at = program[i];
    if (!computes(at)) continue;
    const std::pair<int, int> place{at.virtual_stage, plan.slot_of[size_t(at.virtual_stage)][size_t(at.micro_batch)]};
    const auto [it, taken] = holder.try_emplace(place, at.micro_batch);
    REQUIRE(it->second == at.micro_batch);
    if (last[{at.virtual_stage, at.micro_batch}] == i) holder.erase(place);
  }
}

/// A transport may run the messages of an edge one after another and know no tags: both ends must name them in one order.
/// An edge joins two stages; in a V, two virtual stages.
void check_edges(const parallel::PipelineShape& shape, const std::vector<parallel::Program>& programs, bool activation) {
  const parallel::VirtualStages order = virtual_stages_of(shape);
  using Edge = std::tuple<int, int, int>;  // from, to, local virtual stage in a V
  std::map<Edge, std::vector<std::pair<int, int>>> sent,
      received;  // (receiving global virtual stage, micro-batch)
  for (int stage = 0; stage < shape.stages; ++stage)
    for (const parallel::Instruction& i : programs[size_t(stage)]) {
      const int c = order.global_of(stage, i.virtual_stage);
      const auto edge = [&](int from, int to) {
        return Edge{order.stage_of(from), order.stage_of(to), order.v_shaped ? order.local_of(to) : 0};
      };
      const int to = c + (activation ? 1 : -1), from = c - (activation ? 1 : -1);
      if (i.op == (activation ? parallel::Op::send_activation : parallel::Op::send_gradient))
        sent[edge(c, to)].emplace_back(to, i.micro_batch);
      if (i.op == (activation ? parallel::Op::receive_activation : parallel::Op::receive_gradient))
        received[edge(from, c)].emplace_back(c, i.micro_batch);
    }
  CHECK(sent == received);
  CHECK(sent.empty() == (shape.stages == 1));
}

}  // namespace

TEST_CASE("learning rates of the golden curves") {
  for (const std::string name : {"gpt2-tiny", "llama-tiny"}) {
    const JobSpec job = test::golden_job(name);
    const auto curve = Json::parse(
        std::ifstream(std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/" + name + "/curve.json"));
    for (size_t step = 0; step < curve.size(); ++step)
      CHECK(learning_rate(job.schedule, int64_t(step)) ==
            Approx(curve[step]["lr"].get<double>()).epsilon(test::tolerance::kLearningRate));
  }
}

TEST_CASE("learning rates by hand") {
  ScheduleSpec s{.total_steps = 10, .warmup_steps = 2, .decay_steps = 4, .lr = 1, .min_lr = 0.2};
  const auto all = [&](LrSchedule type) {
    s.type = type;
    std::vector<double> rates;
    for (int64_t step = 0; step < 10; ++step) rates.push_back(learning_rate(s, step));
    return rates;
  };
  const auto near = [](const std::vector<double>& a, const std::vector<double>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](double x, double y) { return std::abs(x - y) < test::tolerance::kFormula; });
  };
  CHECK(near(all(LrSchedule::constant), {0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
  CHECK(near(all(LrSchedule::linear), {0.5, 1, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3}));
  CHECK(near(all(LrSchedule::wsd), {0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2}));
}

TEST_CASE("a step's samples are shared out whole and in lane order at every width") {
  const test::TemporaryFolder dir;
  JobSpec job = test::tiny_job(Family::gpt2, dir.path());
  job.batch.global_sequences = 16;
  job.parallelism.lanes = 8;
  for (const int zero : {1, 2})
    for (int dp = 1; dp <= 8; ++dp)
      for (const int64_t step : {0, 1, 7}) {
        job.parallelism.data = dp;
        job.parallelism.zero_stage = zero;
        std::vector<uint64_t> all;
        for (int r = 0; r < dp; ++r) {
          auto mine =
              sample_indices(job.batch, job.parallelism, DataPosition{}.samples_at(job.batch, step), r);
          CHECK(int64_t(mine.size()) == job.micro_batches_of(r) * job.batch.micro_sequences);
          CHECK(job.micro_batches_of(r) - StepCut(job).counted_micro_batches_of(r) <=
                job.micro_batches_per_lane());
          for (const uint64_t sample : mine) CHECK(sample / 16 == uint64_t(step));  // no other step's data
          mine.resize(size_t(StepCut(job).counted_micro_batches_of(r) * job.batch.micro_sequences));
          all.insert(all.end(), mine.begin(), mine.end());
        }
        if (zero == 2 && dp > 1) std::sort(all.begin(), all.end());  // by time
        REQUIRE(all.size() == 16);
        for (uint64_t i = 0; i < 16; ++i) CHECK(all[i] == uint64_t(step) * 16 + i);
      }
}

TEST_CASE("where samples are left out, the steps share out the others at every width", "[loss]") {
  const test::TemporaryFolder dir;
  JobSpec job = test::tiny_job(Family::gpt2, dir.path());
  job.batch.global_sequences = 8;
  job.parallelism.lanes = 4;
  const std::vector<SkippedSamples> skipped = {{24, 16}, {44, 4}};
  const TrainedSamples trained(skipped);
  for (int dp = 1; dp <= 4; ++dp) {
    job.parallelism.data = dp;
    std::vector<uint64_t> all;
    for (int64_t step = 0; step < 8; ++step)
      for (int r = 0; r < dp; ++r) {
        const int64_t first = DataPosition{}.samples_at(job.batch, step);
        const auto mine = sample_indices(job.batch, job.parallelism, first, r, trained);
        all.insert(all.end(), mine.begin(), mine.end());
      }
    std::vector<uint64_t> expected;
    for (uint64_t i = 0; expected.size() < 64; ++i)
      if (i < 24 || (i >= 40 && i < 44) || i >= 48) expected.push_back(i);
    CHECK(all == expected);
  }
}

TEST_CASE("a lowered rate is the schedule's, times the factors of the decisions that hold", "[loss]") {
  const ScheduleSpec s{.total_steps = 10, .lr = 1, .type = LrSchedule::constant};
  const Remedies remedies{.rates = {{3, 4, 0.5}, {5, 1, 0.5}}};
  for (int64_t step = 0; step < 10; ++step) {
    const double expected = step == 4 ? 0.25 : step >= 2 && step < 6 ? 0.5 : 1;
    CHECK(learning_rate(s, step, remedies) == expected);
    CHECK(learning_rate(s, step, {}) == learning_rate(s, step));
  }
}

TEST_CASE("the programs that the trainer runs pass the checker and their slots never collide") {
  const test::TemporaryFolder dir;
  JobSpec job = test::tiny_job(Family::gpt2, dir.path());
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved,
                                  Schedule::zb_h1, Schedule::zb_v, Schedule::dualpipev, kMergedSchedule})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
      for (int stages = 1; stages <= 6; ++stages)
        for (int virtual_stages = 1; virtual_stages <= 3; ++virtual_stages)
          for (int micro = 1; micro <= 12; ++micro) {
            job.parallelism.schedule = schedule;
            job.recompute = recompute;
            job.parallelism.pipeline = stages;
            job.parallelism.virtual_stages = virtual_stages;
            job.batch.global_sequences = micro;
            const parallel::PipelineShape shape = pipeline_shape(job, 0);
            if (parallel::shape_problem(shape).exists() || (stages == 1 && virtual_stages > 1)) continue;
            CAPTURE(parallel::name_of(schedule), int(recompute), stages, virtual_stages, micro);
            const auto programs = pipeline_programs(shape, StepCut(job).splits_backward);
            const parallel::CheckResult checked = parallel::check_programs(shape, programs);
            REQUIRE(checked.problem.text_or_empty() == "");
            for (int stage = 0; stage < stages; ++stage) {
              const SlotPlan plan = plan_slots(programs[size_t(stage)], virtual_stages, micro);
              int slots = 0;
              for (const int n : plan.slots) slots += n;
              CHECK(slots >= checked.peak_in_flight[size_t(stage)]);
              check_slots(programs[size_t(stage)], plan);
            }
            for (const bool activation : {true, false}) check_edges(shape, programs, activation);
          }
}

TEST_CASE("what another global batch means for the learning rate") {
  for (const BatchLrRule rule : {BatchLrRule::none, BatchLrRule::linear, BatchLrRule::square_root})
    CHECK(batch_lr_factor(rule, 4096, 4096) == 1);  // exactly: the same bits
  CHECK(batch_lr_factor(BatchLrRule::none, 256, 1024) == 1);
  CHECK(batch_lr_factor(BatchLrRule::linear, 256, 1024) == 4);
  CHECK(batch_lr_factor(BatchLrRule::linear, 1024, 256) == 0.25);
  CHECK(batch_lr_factor(BatchLrRule::square_root, 256, 1024) == 2);
  CHECK(batch_lr_factor(BatchLrRule::square_root, 256, 512) == std::sqrt(2.0));
}
