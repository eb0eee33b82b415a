// Goal: features that the spec allows together work together: a job of any of them has the same bits on any
// mesh, the reference's loss, and that of one rank on two tensor ranks. Method: jobs by seed, drawn as the
// fields that a user would give, and drawn again where the parser refuses them; each is run plain and on
// meshes by chance. A few in CI, 300 under the label soak.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "runtime/base/file_system.h"
#include "runtime/spec/parse.h"
#include "test/support/seed.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr int64_t kFewSteps = 3;

/// Fields and their values, as `--set` takes them.
class Fields {
 public:
  explicit Fields(uint64_t seed) : random_(seed) {}

  int below(int n) { return int(random_() % uint64_t(n)); }
  bool one_in(int n) { return below(n) == 0; }
  template <typename Value>
  void set(const std::string& path, const Value& value) {
    words_.push_back(fmt::format("{}={}", path, value));
  }
  /// One of the values.
  template <typename Value>
  void any(const std::string& path, std::initializer_list<Value> values) {
    set(path, *(values.begin() + below(int(values.size()))));
  }
  /// In one of `n` jobs one of the values, else the default.
  template <typename Value>
  void some(int n, const std::string& path, std::initializer_list<Value> values) {
    if (one_in(n)) any(path, values);
  }
  const std::vector<std::string>& words() const { return words_; }
  size_t size() const { return words_.size(); }
  void keep(size_t count) { words_.resize(count); }

 private:
  std::mt19937_64 random_;
  std::vector<std::string> words_;
};

void draw_attention(Fields& f) {
  f.some(4, "model.layer.qkv_bias", {true});
  f.some(4, "model.layer.out_bias", {true});
  if (f.one_in(5)) {
    f.any("model.latent.kv_lora_rank", {8, 12});
    f.any("model.latent.q_lora_rank", {0, 20});
    f.any("model.latent.qk_nope_head_dim", {4, 6});
    f.any("model.latent.qk_rope_head_dim", {2, 4});
    f.any("model.latent.v_head_dim", {5, 8});
  } else {
    f.some(3, "model.head_dim", {6, 8, 12});
    f.some(4, "model.layer.qk_norm", {"head", "projection"});
    f.some(4, "model.layer.output_gate", {true});
  }
  f.some(4, "model.layer.sinks", {true});
  f.some(4, "model.layer.score_cap", {3, 20});
  f.some(4, "model.layer.score_scale", {0.3, 1.5});
  if (f.one_in(3)) {
    f.any("model.layer.window", {1, 3, 5});
    f.any("model.layers",
          {R"(["window"])", R"(["window","full"])", R"(["window","full_nope","window_nope"])"});
  }
  f.some(3, "model.position.type", {"learned", "none"});
  f.some(4, "model.position.rotary_fraction", {0.5});
  f.some(4, "model.position.interleaved", {true});
  f.some(5, "model.position.window_theta", {100});
  if (f.one_in(4)) {
    f.any("model.position.scaling.type", {"linear", "llama3", "yarn"});
    f.set("model.position.scaling.factor", 4);
    f.some(2, "model.position.scaling.original_max_seq_len", {8});
  }
}

void draw_experts(Fields& f) {
  f.any("model.moe.num_experts", {2, 4, 5, 8});
  f.any("model.moe.top_k", {1, 2, 3});
  f.any("model.moe.expert_ffn_size", {12, 20});
  f.any("model.moe.router", {"softmax", "sigmoid", "sqrt_softplus"});
  f.any("model.moe.aux_loss_coefficient", {0.0, 0.1});
  f.some(3, "model.moe.z_loss_coefficient", {0.05});
  f.some(3, "model.moe.renormalize", {false});
  f.some(3, "model.moe.routed_scale", {2.5});
  f.some(4, "model.moe.router_bias", {true});
  if (f.one_in(3)) {
    f.set("model.moe.selection_bias", true);
    if (f.one_in(2))
      f.set("model.moe.bias_update", "quantile");
    else
      f.set("model.moe.bias_update_rate", 0.01);
  }
  if (f.one_in(4)) f.set("model.moe.groups", 2), f.set("model.moe.top_groups", 1);
  if (f.one_in(3)) {
    f.set("model.moe.shared_ffn_size", 16);
    f.some(2, "model.moe.shared_gate", {true});
  }
  if (f.one_in(3)) {
    f.any("model.moe.capacity_factor", {0.5, 1.0, 2.0});
    f.some(2, "model.moe.drop_policy", {"position"});
  }
  f.some(4, "model.moe.latent_size", {12});
  f.some(4, "model.moe.first_dense_layers", {1});
  f.some(4, "model.moe.layer_step", {2});
}

void draw_model(Fields& f) {
  f.any("model.family", {"llama", "llama", "llama", "gpt2"});
  f.any("model.hidden_size", {16, 32, 48});
  f.any("model.num_layers", {2, 3, 4, 5});
  f.any("model.num_heads", {2, 4});
  f.some(2, "model.num_kv_heads", {1, 2});
  f.any("model.ffn_size", {24, 48});
  f.set("model.vocab_size", 97);
  f.set("model.max_seq_len", 16);
  f.some(3, "model.tie_embeddings", {true, false});
  f.some(3, "model.layer.norm_place", {"post", "sandwich"});
  f.some(4, "model.layer.norm_weight", {"one_plus"});
  if (f.one_in(4)) {
    f.set("model.layer.norm", "layernorm");
    f.some(2, "model.layer.norm_bias", {true});
  }
  f.some(2, "model.layer.activation",
         {"gelu", "gelu_erf", "relu2", "silu", "swiglu", "geglu", "geglu_erf", "swiglu_clamped"});
  f.some(4, "model.layer.mlp_bias", {true});
  draw_attention(f);
  if (f.one_in(3)) draw_experts(f);
  if (f.one_in(5)) {
    f.any("model.mtp.num_layers", {1, 2});
    f.set("model.mtp.loss_weight", 0.5);
  }
  f.some(4, "model.embedding_scale", {3});
  f.some(4, "model.logit_scale", {0.7});
  f.some(4, "model.logit_cap", {9});
  f.some(4, "model.z_loss", {1e-3});
  f.some(4, "model.init.type", {"truncated_normal"});
  f.some(5, "model.mup.base_hidden_size", {8, 16});
}

/// What else decides the bits.
void draw_training(Fields& f, const std::string& folder) {
  const bool documents = f.one_in(2);
  f.set("data.train",
        documents ? fmt::format(R"([{{"path":"{}/documents"}}])", folder)
                  : fmt::format(R"([{{"path":"{}/tokens.bin","format":"raw","dtype":"uint16"}}])", folder));
  f.set("data.val", f.words().back().substr(f.words().back().find('=') + 1));
  if (documents) {
    f.set("data.documents", "mask");
    f.some(3, "data.packing", {"best_fit"});
    f.some(3, "data.count_boundary_targets", {true});
  }
  f.any("batch.global_sequences", {4, 8, 16});
  f.any("batch.micro_sequences", {1, 2});
  f.any("parallelism.lanes", {1, 2, 4, 8});
  f.any("parallelism.tensor", {1, 1, 2});
  f.some(2, "parallelism.sequence_parallel", {true, false});
  f.any("parallelism.context_blocks", {1, 1, 2, 4});
  if (f.one_in(6)) f.set("parallelism.expert_tensor", 1), f.set("parallelism.expert", 2);
  f.some(5, "parallelism.reduction_dtype", {"bf16"});
  f.any("precision.compute", {"f32", "f32", "bf16", "f16"});
  f.any("precision.loss_scale.initial", {256, 65536});  // a step that overflows with the larger is skipped
  f.some(6, "precision.fp8.recipe", {"tensor"});
  f.any("optimizer.type", {"adamw", "adamw", "muon", "lion", "sgd"});
  f.some(3, "optimizer.moments", {"bf16", "int8"});
  f.some(4, "optimizer.ema.decay", {0.9});
  f.some(3, "optimizer.grad_clip", {0.0, 0.1});
  if (f.one_in(3)) {  // what these need replaces what was drawn
    f.set("optimizer.master_weights", "none");
    f.set("precision.compute", "bf16");
    f.set("precision.fp8.recipe", "none");
    f.any("optimizer.type", {"adamw", "lion", "sgd"});
  }
}

/// What must not change them.
void draw_mesh(Fields& f, const std::string& disk) {
  f.set("parallelism.data", 1 + f.below(8));
  f.set("parallelism.pipeline", 1 + f.below(4));
  f.some(2, "parallelism.context", {2, 4});
  f.some(2, "parallelism.expert", {2, 4, 8});
  f.some(3, "parallelism.context_comm_type", {"a2a"});
  f.any("parallelism.pipeline_schedule",
        {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev", "merged-1f1b"});
  f.some(2, "parallelism.virtual_stages", {2});
  f.any("parallelism.zero_stage", {0, 1, 2, 3});
  f.some(3, "parallelism.reshard_after_forward", {false});
  f.any("parallelism.bucket_mib", {0.001, 0.02, 25.0});
  f.any("parallelism.threads_per_rank", {1, 2});
  f.any("memory.activation_recompute", {"none", "selective", "full", "1"});
  if (f.one_in(4)) f.set("optimizer.offload", "disk"), f.set("optimizer.offload_directory", disk);
}

constexpr const char* kRest = R"({"version": 1, "name": "chance", "device": "cpu", "data": {"seq_len": 16},
  "schedule": {"total_steps": 20, "warmup_steps": 4, "lr": 3e-3, "min_lr": 3e-4},
  "eval": {"every_steps": 2, "max_tokens": 128}, "checkpoint": {"chunk_mib": 0.002},
  "observability": {"replay_every_steps": 0}})";

std::optional<JobSpec> job_of(const Fields& fields) {
  const ParsedJob parsed =
      parse_job({.text = kRest, .file = "job.json", .overrides = fields.words(), .is_of_run = true});
  for (const Diagnostic& mistake : parsed.diagnostics)
    if (mistake.code.starts_with("E01") || mistake.code == "E0203") FAIL(mistake.message);  // of this test
  if (!parsed.ok() || parsed.job.parallelism.mesh().world_size() > 8) return std::nullopt;
  return parsed.job;
}

/// The first that is allowed.
JobSpec drawn(Fields& fields, const std::function<void()>& draw) {
  const size_t before = fields.size();
  for (int tries = 0; tries < 20000; ++tries) {
    draw();
    if (auto job = job_of(fields)) return *std::move(job);
    fields.keep(before);
  }
  FAIL("20000 draws, of which the parser allows none");
  return {};
}

/// Whether a loss may depend on the last bits of a sum: not where tokens choose among experts.
bool is_smooth(const JobSpec& job) {
  return job.compute == DType::f32 && job.fp8.recipe == Fp8Recipe::none && job.model.moe.num_experts == 0;
}

/// Of a step that was skipped the norm is no number, which equals none.
ThreadRun with_marked_skips(ThreadRun run) {
  for (double& norm : run.grad_norms)
    if (std::isnan(norm)) norm = -1;
  return run;
}

void check_first_step(const ThreadRun& a, const ThreadRun& b) {
  CHECK(a.losses.at(0) == Approx(b.losses.at(0)).epsilon(tolerance::kFirstStepOfAny));
  CHECK(a.grad_norms.at(0) == Approx(b.grad_norms.at(0)).epsilon(tolerance::kFirstNormOfAny));
}

void check_jobs(uint64_t count) {
  const TemporaryFolder dir, disk("offload", ".");  // not in /tmp, which may be memory
  tiny_job(Family::llama, dir.path());              // writes the tokens
  write_megatron(dir.path() + "/documents", many_documents(12));
  for (const uint64_t seed : test_seeds(count)) {
    Fields fields(seed);
    const JobSpec plain_job = drawn(fields, [&] {
      draw_model(fields);
      draw_training(fields, dir.path());
    });
    INFO("TRAINCTL_TEST_SEED=" << seed << ": " << fmt::format("{}", fmt::join(fields.words(), " ")));
    const size_t of_job = fields.size();
    const auto folder = [&](const char* name) { return fmt::format("{}/{}-{}", dir.path(), seed, name); };
    const ThreadRun plain =
        with_marked_skips(run_on_threads(plain_job, {.dir = folder("plain"), .max_steps = kFewSteps}));
    CHECK(plain.losses.size() == size_t(kFewSteps));
    for (const char* name : {"first", "second"}) {
      const JobSpec job = drawn(fields, [&] { draw_mesh(fields, disk.path()); });
      INFO(name << " mesh: "
                << fmt::format("{}", fmt::join(fields.words().begin() + ptrdiff_t(of_job),
                                               fields.words().end(), " ")));
      check_equal_runs(with_marked_skips(run_on_threads(job, {.dir = folder(name), .max_steps = kFewSteps})),
                       plain);
      fields.keep(of_job);
    }
    if (is_smooth(plain_job)) {
      INFO("with the reference");
      check_first_step(
          run_on_threads(plain_job, {.dir = folder("reference"), .max_steps = 1, .reference_backend = true}),
          plain);
      if (plain_job.parallelism.tensor > 1) {
        INFO("on one tensor rank");
        fields.set("parallelism.tensor", 1);
        if (const auto one = job_of(fields))
          check_first_step(run_on_threads(*one, {.dir = folder("one"), .max_steps = 1}), plain);
      }
    }
    for (const char* name : {"plain", "first", "second", "reference", "one"})
      real_file_system().remove_tree(folder(name));
  }
}

}  // namespace

TEST_CASE("jobs chosen by chance have the same bits on any mesh") { check_jobs(10); }
TEST_CASE("300 jobs chosen by chance have the same bits on any mesh", "[.][soak]") { check_jobs(300); }
