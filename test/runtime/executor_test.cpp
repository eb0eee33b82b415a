// Goal: a pipeline's receive begins as soon as its memory is free, not when its turn in the program comes, under every schedule; and each is
// begun once, in the order of its messages, into memory that no other micro-batch uses.
// Method: the plan of posts is checked by walking every program of every small shape; the executor runs one stage of a tiny model on the CPU
// with edges that record what they are asked for, and the log must show computation between a receive's beginning and the wait for it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "runtime/base/error.h"
#include "runtime/train/executor.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Instruction;
using parallel::Op;
using parallel::Schedule;

namespace {

template <typename With>
void for_each_shape(With with) {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved, Schedule::zb_h1})
    for (int stages = 2; stages <= 5; ++stages)
      for (int virtual_stages = 1; virtual_stages <= 3; ++virtual_stages)
        for (int micro_batches = 1; micro_batches <= 10; ++micro_batches) {
          const parallel::PipelineShape shape{schedule, stages, virtual_stages, micro_batches};
          if (!parallel::shape_problem(shape)) with(shape, parallel::make_programs(shape));
        }
}

bool is_receive(Op op) { return op == Op::receive_activation || op == Op::receive_gradient; }

/// Walks a program with its posts and returns how many receives began before the instruction in front of their own.
int walk(const parallel::PipelineShape& shape, const parallel::Program& program) {
  const SlotPlan slots = plan_slots(program, shape.virtual_stages, shape.micro_batches);
  const auto posts = plan_posts(program, slots);
  REQUIRE(posts.size() == program.size());
  std::map<std::pair<int, int>, int> slot_holder, input_holder;   // (chunk, slot), (chunk, input): the micro-batch whose memory it is
  std::set<std::pair<int, int>> forwarded;
  std::set<size_t> begun;
  std::map<Op, size_t> last;
  int early = 0;
  const auto slot_of = [&](const Instruction& i) { return std::pair(i.chunk, slots.slot_of[size_t(i.chunk)][size_t(i.micro_batch)]); };
  const auto input_of = [&](const Instruction& i) { return std::pair(i.chunk, slots.input_of[size_t(i.chunk)][size_t(i.micro_batch)]); };
  for (size_t at = 0; at < program.size(); ++at) {
    for (const size_t receive : posts[at]) {
      const Instruction& i = program[receive];
      REQUIRE(is_receive(i.op));
      REQUIRE(receive >= at);
      REQUIRE(begun.insert(receive).second);
      REQUIRE((!last.count(i.op) || last[i.op] < receive));   // the order of its kind's messages
      last[i.op] = receive;
      if (i.op == Op::receive_activation) {
        REQUIRE((input_of(i).second >= 0 && input_of(i).second <= slots.slots[size_t(i.chunk)]));
        REQUIRE(input_holder.emplace(input_of(i), i.micro_batch).second);
      }
      if (i.op == Op::receive_gradient) REQUIRE(forwarded.count({i.chunk, i.micro_batch}));
      early += receive > at + 1;
    }
    const Instruction& i = program[at];
    if (is_receive(i.op)) REQUIRE(begun.count(at));
    if (i.op == Op::forward) {
      REQUIRE(slot_holder.emplace(slot_of(i), i.micro_batch).second);
      forwarded.insert({i.chunk, i.micro_batch});
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
    REQUIRE(transfers.size() == 1);
    log_.push_back(fmt::format("{} {} begins", name_, begun_++));
    return parallel::Ticket(std::make_unique<parallel::Ticket::State>());
  }
  bool test(parallel::Ticket&) override { return true; }
  void wait(parallel::Ticket& ticket, const char*) override {
    REQUIRE(ticket);
    ticket.reset();
    log_.push_back(fmt::format("{} {} is waited for", name_, waited_++));
  }
  std::unique_ptr<Communicator> split(int, int, const std::string&) override { return nullptr; }
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

/// What stage `stage` of two does in two steps.
std::vector<std::string> log_of(Schedule schedule, int stage) {
  const TempDir dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = schedule;
  job.batch.global_sequences = 4;
  const parallel::MeshPosition at{.pp = stage};
  auto world = parallel::make_thread_world(1, 10);
  const auto backend = kernels::make_cpu_backend(1);
  const auto stream = backend->create_stream();
  const ParamTable table = parameter_table(job.model, job.optimizer);
  StageUses uses = stage_uses(table, job, at);
  parallel::TensorParallel tp{*world[0], *backend, *stream, false};
  parallel::ShardedParams params(uses.uses, chunk_grids(table, 1).grids, sharding_options(job, at), *world[0], *world[0], nullptr, *backend,
                                 *stream);
  const parallel::PipelineShape shape = pipeline_shape(job);
  const parallel::Program program = pipeline_programs(job)[size_t(stage)];
  SlotPlan slots = plan_slots(program, 1, shape.micro_batches);
  StageModel model(job, std::move(uses), {slots.slots, splits_backward(job), 1.0f}, params, tp, *backend, *stream);
  std::vector<std::string> log;
  PipelineEdges edges;
  if (stage == 0) {
    edges.activation_out = std::make_unique<RecordingEdge>("sent activation", 0, log);
    edges.gradient_in = std::make_unique<RecordingEdge>("gradient", 1, log);
  } else {
    edges.activation_in = std::make_unique<RecordingEdge>("activation", 1, log);
    edges.gradient_out = std::make_unique<RecordingEdge>("sent gradient", 0, log);
  }
  const auto doing = [&](const Instruction& i) {
    if (i.op == Op::forward) log.push_back(fmt::format("forward {}", i.micro_batch));
    if (i.op == Op::backward_input) log.push_back(fmt::format("backward {}", i.micro_batch));
  };
  Executor executor(shape, stage, program, std::move(slots), model, edges, doing, [] { return 0.0; });
  const std::vector<int32_t> tokens(size_t(job.data.seq_len), 3);
  std::vector<MicroBatch> mbs = micro_batches(job);
  for (MicroBatch& mb : mbs) mb.tokens = mb.targets = tokens.data();
  std::vector<double> losses(mbs.size());
  ExecutorTimes times;
  params.publish();
  executor.run(mbs, losses.data(), times);
  return log;
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
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved, Schedule::zb_h1}) CHECK(early[schedule] > 100);
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
