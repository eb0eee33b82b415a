// The job spec after parsing: every field typed, defaulted and checked. Made by parse_job (runtime/spec/parse.h) only;
// the text, range and default of each field are given once, in the field table (runtime/spec/fields/fields.cpp).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline.h"
#include "runtime/base/dtype.h"

namespace trainctl {

enum class Family { gpt2, llama };
enum class LrSchedule { constant, linear, cosine, wsd };
enum class BatchLrRule { none, linear, square_root };
enum class TokenFormat { automatic, megatron, llmc, raw };
enum class Recompute { none, selective, full };
enum class Transport { automatic, nccl, host };   // of device memory between ranks on GPUs
enum class GradientSums { exact, fast };           // over data-parallel ranks: our tree, or the transport's own order

/// model.*: one decoder-only transformer.
struct ModelSpec {
  Family family = Family::gpt2;
  std::string preset;                          // "" when given field by field
  int64_t hidden_size = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0, ffn_size = 0;
  int64_t vocab_size = 0, max_seq_len = 0;
  double norm_eps = 1e-5, rope_theta = 10000.0;
  bool tie_embeddings = true;
  double init_std = 0.02;
  std::string init_from;                       // folder of Hugging Face safetensors, or ""
  int64_t head_dim() const { return hidden_size / num_heads; }
};

struct DataSource {
  std::string path;                            // may hold a glob
  TokenFormat format = TokenFormat::automatic;
  std::optional<DType> dtype;                  // raw files only
  double weight = 1.0;
  std::string name;
};

struct DataSpec {
  std::string tokenizer;                       // file, "bytes", or ""
  std::vector<DataSource> train, val;
  int64_t seq_len = 0;                         // 0 in the file: model.max_seq_len
  bool shuffle = true;
  uint64_t shuffle_seed = 1234;
  int prefetch_batches = 4;
};

struct BatchSpec {
  int64_t global_sequences = 0;                // sequences per step (global_tokens in the file is converted)
  int64_t micro_sequences = 1;
};

struct ParallelSpec {
  int world_size = 1, tensor = 1, pipeline = 1, data = 1;
  bool sequence_parallel = true;
  parallel::Schedule schedule = parallel::Schedule::one_f_one_b;
  int virtual_stages = 1;
  int zero_stage = 1;
  int64_t lanes = 1;                           // stays as launched; default: data
  double bucket_mib = 25;
  Transport transport = Transport::automatic;
  GradientSums reduction = GradientSums::exact;
  int threads_per_rank = 1;                    // "auto" in the file: cores / ranks on the node, at least 1
};

struct OptimizerSpec {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, grad_clip = 1.0;   // grad_clip 0: off
  std::vector<std::string> decay_exclude;      // of norm, bias, embedding
};

struct ScheduleSpec {
  int64_t total_steps = 0, warmup_steps = 0, decay_steps = 0;   // tokens in the file are converted, rounding up
  double lr = 3e-4, min_lr = 0;
  LrSchedule type = LrSchedule::cosine;
  BatchLrRule batch_lr_rule = BatchLrRule::none;   // of a run that begins from a checkpoint of another batch
};

struct EvalSpec {
  int64_t every_steps = 0;                     // 0: never
  int64_t max_sequences = 0;                   // 0: the whole validation set
};

struct CheckpointSpec {
  std::string dir;                             // "" : <run>/ckpt
  int64_t every_steps = 0;                     // 0: only at the end and on request
  bool on_exit = true;
  int keep_last = 3;
  int64_t keep_every_steps = 0;
  double chunk_mib = 8;
};

enum class TooFewNodes { wait, requeue, stop };

struct FaultSpec {
  int max_restarts = 0;
  double heartbeat_seconds = 1, collective_timeout_seconds = 60, step_timeout_seconds = 600;
  int64_t skip_bad_steps = 5;                  // in a row; one more stops the run
  // Without progress, in the phases that are no steps.
  double setup_timeout_seconds = 600, data_timeout_seconds = 600, load_timeout_seconds = 600;
  double evaluation_timeout_seconds = 600, save_timeout_seconds = 600;
  double start_skew_seconds = 21600;           // of a rank that waits for others before the first step
  double node_silence_seconds = 2, grace_seconds = 30;
  bool supervisor_takeover = false;            // a node starts another supervisor when it is dead
  TooFewNodes too_few_nodes = TooFewNodes::wait;
  double wait_for_nodes_seconds = 600;
  bool elastic = true;                         // a smaller width where a node is lost and no spare is left
};

struct ObservabilitySpec {
  std::string run_dir = "runs", run_id;        // run_id "": made from name and time
  int64_t log_every_steps = 1;
  int64_t rank_metrics_every_steps = 100;      // the numbers of every rank; 0: never
  bool save_gradients = false;                 // write the first step's gradients to <run>/gradients/
};

/// What `launch --submit` asks Slurm for. Empty texts and zeros leave the choice to the site.
struct SlurmSpec {
  std::string partition, account, qos, reservation, constraint;
  std::string time;                            // as sbatch takes it: "90", "1-12:00:00"
  int nodes = 0;                               // that the mesh needs; 0: counted from cores or GPUs of a node
  int spares = 0;
  int gpus_per_node = 0, cpus_per_node = 0;    // cpus_per_node 0: whole nodes
  std::string gpu_type;
  int signal_seconds = 0;                      // 0: from what a save is expected to take
  bool requeue = true;
  std::vector<std::string> arguments, setup;   // of sbatch; lines of shell before the program
};

enum class RankStart { automatic, mpirun, pmix };

struct LauncherSpec {
  int slots = 0;                               // of a node; 0: as many ranks as wanted (oversubscribing cores, with a note)
  int ranks_per_gpu = 1;                       // ranks that share one GPU
  std::string mpirun = "mpirun";
  std::vector<std::string> hosts;              // "node0", "node0:4"; empty: this machine, or the nodes of the Slurm job
  std::string hostfile;                        // the same, a line each
  std::string shell = "ssh";                   // starts the agents on hosts
  int port = 0;                                // where the supervisor listens; 0: any that is free
  RankStart start = RankStart::automatic;
  std::string network;                         // "10.1.0.0/16"; "": that of the agents' connections
  bool bind = true;                            // ranks to cores, where each has cores of its own
  bool tensor_across_nodes = false;
  SlurmSpec slurm;
  std::vector<std::pair<std::string, std::string>> env;
};

struct JobSpec {
  int version = 1;
  std::string name = "job", description;
  uint64_t seed = 1234;
  std::string device = "cpu";                  // or "cuda", or "auto": decided by the machine that runs
  ModelSpec model;
  DataSpec data;
  BatchSpec batch;
  ParallelSpec parallelism;
  DType compute = DType::f32;                  // precision.compute
  bool tf32 = false;                           // precision.tf32: f32 products on tensor cores
  Recompute recompute = Recompute::none;       // memory.activation_recompute
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  EvalSpec eval;
  CheckpointSpec checkpoint;
  FaultSpec fault_tolerance;
  ObservabilitySpec observability;
  LauncherSpec launcher;

  parallel::MeshShape mesh() const {
    return {.tp = parallelism.tensor, .cp = 1, .dp = parallelism.data, .pp = parallelism.pipeline};
  }
  int64_t tokens_per_step() const { return batch.global_sequences * data.seq_len; }
  /// Micro-batches of one lane in a step; of one data-parallel rank: lanes / data times as many.
  int64_t micro_batches_per_lane() const {
    return batch.global_sequences / (parallelism.lanes * batch.micro_sequences);
  }
  int64_t micro_batches_per_rank() const { return micro_batches_per_lane() * (parallelism.lanes / parallelism.data); }
};

}  // namespace trainctl
