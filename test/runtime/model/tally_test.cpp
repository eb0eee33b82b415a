// Goal: what the tally twins count of a step is what a real step computes and sends: op by op, shape by
// shape, message by message. Method: whole runs on rank threads whose device and communicators count, over
// every (tp, dp, pp, virtual stages, schedule, ZeRO stage) of at most 8 ranks with each kind of
// recomputation; two steps less one step is compared exactly with the tally of every rank. FLOPs of a model
// are compared with the formula of the literature for every preset, the plan's traffic with the tally of all
// micro-batches.
#include <catch2/catch.hpp>

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/model/flops.h"
#include "runtime/plan/plan.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/parse.h"
#include "test/support/described_models.h"
#include "test/support/merged_schedule.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::kMergedSchedule;
using parallel::Schedule;
using parallel::TrafficGroup;

namespace {

/// The group of a communicator of a real mesh, by the name that it has in messages.
TrafficGroup traffic_group_of(const std::string& name) {
  if (name.find(", activations between") != std::string::npos) return TrafficGroup::activations;
  if (name.find(", gradients between") != std::string::npos) return TrafficGroup::gradients;
  if (name.starts_with("tp group")) return TrafficGroup::tensor;
  if (name.starts_with("dp group")) return TrafficGroup::data;
  if (name.starts_with("cp group")) return TrafficGroup::context;
  if (name.starts_with("expert data group")) return TrafficGroup::data;
  if (name.starts_with("expert group")) return TrafficGroup::experts;
  return name.starts_with("tied embedding") ? TrafficGroup::tied_embedding : TrafficGroup::other;
}

/// What the ranks of a run count.
struct Counted {
  std::vector<StepTally> ranks;

  explicit Counted(const JobSpec& job, int64_t steps) : ranks(size_t(job.mesh().world_size())) {
    ThreadRunOptions options{.dir = "", .max_steps = steps};
    options.make_backend = [&](int rank) {
      return kernels::make_counting_backend(kernels::make_cpu_backend(1), ranks[size_t(rank)].work);
    };
    options.make_world = [&](std::unique_ptr<parallel::Communicator> world, kernels::Backend&) {
      parallel::TrafficTally& tally = ranks[size_t(world->rank())].traffic;
      return parallel::make_counting_communicator(std::move(world), traffic_group_of, tally);
    };
    run_on_threads(job, options);
  }
};

/// more - less; what is equal in both is left out.
StepTally difference(const StepTally& more, const StepTally& less) {
  StepTally result;
  for (const auto& [shape, count] : more.work.ops) {
    const auto found = less.work.ops.find(shape);
    kernels::OpCount rest = count;
    if (found != less.work.ops.end()) {
      rest.calls -= found->second.calls;
      rest.flops -= found->second.flops;
      rest.attention_flops -= found->second.attention_flops;
      rest.bytes -= found->second.bytes;
      rest.apart_bytes -= found->second.apart_bytes;
    }
    if (rest.calls > 0) result.work.ops[shape] = rest;
  }
  for (const auto& [key, times] : more.traffic.messages) {
    const auto found = less.traffic.messages.find(key);
    const uint64_t rest = times - (found == less.traffic.messages.end() ? 0 : found->second);
    if (rest > 0 && key.group != TrafficGroup::other) result.traffic.messages[key] = rest;
  }
  return result;
}

std::string text_of(const kernels::WorkTally& work) {
  std::string text;
  for (const auto& [s, c] : work.ops)
    text += fmt::format("{} {}x{}x{}: {} {} {}\n", s.op, s.m, s.n, s.k, c.calls, c.flops, c.bytes);
  return text;
}
std::string text_of(const parallel::TrafficTally& traffic) {
  std::string text;
  for (const auto& [k, n] : traffic.messages)
    text += fmt::format("{} {} {} {} bytes: {}\n", word_of(k.group), int(k.way), k.peer, k.bytes, n);
  return text;
}

void check(JobSpec job) {
  job.observability.state_digest_every_steps = 0;  // a digest is not of every step
  const Counted one(job, 1), two(job, 2);
  const ModelTables tables = model_tables(job);
  for (int rank = 0; rank < job.mesh().world_size(); ++rank) {
    CAPTURE(rank);
    const StepTally real = difference(two.ranks[size_t(rank)], one.ranks[size_t(rank)]);
    const StepTally tally = tally_step({job, device_of_kind(job, DeviceKind::cpu), tables},
                                       parallel::position_of(job.mesh(), rank), true);
    REQUIRE(text_of(tally.work) == text_of(real.work));
    REQUIRE(text_of(tally.traffic) == text_of(real.traffic));
    REQUIRE(tally.work.flops() > 0);
  }
}

struct Mesh {
  int tp, dp, pp, virtual_stages;
  Schedule schedule;
};
std::vector<Mesh> meshes() {
  std::vector<Mesh> all;
  for (const int tp : {1, 2, 4})
    for (const int dp : {1, 2, 4})
      for (const int pp : {1, 2, 3, 4}) {
        if (tp * dp * pp > 8) continue;
        for (const Schedule s : {Schedule::one_f_one_b, Schedule::gpipe, Schedule::zb_h1})
          all.push_back({tp, dp, pp, 1, s});
        if (pp == 2) all.push_back({tp, dp, pp, 2, Schedule::interleaved});
      }
  return all;
}

}  // namespace

TEST_CASE("the tally of every rank's step is what the rank computes and sends", "[tally]") {
  const TemporaryFolder dir;
  int variant = 0;
  for (const Mesh& m : meshes())
    for (int kind = 0; kind < 6; ++kind) {
      const int zero = (variant / 7 + kind) % 4;
      JobSpec job = tiny_job((variant / 6 + kind) % 2 == 0 ? Family::gpt2 : Family::llama, dir.path());
      job.parallelism.tensor = m.tp;
      job.parallelism.data = m.dp;
      job.parallelism.pipeline = m.pp;
      job.parallelism.virtual_stages = m.virtual_stages;
      job.parallelism.schedule = m.schedule;
      job.parallelism.zero_stage = zero;
      job.parallelism.lanes = 4;
      job.parallelism.sequence_parallel = variant / 2 % 2 == 0;
      job.recompute = std::array{Recompute::none, Recompute::selective, Recompute::full}[size_t(kind / 2)];
      job.compute = variant % 5 == 0 ? DType::bf16 : DType::f32;
      job.batch.global_sequences = 16;
      job.checkpoint.on_exit = false;
      CAPTURE(m.tp, m.dp, m.pp, m.virtual_stages, parallel::name_of(m.schedule), zero, variant);
      check(job);
      ++variant;
    }
  CHECK(variant > 300);
}

TEST_CASE("the tally of a step of ranks that share experts is what the rank computes and sends", "[tally]") {
  const TemporaryFolder dir;
  // Where every token meets all experts, the rows that a plan assumes are those that there are.
  for (const auto describe : {describe_shared_expert, describe_narrow_experts})
    for (const auto& [expert, context, dp, pp, tp, zero, whole] : {std::tuple{2, 1, 2, 1, 1, 3, false},
                                                                   {4, 1, 4, 1, 1, 1, false},
                                                                   {8, 1, 8, 1, 1, 2, false},
                                                                   {2, 1, 2, 2, 1, 2, false},
                                                                   {4, 2, 2, 1, 1, 0, false},
                                                                   {4, 1, 4, 1, 2, 2, false},
                                                                   {2, 1, 2, 1, 2, 1, false},
                                                                   {2, 1, 2, 1, 2, 2, true},
                                                                   {8, 2, 2, 1, 2, 1, true}}) {
      JobSpec job = tiny_job(Family::llama, dir.path());
      describe(job.model);
      job.model.moe.num_experts = job.model.moe.top_k = 8;
      job.parallelism.expert = expert;
      job.parallelism.expert_tensor = whole ? 1 : 0;
      job.parallelism.context = context;
      job.parallelism.context_blocks = 2;
      job.parallelism.data = dp;
      job.parallelism.pipeline = pp;
      job.parallelism.tensor = tp;
      job.parallelism.sequence_parallel = zero == 2;
      job.parallelism.zero_stage = zero;
      job.parallelism.schedule = pp > 1 ? Schedule::zb_h1 : Schedule::one_f_one_b;
      job.parallelism.lanes = 8;
      job.batch.global_sequences = 16;
      job.recompute = std::array{Recompute::none, Recompute::selective, Recompute::full}[size_t(zero % 3)];
      job.checkpoint.on_exit = false;
      CAPTURE(expert, context, dp, pp, tp, zero, whole);
      check(job);
    }
}

TEST_CASE("the tally of a context rank's step is what the rank computes and sends", "[tally][context]") {
  const TemporaryFolder dir;
  int variant = 0;
  for (const auto& [context, dp, pp, tp] : {std::tuple{1, 1, 1, 1},
                                            {2, 1, 1, 1},
                                            {4, 2, 1, 1},
                                            {2, 2, 2, 1},
                                            {4, 1, 1, 2},
                                            {1, 2, 2, 1},
                                            {4, 1, 2, 1}})
    for (const int zero : {0, 1, 2, 3}) {
      JobSpec job = tiny_job(variant % 2 ? Family::gpt2 : Family::llama, dir.path());
      job.parallelism.context = context;
      job.parallelism.context_blocks = 4;
      job.parallelism.data = dp;
      job.parallelism.pipeline = pp;
      job.parallelism.tensor = tp;
      job.parallelism.zero_stage = zero;
      job.parallelism.schedule = pp > 1 && zero % 2 ? Schedule::zb_h1 : Schedule::one_f_one_b;
      job.parallelism.lanes = 2;
      job.recompute = std::array{Recompute::none, Recompute::selective, Recompute::full}[size_t(variant % 3)];
      job.checkpoint.on_exit = false;
      CAPTURE(context, dp, pp, tp, zero);
      check(job);
      ++variant;
      job.parallelism.context_comm_type = parallel::ContextComm::a2a;
      if (context > 1 && has_whole_heads(job.model.num_kv_heads, tp, context)) check(job);
    }
}

TEST_CASE("the FLOPs of a token are 6 for each weight that it meets in a product, and attention's", "[tally]") {
  // Source: PaLM, arXiv:2204.02311, appendix B.
  for (const std::string& name : preset_names()) {
    CAPTURE(name);
    const ParsedJob parsed =
        parse_job({.text = starter_job(name), .file = "starter", .overrides = {}, .environment = {}});
    REQUIRE(parsed.ok());
    const ModelSpec& model = parsed.job.model;
    double weights = 0;
    for (const Param& p : parameter_table(model, {}).params)
      if (p.role == ParamRole::matrix || p.role == ParamRole::router || p.role == ParamRole::head ||
          (p.role == ParamRole::embedding && model.tie_embeddings))
        weights += double(p.count()) *
                   (p.expert >= 0 ? double(model.moe.top_k) / double(model.moe.num_experts) : 1);
    for (const int64_t seq_len : {parsed.job.data.seq_len, int64_t{1000}}) {
      // A causal layer computes half of all pairs, a windowed one those that it sees.
      double pairs = 0;
      for (int64_t layer = 0; layer < model.num_layers; ++layer)
        pairs += has_window(model.kind_of_layer(layer)) && model.layer.window < seq_len
                     ? double(kernels::visible_pairs(seq_len, model.layer.window))
                     : double(seq_len * seq_len) / 2;
      const double attention = 12.0 * double(model.num_heads * model.head_dim()) * pairs / double(seq_len);
      const FlopsPerToken counted = flops_per_token(model_plan(model), seq_len);
      CHECK(counted.full == Approx(6 * weights + 2 * attention).epsilon(tolerance::kFormula));
      CHECK(counted.causal == Approx(6 * weights + attention).epsilon(tolerance::kFormula));
    }
  }
}

TEST_CASE("the plan's traffic of many micro-batches is what the tally of all of them gives", "[tally]") {
  const TemporaryFolder dir;
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::interleaved, Schedule::zb_h1,
                                  Schedule::zb_v, Schedule::dualpipev, kMergedSchedule})
    for (const auto& [micro_batches, cuts] : {std::pair{8, false}, {22, false}, {64, false}, {22, true}}) {
      JobSpec job = tiny_job(Family::llama, dir.path());
      job.parallelism.pipeline = job.parallelism.data = 2;
      (cuts ? job.parallelism.context : job.parallelism.tensor) = 2;
      job.parallelism.context_blocks = cuts ? 4 : 1;
      const bool one = schedule == Schedule::one_f_one_b || schedule == Schedule::zb_h1;
      job.parallelism.virtual_stages = one ? 1 : 2;
      job.parallelism.schedule = schedule;
      job.parallelism.lanes = 2;
      job.batch.global_sequences = 2 * micro_batches;
      const ModelTables tables = model_tables(job);
      const DeviceModel device = device_of_kind(job, DeviceKind::cpu);
      for (int rank = 0; rank < 8; ++rank) {
        const parallel::MeshPosition at = parallel::position_of(job.mesh(), rank);
        const RankTraffic traffic = rank_traffic({job, device, tables}, at);
        const parallel::TrafficTally all = tally_step({job, device, tables}, at, false).traffic;
        CAPTURE(parallel::name_of(schedule), micro_batches, cuts, rank);
        CHECK(traffic.tensor == all.sent(TrafficGroup::tensor));
        CHECK(traffic.pipeline == all.sent(TrafficGroup::activations) + all.sent(TrafficGroup::gradients) +
                                      all.sent(TrafficGroup::tied_embedding));
        CHECK(traffic.context == all.sent(TrafficGroup::context));
        CHECK((traffic.context > 0) == cuts);
        CHECK(traffic.data == all.sent(TrafficGroup::data));
        CHECK(traffic.data > 0);
      }
    }
}
