// Goal: whatever combination of settings that must not change the result is chosen, it does not: widths,
// pipeline and its cut, schedule, ZeRO stage, recomputation, size of buckets, threads, ranks that share
// sequences and experts; and replicas that compute a micro-batch again agree. Method: short runs of a few
// tiny jobs with combinations by seed, each compared with the plain run of its job: losses, gradient norms,
// validation loss and root hash; every third goes on after half of its steps with another combination. A few
// in CI, 500 under the label soak.
#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "test/support/described_models.h"
#include "test/support/merged_schedule.h"
#include "test/support/seed.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/token_sets.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::kMergedSchedule;
using parallel::Schedule;

namespace {

constexpr int64_t kSteps = 4;

/// One of the jobs whose plain run others are compared with.
struct Base {
  Family family;
  DType compute;
  int tensor;
  int64_t lanes, sequences;
  DType reduction = DType::f32;
  int64_t context_blocks = 1;
  void (*describe)(ModelSpec&) = nullptr;
  bool documents = false;
  OptimizerType optimizer = OptimizerType::adamw;
  bool whole_experts = false;  ///< of tensor ranks, which share them
  Fp8Recipe fp8 = Fp8Recipe::none;
};
void capped_narrow_experts(ModelSpec& m) {
  describe_capped_narrow_experts(m);
  m.mtp = {.num_layers = 1, .loss_weight = 0.5};
  m.moe.num_experts = 8;
}
void eight_experts(ModelSpec& m) {
  describe_balanced_experts(m);
  m.moe.num_experts = 8;
}
constexpr Base kBases[] = {{Family::gpt2, DType::f32, 1, 8, 16},
                           {Family::llama, DType::bf16, 1, 16, 16},
                           {Family::llama, DType::f32, 2, 8, 8},
                           {Family::gpt2, DType::bf16, 1, 8, 16, DType::bf16},
                           {Family::llama, DType::f32, 1, 4, 8, DType::f32, 4},
                           {.family = Family::llama,
                            .compute = DType::f32,
                            .tensor = 1,
                            .lanes = 8,
                            .sequences = 16,
                            .context_blocks = 2,
                            .describe = eight_experts,
                            .documents = true},
                           {.family = Family::llama,
                            .compute = DType::bf16,
                            .tensor = 1,
                            .lanes = 8,
                            .sequences = 16,
                            .describe = describe_latent_mtp,
                            .documents = true,
                            .optimizer = OptimizerType::muon},
                           {.family = Family::llama,
                            .compute = DType::bf16,
                            .tensor = 2,
                            .lanes = 4,
                            .sequences = 8,
                            .context_blocks = 4,
                            .describe = describe_everything,
                            .documents = true},
                           {.family = Family::llama,
                            .compute = DType::bf16,
                            .tensor = 2,
                            .lanes = 8,
                            .sequences = 8,
                            .describe = eight_experts,
                            .optimizer = OptimizerType::lion},
                           {.family = Family::llama,
                            .compute = DType::f32,
                            .tensor = 1,
                            .lanes = 8,
                            .sequences = 8,
                            .context_blocks = 2,
                            .describe = capped_narrow_experts,
                            .documents = true},
                           {.family = Family::llama,
                            .compute = DType::f32,
                            .tensor = 2,
                            .lanes = 4,
                            .sequences = 8,
                            .context_blocks = 2,
                            .describe = eight_experts,
                            .documents = true,
                            .whole_experts = true},
                           {.family = Family::llama,
                            .compute = DType::bf16,
                            .tensor = 1,
                            .lanes = 4,
                            .sequences = 8,
                            .context_blocks = 2,
                            .describe = describe_blocks_of_experts,
                            .fp8 = Fp8Recipe::block},
                           {.family = Family::llama,
                            .compute = DType::f32,
                            .tensor = 2,
                            .lanes = 8,
                            .sequences = 8,
                            .describe = describe_blocks,
                            .optimizer = OptimizerType::muon,
                            .fp8 = Fp8Recipe::tensor},
                           {.family = Family::llama,
                            .compute = DType::f16,
                            .tensor = 1,
                            .lanes = 8,
                            .sequences = 16,
                            .context_blocks = 2,
                            .describe = eight_experts,
                            .documents = true},
                           {.family = Family::llama,
                            .compute = DType::f16,
                            .tensor = 1,
                            .lanes = 8,
                            .sequences = 8,
                            .describe = describe_latent_mtp,
                            .optimizer = OptimizerType::muon},
                           {Family::gpt2, DType::f16, 2, 8, 8}};

JobSpec job_of(const Base& base, const std::string& dir) {
  JobSpec job = tiny_job(base.family, dir);
  if (base.describe) base.describe(job.model);
  if (base.documents) train_on(job, dir, many_documents(12));
  job.optimizer.type = base.optimizer;
  job.compute = base.compute;
  job.loss_scale.growth_interval = 2;
  job.fp8.recipe = base.fp8;
  job.parallelism.tensor = base.tensor;
  if (base.whole_experts) job.parallelism.expert_tensor = 1, job.parallelism.expert = base.tensor;
  job.parallelism.lanes = base.lanes;
  job.parallelism.reduction_dtype = base.reduction;
  job.parallelism.context_blocks = base.context_blocks;
  job.parallelism.sequence_parallel = base.context_blocks == 1;
  job.batch.global_sequences = base.sequences;
  job.data.val = job.data.train;
  job.eval = {.every_steps = 2, .max_sequences = base.sequences};
  return job;
}

class Combination {
 public:
  explicit Combination(uint64_t seed) : random_(seed) {}

  JobSpec of(JobSpec job) {
    ParallelSpec& p = job.parallelism;
    const int64_t experts = job.model.moe.num_experts;
    do {
      p.data = 1 + draw(8);
      p.pipeline = 1 + draw(4);
      if (p.context_blocks > 1) p.context = 1 << draw(3);
      if (experts > 0) p.expert = 1 << draw(4);
    } while (p.mesh().world_size() > 8 || p.context > p.context_blocks ||
             p.ranks_of_experts() % p.expert != 0 || p.expert % p.token_parts() != 0 ||
             ((p.context_blocks > 1 || p.expert > 1) && p.lanes % p.data != 0));
    p.context_comm_type = parallel::ContextComm::all_gather;
    if (p.context > 1 && has_whole_heads(job.model.num_kv_heads, p.tensor, p.context))
      p.context_comm_type = parallel::ContextComm(draw(2));
    const Schedule schedules[] = {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zb_h1, kMergedSchedule};
    p.schedule = schedules[draw(4)];
    // The interleaved schedule goes in rounds of `pipeline` micro-batches, whatever lanes a rank has.
    if (p.pipeline == 2 && job.micro_batches_per_lane() % 2 == 0 && draw(2) == 0) {
      p.schedule = draw(2) == 0 ? Schedule::interleaved : kMergedSchedule;
      p.virtual_stages = 2;
    }
    // A V has layers for all its virtual stages, and dualpipev two micro-batches a stage at any width.
    const int64_t virtual_stages = 2 * p.pipeline;
    if (p.pipeline > 1 && virtual_stages <= job.model.num_layers + 2 && draw(4) == 0) {
      const bool fills = job.micro_batches_per_lane() >= virtual_stages;
      p.schedule = fills && draw(2) == 0 ? Schedule::dualpipev : Schedule::zb_v;
      p.virtual_stages = 2;
    }
    if (draw(2) == 0) p.stage_layers = cut(job.model.num_layers, p.pipeline * p.virtual_stages);
    p.zero_stage = draw(4);
    p.reshard_after_forward = p.zero_stage < 3 || draw(2) == 0;
    p.reduction_algorithm = std::array{parallel::ExchangeChoice::automatic, parallel::ExchangeChoice::direct,
                                       parallel::ExchangeChoice::halving}[size_t(draw(3))];
    p.bucket_mib = std::array{0.001, 0.004, 0.02, 25.0}[size_t(draw(4))];
    p.threads_per_rank = 1 + draw(2);
    const Recompute recomputes[] = {Recompute::none, Recompute::selective, Recompute::full,
                                    Recompute::first_layers};
    job.recompute = recomputes[draw(4)];
    job.recompute_layers = 1 + draw(2);
    job.observability.replay_every_steps = 1;
    return job;
  }

 private:
  int draw(int below) { return int(random_() % uint64_t(below)); }
  /// Layers over virtual stages; those in the middle have one at least.
  std::vector<int64_t> cut(int64_t layers, int parts) {
    std::vector<int64_t> result(size_t(parts), 0);
    for (int i = 1; i + 1 < parts; ++i, --layers) result[size_t(i)] = 1;
    for (; layers > 0; --layers) ++result[size_t(draw(parts))];
    return result;
  }

  std::mt19937_64 random_;
};

std::string text_of(const JobSpec& job) {
  const ParallelSpec& p = job.parallelism;
  std::string layers;
  for (const int64_t n : p.stage_layers) layers += " " + std::to_string(n);
  return fmt::format(
      "tp {} cp {} {} dp {} ep {} pp {} x {} {}, ZeRO-{}{} in {} ({}), layers{}, recompute {} {}, buckets {} "
      "MiB, {} "
      "threads",
      p.tensor, p.context, word_of(p.context_comm_type), p.data, p.expert, p.pipeline, p.virtual_stages,
      parallel::name_of(p.schedule), p.zero_stage, p.reshard_after_forward ? "" : " kept",
      name_of(p.reduction_dtype), word_of(p.reduction_algorithm), layers.empty() ? " by cost" : layers,
      int(job.recompute), job.recompute_layers, p.bucket_mib, p.threads_per_rank);
}

void check_combinations(uint64_t count) {
  const TemporaryFolder dir;
  std::map<size_t, ThreadRun> plain;
  for (const uint64_t seed : test_seeds(count)) {
    const size_t which = seed % std::size(kBases);
    const JobSpec base = job_of(kBases[which], dir.path());
    if (!plain.contains(which))
      plain[which] =
          run_on_threads(base, {.dir = dir.path() + "/plain" + std::to_string(which), .max_steps = kSteps});
    Combination chance(seed);
    JobSpec job = chance.of(base);
    const std::string folder = dir.path() + "/" + std::to_string(seed);
    const ThreadRun& whole = plain[which];
    INFO("TRAINCTL_TEST_SEED=" << seed << ": " << text_of(job));
    ThreadRun run;
    if (seed % 3 == 0) {
      const ThreadRun begun = run_on_threads(job, {.dir = folder + "/begun", .max_steps = kSteps / 2});
      job = chance.of(base);
      run = run_on_threads(job, {.dir = folder, .resume_from = begun.checkpoint, .max_steps = kSteps});
      run.losses.insert(run.losses.begin(), begun.losses.begin(), begun.losses.end());
      run.grad_norms.insert(run.grad_norms.begin(), begun.grad_norms.begin(), begun.grad_norms.end());
      run.val_losses.insert(run.val_losses.begin(), begun.val_losses.begin(), begun.val_losses.end());
    } else {
      run = run_on_threads(job, {.dir = folder, .max_steps = kSteps});
    }
    INFO("ends as " << text_of(job));
    CHECK(run.losses.size() == size_t(kSteps));
    for (const std::string& line : run.lines) CHECK(parse_json(line).contains("replayed"));
    CHECK(run.losses == whole.losses);
    CHECK(run.grad_norms == whole.grad_norms);
    CHECK(run.val_losses == whole.val_losses);
    CHECK(have_equal_digests(run, whole));
    CHECK(run.root_hash == whole.root_hash);
    real_file_system().remove_tree(folder);
  }
}

}  // namespace

TEST_CASE("same bits with settings chosen by chance", "[bits]") { check_combinations(18); }
TEST_CASE("same bits with 500 settings chosen by chance", "[.][soak]") { check_combinations(500); }
