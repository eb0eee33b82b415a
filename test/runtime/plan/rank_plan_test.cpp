// Goal: the plans of a job's ranks are whole, agree with each other and cost no more on a wide mesh than on a
// narrow one. Method: every mesh of at most 8 ranks of two small models on both kinds of device, all ranks
// planned one by one: what they save covers the model exactly once, their regions add up to their memory,
// their groups are those of the mesh; Llama 3 405B on 1,024 and on 16,384 ranks; every layer's declared
// tensors and parameters by their own rules.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <bit>
#include <map>
#include <set>

#include "runtime/plan/plan.h"
#include "runtime/spans/recorder.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

template <typename Visit>
void for_each_mesh(Visit visit) {
  const TemporaryFolder dir;
  for (const Family family : {Family::gpt2, Family::llama})
    for (const int tensor : {1, 2, 4})
      for (const int pipeline : {1, 2, 4})
        for (const int data : {1, 2, 4, 8})
          for (const int zero : {0, 1, 3}) {
            if (tensor * pipeline * data > 8) continue;
            JobSpec job = tiny_job(family, dir.path());
            job.parallelism.tensor = tensor;
            job.parallelism.pipeline = pipeline;
            job.parallelism.data = job.parallelism.lanes = data;
            job.parallelism.zero_stage = zero;
            job.parallelism.sequence_parallel = tensor > 1;
            job.batch.global_sequences = 2 * data;
            job.checkpoint.chunk_mib = 0.01;
            CAPTURE(word_of(family), tensor, pipeline, data, zero);
            visit(job);
          }
  for (const int tensor : {1, 2})
    for (const int context : {1, 2, 4})
      for (const int data : {1, 2})
        for (const int zero : {0, 1, 3}) {
          JobSpec job = tiny_job(Family::llama, dir.path());
          job.parallelism.tensor = tensor;
          job.parallelism.context = context;
          job.parallelism.context_blocks = 4;
          job.parallelism.data = job.parallelism.lanes = data;
          job.parallelism.zero_stage = zero;
          job.parallelism.sequence_parallel = context == 4;
          job.checkpoint.chunk_mib = 0.01;
          CAPTURE(tensor, context, data, zero);
          visit(job);
        }
  for (const int whole : {0, 1})
    for (const int expert : {2, 4, 8})
      for (const int zero : {0, 1, 3}) {
        if (!whole && expert == 8) continue;
        JobSpec job = tiny_job(Family::llama, dir.path());
        job.model.moe = {.num_experts = 8, .top_k = 2, .expert_ffn_size = 24};
        job.parallelism.tensor = 2;
        job.parallelism.expert_tensor = whole;
        job.parallelism.expert = expert;
        job.parallelism.data = job.parallelism.lanes = 4;
        job.parallelism.zero_stage = zero;
        job.checkpoint.chunk_mib = 0.01;
        CAPTURE(whole, expert, zero);
        visit(job);
      }
}

JobSpec llama_405b(int data) {
  JobSpec job;
  job.model = {.family = Family::llama,
               .hidden_size = 16384,
               .num_layers = 126,
               .num_heads = 128,
               .num_kv_heads = 8,
               .ffn_size = 53248,
               .vocab_size = 128256,
               .max_seq_len = 8192,
               .tie_embeddings = false};
  job.data.seq_len = 8192;
  job.compute = DType::bf16;
  job.recompute = Recompute::full;
  job.batch.global_sequences = 2048;
  job.parallelism.tensor = 8;
  job.parallelism.pipeline = 16;
  job.parallelism.data = job.parallelism.lanes = data;
  return job;
}

size_t spans_of(const JobSpec& job) { return trace_spans(job.batch, job.parallelism, job.model.num_layers); }

}  // namespace

TEST_CASE("what the ranks of a mesh save is the whole model, each chunk once") {
  int meshes = 0;
  for_each_mesh([&](const JobSpec& job) {
    const ModelTables tables = model_tables(job);
    std::map<std::pair<int, int>, int> saved;   // (parameter, chunk): times
    for (int rank = 0; rank < job.mesh().world_size(); ++rank) {
      const RankPlan plan = make_rank_plan({job, device_of_kind(job, DeviceKind::cpu), tables},
                                           parallel::position_of(job.mesh(), rank));
      for (const auto& owned : plan.params.owned_chunks())
        if (owned.saved_here) ++saved[{owned.chunk.where.param, owned.chunk.where.chunk}];
    }
    CHECK(int64_t(saved.size()) == tables.grids.total);
    for (const auto& [chunk, times] : saved) REQUIRE(times == 1);
    ++meshes;
  });
  CHECK(meshes > 60);
}

TEST_CASE("a rank's regions add up to its memory, and its groups are those of the mesh") {
  for_each_mesh([&](const JobSpec& job) {
    const ModelTables tables = model_tables(job);
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda})
      for (int rank = 0; rank < job.mesh().world_size(); ++rank) {
        const parallel::MeshPosition at = parallel::position_of(job.mesh(), rank);
        const RankPlan plan = make_rank_plan({job, device_of_kind(job, kind), tables}, at);
        size_t sum = 0, pinned = 0;
        std::set<std::string> names;
        for (const MemoryRegion& region : plan.regions) {
          (region.pinned_host ? pinned : sum) += region.bytes;
          REQUIRE(names.insert(region.name).second);
        }
        REQUIRE(sum == plan.memory.total());
        REQUIRE(pinned == plan.memory.pinned_host + (plan.memory.copies_count ? 0 : plan.memory.copies));
        REQUIRE(plan.memory.total() == rank_memory(job, kind, at).total());
        for (const parallel::AxisRow& row : parallel::kAxes) {
          const parallel::MeshGroup& group = plan.groups.axes[row.axis];
          const std::vector<int> members = group_of(job.mesh(), rank, row.axis);
          REQUIRE(int(members.size()) == group.size);
          REQUIRE(members[size_t(group.rank)] == rank);
          for (int i = 0; i < group.size; ++i) REQUIRE(members[size_t(i)] == group.first + i * group.stride);
        }
      }
  });
}

TEST_CASE("the ring for traced steps grows with the step, has a limit, and counts where it is") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  size_t last = 0;
  for (const int64_t sequences : {1, 16, 64, 256, 100000}) {
    job.batch.global_sequences = sequences;
    job.parallelism.tensor = 2;
    const size_t spans = spans_of(job);
    CHECK(std::has_single_bit(spans));
    CHECK(spans >= last);
    last = spans;
  }
  CHECK(last == 65536);
  CHECK(spans_of(tiny_job(Family::gpt2, dir.path())) == 4096);
  job = tiny_job(Family::gpt2, dir.path());
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    const RankPlan plan = make_rank_plan({job, device_of_kind(job, kind), model_tables(job)}, {});
    CHECK(plan.spans == spans_of(job));
    // On a GPU the memory that is planned is the device's.
    CHECK(plan.memory.trace == (kind == DeviceKind::cpu ? SpanRecorder::bytes(4096) : 0));
  }
}

TEST_CASE("planning takes as many counted steps as there are unlike stages, whatever the width") {
  // 126 layers on 16 stages: the first with 7 layers, the last with 7 and the head, and those between with 8.
  for (const int data : {8, 128}) {
    const JobSpec job = llama_405b(data);
    const JobPlan plan = make_plan(job, device_of_kind(job, DeviceKind::cuda));
    CHECK(plan.stages.size() == 16);
    CHECK(plan.classes == 3);
    CHECK(plan.work[0].layers == std::vector<int64_t>{7});
    CHECK(plan.work[8].layers == std::vector<int64_t>{8});
    CHECK(plan.work[15].layers == std::vector<int64_t>{7});
  }
}

TEST_CASE("a layer's sublayers declare each tensor and each place once, and what every layer needs") {
  const TemporaryFolder dir;
  for (const Family family : {Family::gpt2, Family::llama})
    for (const DType compute : {DType::f32, DType::bf16}) {
      JobSpec job = tiny_job(family, dir.path());
      job.compute = compute;
      const ModelTables of_job = model_tables(job);
      for (const SublayerPlan& sublayer : of_job.model.layers.front()->sublayers) {
        CAPTURE(word_of(family), name_of(sublayer));
        std::map<int, TensorDeclaration> tensors;
        for (const TensorDeclaration& d : tensors_of(sublayer, of_job.shape)) {
          CHECK(tensors.emplace(d.number, d).second);
          CHECK(d.rows * d.cols > 0);
        }
        CHECK(tensors.at(kInput).life == Life::input);
        CHECK(tensors.at(kOutputGradient).life == Life::gradient);
        std::set<int> places;
        for (const ParamDeclaration& d : parameters_of(sublayer))
          CHECK((d.joined || places.insert(d.place).second));
        CHECK(*places.begin() >= 0);
      }
    }
}

TEST_CASE("a model that only computes forward has its weights alone, and one layer's activations") {
  const TemporaryFolder dir;
  for (const OptimizerType type : {OptimizerType::adamw, OptimizerType::muon}) {
    JobSpec job = tiny_job(Family::llama, dir.path());
    job.compute = DType::bf16;
    job.optimizer.type = type;
    const ModelTables tables = model_tables(job);
    const DeviceModel device = device_of_kind(job, DeviceKind::cpu);
    const PlanBasis basis{job, device, tables};
    const ForwardPlan forward = make_forward_plan(basis);
    const RankPlan training = make_rank_plan(basis, {});
    CHECK(forward.params.bytes().total() == training.memory.sharding.weights);
    CHECK(forward.params.bytes().weights == training.memory.sharding.weights);
  }
}
