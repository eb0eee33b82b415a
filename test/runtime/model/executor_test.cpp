// Goal: a pipeline's receive begins as soon as its memory is free, not when its turn in the program comes,
// under every schedule; and each is begun once, in the order of its messages, into memory that no other
// micro-batch uses. Method: the plan of posts is checked by walking every program of every small shape; the
// executor runs one stage of a tiny model on the CPU with edges that record what they are asked for, and the
// log must show computation between a receive's beginning and the wait for it. Programs in which one action
// is left out are run in child processes, which an invariant of the executor or the parameters must end.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <map>
#include <set>

#include "runtime/base/error.h"
#include "runtime/model/executor.h"
#include "test/support/child.h"
#include "test/support/merged_schedule.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Instruction;
using parallel::kMergedSchedule;
using parallel::Op;
using parallel::Schedule;

namespace {

template <typename With>
void for_each_shape(With with) {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved,
                                  Schedule::zb_h1, Schedule::zb_v, Schedule::dualpipev, kMergedSchedule})
    for (int stages = 2; stages <= 5; ++stages)
      for (int virtual_stages = 1; virtual_stages <= 3; ++virtual_stages)
        for (int micro_batches = 1; micro_batches <= 10; ++micro_batches) {
          const parallel::PipelineShape shape{schedule, stages, virtual_stages, micro_batches};
          if (parallel::shape_problem(shape).is_none()) with(shape, parallel::make_programs(shape));
        }
}

bool is_receive(Op op) { return op == Op::receive_activation || op == Op::receive_gradient; }

/// Walks a program with its posts and returns how many receives began before the instruction in front of their own.
int walk(const parallel::PipelineShape& shape, const parallel::Program& program) {
  const SlotPlan slots = plan_slots(program, shape.virtual_stages, shape.micro_batches);
  const bool own_edges = virtual_stages_of(shape).v_shaped;
  const auto posts = plan_posts(program, slots, own_edges);
  REQUIRE(posts.size() == program.size());
  std::map<std::pair<int, int>, int> slot_holder,
      input_holder;   // (virtual_stage, slot), (virtual_stage, input): the micro-batch whose memory it is
  std::set<std::pair<int, int>> forwarded;
  std::set<size_t> begun;
  std::map<std::pair<Op, int>, size_t> last;
  int early = 0;
  const auto slot_of = [&](const Instruction& i) {
    return std::pair(i.virtual_stage, slots.slot_of[size_t(i.virtual_stage)][size_t(i.micro_batch)]);
  };
  const auto input_of = [&](const Instruction& i) {
    return std::pair(i.virtual_stage, slots.input_of[size_t(i.virtual_stage)][size_t(i.micro_batch)]);
  };
  for (size_t at = 0; at < program.size(); ++at) {
    for (const size_t receive : posts[at]) {
      const Instruction& i = program[receive];
      REQUIRE(is_receive(i.op));
      REQUIRE(receive >= at);
      REQUIRE(begun.insert(receive).second);
      const std::pair edge{i.op, own_edges ? i.virtual_stage : 0};
      REQUIRE((!last.count(edge) || last[edge] < receive));  // the order of its kind's messages
      last[edge] = receive;
      if (i.op == Op::receive_activation) {
        REQUIRE((input_of(i).second >= 0 && input_of(i).second <= slots.slots[size_t(i.virtual_stage)]));
        REQUIRE(input_holder.emplace(input_of(i), i.micro_batch).second);
      }
      if (i.op == Op::receive_gradient) REQUIRE(forwarded.count({i.virtual_stage, i.micro_batch}));
      early += receive > at + 1;
    }
    const Instruction& i = program[at];
    if (is_receive(i.op)) REQUIRE(begun.count(at));
    if (i.op == Op::pass_activation) REQUIRE(input_holder.emplace(input_of(i), i.micro_batch).second);
    if (i.op == Op::forward) {
      REQUIRE(slot_holder.emplace(slot_of(i), i.micro_batch).second);
      forwarded.insert({i.virtual_stage, i.micro_batch});
    }
    if (i.op != Op::backward_weight) continue;
    slot_holder.erase(slot_of(i));
    input_holder.erase(input_of(i));
  }
  return early;
}

/// One end of an edge that carries nothing and writes down what it is asked for.
class RecordingEdge final : public parallel::Communicator {
 public:
  RecordingEdge(std::string name, int rank, std::vector<std::string>& log) : name_(std::move(name)), rank_(rank), log_(log) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  const std::string& name() const override { return name_; }
  parallel::Ticket exchange(std::span<const parallel::Transfer> transfers, kernels::Stream*) override {
    REQUIRE((transfers.size() == 1 || name_ == "dp"));   // a message, or a bucket
    log_.push_back(fmt::format("{} {} begins", name_, begun_++));
    return parallel::Ticket(std::make_unique<parallel::Ticket::State>());
  }
  bool test(parallel::Ticket&) override { return true; }
  void wait(parallel::Ticket& ticket, const char*) override {
    REQUIRE(ticket);
    ticket.reset();
    log_.push_back(fmt::format("{} {} is waited for", name_, waited_++));
  }
  std::unique_ptr<Communicator> subgroup(const parallel::Subgroup&) override { return nullptr; }
  std::unique_ptr<Communicator> twin() override { return nullptr; }
  int world_rank(int r) const override { return r; }
  double deadline_s() const override { return 1; }
  void set_deadline(double) override {}
  double waited_s() const override { return 0; }
  uint64_t sent_bytes() const override { return 0; }

 private:
  std::string name_;
  int rank_, begun_ = 0, waited_ = 0;
  std::vector<std::string>& log_;
};

/// One stage of two of a tiny model, with a data-parallel peer that says nothing and edges that carry
/// nothing.
class OneStage {
 public:
  /// `folder`: for its token file, of the caller, who lives on where a program ends this process.
  OneStage(const std::string& folder, Schedule schedule, int stage, int width)
      : job_(tiny_job(Family::llama, folder)) {
    job_.parallelism.pipeline = 2;
    job_.parallelism.data = width;
    job_.parallelism.schedule = schedule;
    job_.parallelism.lanes = width;
    job_.batch.global_sequences = 4 * width;
    const parallel::MeshPosition at{.pp = stage};
    const ModelTables tables = model_tables(job_);
    StageUses uses = stage_uses(tables, job_, at);
    if (width > 1) dp_ = std::make_unique<RecordingEdge>("dp", 0, log);
    params_ = std::make_unique<parallel::ShardedParams>(
        uses.uses, tables.grids.grids, sharding_options(job_, job_.optimizer.muon),
        parallel::AxisGroups(dp_ ? *dp_ : *world_[0], *world_[0], nullptr), *backend_, *stream_);
    program = stage_program(job_, at, uses);
    model_ = std::make_unique<StageModel>(
        std::move(uses), StageModel::Options{program.slots.slots, StepCut(job_).splits_backward, 1.0f},
        *params_, tp_, *backend_, *stream_);
    if (stage == 0) {
      edges_.activation_out = std::make_unique<RecordingEdge>("sent activation", 0, log);
      edges_.gradient_in = std::make_unique<RecordingEdge>("gradient", 1, log);
    } else {
      edges_.activation_in = std::make_unique<RecordingEdge>("activation", 1, log);
      edges_.gradient_out = std::make_unique<RecordingEdge>("sent gradient", 0, log);
    }
  }

  void run(int steps) {
    const auto doing = [&](const parallel::Action& a) {
      if (a.act == parallel::Act::forward) log.push_back(fmt::format("forward {}", a.micro_batch));
      if (a.act == parallel::Act::backward) log.push_back(fmt::format("backward {}", a.micro_batch));
    };
    const auto step = [&] {
      params_->step({});
      return true;
    };
    Executor executor(program, *model_, *params_, edges_, {doing, [] { return 0.0; }, step});
    const std::vector<int32_t> tokens(size_t(job_.data.seq_len), 3);
    std::vector<MicroBatch> mbs = micro_batches(job_, 0);
    for (MicroBatch& mb : mbs) mb = with_ids(mb, tokens.data());
    std::vector<double> losses(mbs.size());
    ExecutorTimes times;
    params_->publish();
    for (int i = 0; i < steps; ++i) executor.run(mbs, losses.data(), times);
  }

  StageProgram program;
  std::vector<std::string> log;

 private:
  JobSpec job_;
  std::vector<std::unique_ptr<parallel::Communicator>> world_ = parallel::make_thread_world(1, 10);
  std::unique_ptr<kernels::Backend> backend_ = kernels::make_cpu_backend(1);
  std::unique_ptr<kernels::Stream> stream_ = backend_->create_stream();
  parallel::TensorParallel tp_{*world_[0], *backend_, *stream_, false};
  std::unique_ptr<RecordingEdge> dp_;
  std::unique_ptr<parallel::ShardedParams> params_;
  std::unique_ptr<StageModel> model_;
  PipelineEdges edges_;
};

/// What stage `stage` of two does in a step.
std::vector<std::string> log_of(Schedule schedule, int stage) {
  const TemporaryFolder dir;
  OneStage one(dir.path(), schedule, stage, 1);
  one.run(1);
  return one.log;
}

/// What a child process writes to its standard error in which one action is left out, ended by an invariant;
/// or "ended well".
std::string end_without(Schedule schedule, int stage, parallel::Act act) {
  const TemporaryFolder dir;
  const std::string path = dir.path() + "/stderr";
  const pid_t child = fork();
  if (child == 0) {
    if (freopen(path.c_str(), "w", stderr) == nullptr) _exit(3);
    std::signal(SIGABRT, SIG_DFL);   // not the test framework's
    OneStage one(dir.path(), schedule, stage, 2);
    parallel::StepProgram& actions = one.program.actions;
    const auto at =
        std::find_if(actions.begin(), actions.end(), [&](const parallel::Action& a) { return a.act == act; });
    if (at == actions.end()) _exit(4);
    actions.erase(at);
    one.run(2);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status))
    return WEXITSTATUS(status) == 0 ? "ended well" : fmt::format("status {}", WEXITSTATUS(status));
  return read_file(path);
}

}  // namespace

TEST_CASE("every receive begins once, in order, into free memory, under every schedule", "[pipeline]") {
  int programs = 0;
  std::map<Schedule, int> early;
  for_each_shape([&](const parallel::PipelineShape& shape, const std::vector<parallel::Program>& all) {
    CAPTURE(name_of(shape.schedule), shape.stages, shape.virtual_stages, shape.micro_batches);
    REQUIRE(parallel::check_programs(shape, all).ok());
    for (const parallel::Program& program : all) {
      early[shape.schedule] += walk(shape, program);
      ++programs;
    }
  });
  CHECK(programs > 400);
  for (const Schedule schedule :
       {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved, Schedule::zb_h1, kMergedSchedule})
    CHECK(early[schedule] > 100);
}

TEST_CASE("the executor begins receives before the computation that does not need them", "[pipeline]") {
  const auto place = [](const std::vector<std::string>& log, const std::string& line) {
    const auto at = std::find(log.begin(), log.end(), line);
    CAPTURE(line, log);
    REQUIRE(at != log.end());
    return at - log.begin();
  };
  const auto log = log_of(Schedule::one_f_one_b, 0);
  for (int i = 0; i < 3; ++i) {
    CHECK(place(log, fmt::format("sent activation {} begins", i)) < place(log, fmt::format("gradient {} begins", i)));
    CHECK(place(log, fmt::format("gradient {} begins", i)) < place(log, fmt::format("forward {}", i + 1)));
    CHECK(place(log, fmt::format("forward {}", i + 1)) < place(log, fmt::format("gradient {} is waited for", i)));
    CHECK(place(log, fmt::format("gradient {} is waited for", i)) < place(log, fmt::format("backward {}", i)));
  }
  // The last stage holds one micro-batch; the next one's input comes while it computes.
  const auto one = log_of(Schedule::one_f_one_b, 1);
  for (int i = 0; i < 3; ++i) {
    CHECK(place(one, fmt::format("activation {} begins", i + 1)) < place(one, fmt::format("forward {}", i)));
    CHECK(place(one, fmt::format("backward {}", i)) < place(one, fmt::format("activation {} is waited for", i + 1)));
  }
  const auto last = log_of(Schedule::gpipe, 1);
  for (int i = 0; i < 4; ++i) {
    CHECK(place(last, fmt::format("activation {} begins", i)) < place(last, "activation 0 is waited for"));
    CHECK(place(last, fmt::format("activation {} is waited for", i)) < place(last, fmt::format("forward {}", i)));
  }
}

TEST_CASE("the executor waits, releases, gathers and reduces where the program says so, and nowhere else",
          "[pipeline]") {
  using parallel::Act;
  const auto says = [](int stage, Act act, const char* what, Schedule schedule = Schedule::one_f_one_b) {
    CAPTURE(stage, name_of(act));
    CHECK_THAT(end_without(schedule, stage, act), Catch::Contains(what));
  };
  says(1, Act::post_activation, "wait_activation of virtual stage 0 micro-batch 0: it was not posted");
  says(1, Act::wait_activation,
       "forward of virtual stage 0 micro-batch 0 part 0: what it reads was not waited for");
  says(0, Act::post_gradient, "wait_gradient of virtual stage 0 micro-batch 0: it was not posted");
  says(0, Act::wait_gradient, "backward of virtual stage 0 micro-batch 0: what it reads was not waited for");
  says(0, Act::release_activation, "what it overwrites was not released");
  says(1, Act::release_gradient, "what it overwrites was not released");
  says(0, Act::wait_weights, "the weights of virtual stage 0 part 0 were not taken since they changed");
  says(0, Act::reduce, "was reduced 0 of 1 times");
  says(0, Act::sum, "the gradients were not summed");
  says(0, Act::gather, "use 0 was not gathered");
  says(1, Act::wait_weights, "were not taken since they changed", Schedule::zb_h1);
  says(1, Act::reduce, "was reduced 0 of 1 times", Schedule::zb_h1);
}
