#include "test/support/thread_run.h"

#include <cmath>
#include <exception>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "ckpt/checkpoint.h"
#include "ckpt/pieces.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/philox.h"
#include "runtime/train/trainer.h"
#include "test/support/thread_control.h"
#include "test/support/unsynced_files.h"

namespace trainctl::test {
namespace {

/// As if each half of the ranks were a node, and `folder` the memory of the other one.
void set_partner(RankOptions& options, const std::string& folder, int rank, int ranks) {
  const int half = ranks / 2;
  options.nodes = {{.name = "a", .first = 0, .count = half},
                   {.name = "b", .first = half, .count = ranks - half}};
  options.partner = [path = folder + "/" + ckpt::piece_file_name(rank, ranks)](uint64_t bytes) {
    return ckpt::shared_memory(path, bytes);
  };
}

void require_folder(const CheckpointSpec& saves, const std::string& dir) {
  if (dir.empty() && (saves.saves_while_training() || saves.on_exit))
    throw std::logic_error("run_on_threads: the job saves, and ThreadRunOptions::dir names no folder");
}

void take_line(const StepLine& line, ThreadRun& run) {
  run.lines.push_back(step_line_text(line));
  if (!line.state_digest.empty()) run.digests[line.step] = line.state_digest;
  run.losses.push_back(std::isfinite(line.loss) ? line.loss : NAN);
  run.grad_norms.push_back(std::isfinite(line.grad_norm) ? line.grad_norm : NAN);
  if (line.val_loss) run.val_losses.push_back(*line.val_loss);
}

}  // namespace

ThreadRun run_on_threads(const JobSpec& job, const ThreadRunOptions& options) {
  require_folder(job.checkpoint, options.dir);
  const int size = job.mesh().world_size();
  FileSystem& fs = options.checkpoint_files ? *options.checkpoint_files : unsynced_files();
  const std::string checkpoints = options.dir + "/ckpt";
  ThreadRun result;
  const auto on_report = [&](const StepRecord& report) {
    if (options.rank_lines && !report.ranks.empty()) options.rank_lines->push_back(report.ranks);
    if (options.expert_lines && !report.experts.empty()) options.expert_lines->push_back(report.experts);
    if (options.on_report) options.on_report();
    if (options.on_line) options.on_line(report.line);
    take_line(report.line, result);
  };
  auto controls = make_thread_control(size, fs, checkpoints, 3, on_report, options.on_event, options.trace);
  auto worlds = parallel::make_thread_world(size, options.deadline_s);
  result.allocated_bytes.resize(size_t(size));
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      // The backend outlives the communicator over it, also when a rank fails.
      std::unique_ptr<kernels::Backend> backend;
      std::unique_ptr<parallel::Communicator> world = std::move(worlds[size_t(r)]);
      parallel::Communicator& end = *world;  // what make_world takes over lives on within it
      try {
        backend = options.make_backend        ? options.make_backend(r)
                  : options.reference_backend ? kernels::make_reference_backend()
                                              : kernels::make_cpu_backend(job.parallelism.threads_per_rank);
        if (options.make_world) world = options.make_world(std::move(world), *backend);
        RankOptions o;
        o.run_id = "test";
        o.checkpoint_dir = checkpoints;
        o.memory_folder = options.memory_folder;
        if (!options.partner_folder.empty()) set_partner(o, options.partner_folder, r, size);
        o.resume_from = options.resume_from;
        o.gradients_dir = options.gradients_dir;
        o.max_steps = options.max_steps, o.remedies = options.remedies;
        o.disputes = options.disputes;
        o.most_staging_bytes = options.most_staging_bytes;
        o.matmul_flops_per_s = 1e12;  // known, so that nobody measures
        Trainer(job, o, *world, *backend, *controls[size_t(r)], fs).run();
        result.allocated_bytes[size_t(r)] = backend->peak_allocated_bytes();
      } catch (const Error& e) {
        const std::lock_guard lock(mutex);
        if (!first || e.code() != ErrorCode::kPeerLost) {
          bool replace = !first;
          if (first) {
            try {
              std::rethrow_exception(first);
            } catch (const Error& old) {
              replace = old.code() == ErrorCode::kPeerLost;
            } catch (...) {
            }
          }
          if (replace) first = std::current_exception();
        }
        controls[size_t(r)]->done();  // nobody waits for it
        if (world) parallel::abort_thread_world(end, e.what());
      }
    });
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
  const auto steps = ckpt::list_steps(fs, checkpoints);
  if (!steps.empty()) {
    result.checkpoint = ckpt::step_directory(checkpoints, steps.front());
    result.root_hash = ckpt::Checkpoint::open(fs, result.checkpoint)->root_hash();
  }
  return result;
}

bool have_equal_digests(const ThreadRun& a, const ThreadRun& b) {
  if (a.digests.empty() || b.digests.empty() || *a.digests.rbegin() != *b.digests.rbegin()) return false;
  for (const auto& [step, digest] : a.digests)
    if (const auto other = b.digests.find(step); other != b.digests.end() && other->second != digest)
      return false;
  return true;
}

JobSpec tiny_job(Family family, const std::string& dir) {
  JobSpec job;
  job.model = {.family = family,
               .hidden_size = 32,
               .num_layers = 4,
               .num_heads = 4,
               .num_kv_heads = family == Family::llama ? 2 : 4,
               .ffn_size = family == Family::llama ? 96 : 128,
               .vocab_size = 97,
               .max_seq_len = 16,
               .tie_embeddings = family == Family::gpt2};
  job.model = with_family_defaults(job.model);
  std::vector<uint16_t> tokens(8 * 16 * 24 + 1);
  const Philox random(7, RandomPurpose::kTest);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = uint16_t((i > 0 ? tokens[i - 1] + 3 * (random.bits64(i) % 4) : 0) % 97);
  std::ofstream(dir + "/tokens.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), std::streamsize(tokens.size() * 2));
  DataSource source;
  source.path = dir + "/tokens.bin";
  source.format = TokenFormat::raw;
  source.dtype = DType::u16;
  job.data.train = {source};
  job.data.seq_len = 16;
  job.batch = {.global_sequences = 8, .micro_sequences = 1};
  job.optimizer.decay_exclude = {DecayKind::norm, DecayKind::bias};
  job.schedule = {.total_steps = 20, .warmup_steps = 4, .lr = 3e-3, .min_lr = 3e-4};
  job.checkpoint.chunk_mib = 0.002;  // many chunks, so that ownership is really spread
  job.parallelism.bucket_mib = 0.02;
  return job;
}

JobSpec golden_training(const std::string& dir, const Json& t) {
  JobSpec job;
  DataSource source;
  source.path = dir + "/tokens.bin";
  source.format = TokenFormat::raw;
  source.dtype = DType::u16;
  job.data.train = {source};
  job.data.seq_len = t["seq_len"];
  job.data.shuffle = false;
  job.batch = {.global_sequences = t["batch"], .micro_sequences = 1};
  job.optimizer = {.beta1 = t["beta1"],
                   .beta2 = t["beta2"],
                   .eps = t["eps"],
                   .weight_decay = t["weight_decay"],
                   .grad_clip = t["grad_clip"],
                   .decay_exclude = {DecayKind::norm, DecayKind::bias}};
  job.schedule = {
      .total_steps = t["steps"], .warmup_steps = t["warmup_steps"], .lr = t["lr"], .min_lr = t["min_lr"]};
  return job;
}

JobSpec golden_job(const std::string& name) {
  const std::string dir = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/" + name;
  const auto config = Json::parse(std::ifstream(dir + "/config.json"));
  const auto& m = config["model"];
  const auto& t = config["train"];
  JobSpec job;
  if (m["model_type"] == "gpt2")
    job.model = {.family = Family::gpt2,
                 .hidden_size = m["n_embd"],
                 .num_layers = m["n_layer"],
                 .num_heads = m["n_head"],
                 .num_kv_heads = m["n_head"],
                 .ffn_size = 4 * m["n_embd"].get<int64_t>(),
                 .vocab_size = m["vocab_size"],
                 .max_seq_len = m["n_positions"],
                 .norm_eps = m["layer_norm_epsilon"]};
  else
    job.model = {.family = Family::llama,
                 .hidden_size = m["hidden_size"],
                 .num_layers = m["num_hidden_layers"],
                 .num_heads = m["num_attention_heads"],
                 .num_kv_heads = m["num_key_value_heads"],
                 .ffn_size = m["intermediate_size"],
                 .vocab_size = m["vocab_size"],
                 .max_seq_len = m["max_position_embeddings"],
                 .norm_eps = m["rms_norm_eps"]};
  job.model = with_family_defaults(job.model);
  if (job.model.is_rotary()) job.model.position.theta = m["rope_theta"];
  job.model.tie_embeddings = m["tie_word_embeddings"];
  const ModelSpec model = job.model;
  job = golden_training(dir, t);
  job.model = model;
  job.model.init.from = dir + "/weights.safetensors";
  return job;
}

}  // namespace trainctl::test
