// JobSpec is the job spec after parsing: all fields have their types and defaults and are checked. Only
// parse_job (runtime/spec/parse.h) makes it. The field table (runtime/spec/fields/fields.cpp) gives the text,
// range and default of each field.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer_choice.h"
#include "parallel/context_comm.h"
#include "parallel/exchange_choice.h"
#include "parallel/lanes.h"
#include "parallel/mesh.h"
#include "parallel/muon.h"
#include "parallel/pipeline.h"
#include "parallel/state_rows.h"
#include "runtime/base/dtype.h"
#include "runtime/base/words.h"
#include "runtime/spec/fields/fp8_spec.h"
#include "runtime/spec/fields/model_spec.h"

namespace trainctl {

/// The kind of device of the ranks. `automatic` is decided once, when the run is launched.
enum class DeviceChoice { automatic, cpu, cuda };
template <>
struct Words<DeviceChoice> {
  static constexpr std::string_view list[] = {"auto", "cpu", "cuda"};
};
/// Whether attention, positions and targets stay inside a document. `automatic` is decided once, when the run
/// is launched; where it was not, they do not.
enum class Documents { automatic, ignore, mask };
template <>
struct Words<Documents> {
  static constexpr std::string_view list[] = {"auto", "ignore", "mask"};
};
/// How documents become samples: the tokens of all documents, cut anywhere, or data/packing.h.
enum class PackingKind { stream, best_fit };
template <>
struct Words<PackingKind> {
  static constexpr std::string_view list[] = {"stream", "best_fit"};
};
/// Which targets have a loss. `automatic` is decided once, when the run is launched; where it was not, all.
enum class TargetLoss { automatic, all, mask, weights };
template <>
struct Words<TargetLoss> {
  static constexpr std::string_view list[] = {"auto", "all", "mask", "weights"};
};
enum class LrSchedule { constant, linear, cosine, wsd };
enum class BatchLrRule { none, linear, square_root };
enum class TokenFormat { automatic, megatron, llmc, raw };
/// What backward makes again instead of keeping it. first_layers: what `full` does, of the first layers of
/// each virtual stage (JobSpec::recompute_layers).
enum class Recompute { none, selective, full, first_layers };
enum class Transport { automatic, nccl, host };   // how ranks on GPUs exchange device memory
enum class MeshFrom { given, automatic };
template <>
struct Words<MeshFrom> {
  static constexpr std::string_view list[] = {"given", "auto"};
};
// Sum over data-parallel ranks: in our tree order, or in NCCL's order.
enum class GradientSums { exact, fast };

struct DataSource {
  std::string path;                            // may hold a glob
  TokenFormat format = TokenFormat::automatic;
  std::optional<DType> dtype;                  // raw files only
  double weight = 1.0;
  std::string name;
};

struct DataSpec {
  data::TokenizerChoice tokenizer;
  std::vector<DataSource> train, val;
  int64_t seq_len = 0;                         // 0 in the file: model.max_seq_len
  bool shuffle = true;
  uint64_t shuffle_seed = 1234;
  Documents documents = Documents::automatic;
  bool count_boundary_targets = false;
  PackingKind packing = PackingKind::stream;
  TargetLoss loss = TargetLoss::automatic;
  int prefetch_batches = 4;
  bool masks_documents() const {
    return documents == Documents::mask || packing == PackingKind::best_fit;  // checks.cpp: not `ignore`
  }
  bool weighs_targets() const { return loss == TargetLoss::weights; }
  bool reads_loss() const { return loss == TargetLoss::mask || loss == TargetLoss::weights; }
  bool masks_targets() const { return masks_documents() || reads_loss(); }
};

struct BatchSpec {
  int64_t global_sequences = 0;                // sequences per step (global_tokens in the file is converted)
  int64_t micro_sequences = 1;
};

/// What NCCL may take.
struct NcclSpec {
  int blocks = 16, edge_blocks = 4;
  int buffer_kib = 4096;
  int traffic_class = -1;                      // -1: NCCL's own
};

/// Whether each of the context ranks has whole ones of the KV heads that a tensor rank has.
inline bool has_whole_heads(int64_t kv_heads, int tensor, int context) {
  return std::max<int64_t>(1, kv_heads / tensor) % context == 0;
}

struct ParallelSpec {
  MeshFrom mesh_from = MeshFrom::given;  // automatic: the widths that are not given are not chosen yet
  int world_size = 1, tensor = 1, context = 1, pipeline = 1, data = 1;
  int expert = 1;              // ranks of the data-parallel group that share experts
  int expert_tensor = 0;  // 1: experts are whole, and tensor ranks share them, too; 0: cut as `tensor` says
  int64_t context_blocks = 1;  // parts of a sequence; fixed at birth
  parallel::ContextComm context_comm_type = parallel::ContextComm::all_gather;
  int widest_tensor = 0;       // of the run, where it is more than the KV heads; else 0
  bool sequence_parallel = true;
  parallel::Schedule schedule = parallel::Schedule::one_f_one_b;
  int virtual_stages = 1;
  std::vector<int64_t> stage_layers;           // of each virtual stage in model order; empty: by cost
  int zero_stage = 1;
  bool reshard_after_forward = true;           // ZeRO-3: a part's weights are gathered for each use
  int64_t lanes = 1;                           // fixed at launch
  double bucket_mib = 25;                      // "auto" in the file: by data and chunk_mib
  bool early_receives = true;                  // of pipeline messages: as soon as their memory is free
  Transport transport = Transport::automatic;
  GradientSums reduction = GradientSums::exact;
  DType reduction_dtype = DType::f32;          // in which gradients travel between data-parallel ranks
  parallel::ExchangeChoice reduction_algorithm = parallel::ExchangeChoice::automatic;
  NcclSpec nccl;
  int threads_per_rank = 1;                    // "auto" in the file: cores / ranks on the node, at least 1
  parallel::MeshShape mesh() const { return {.tp = tensor, .cp = context, .dp = data, .pp = pipeline}; }
  /// Ranks that have the same parameters: each computes other tokens.
  int ranks_of_parameters() const { return context * data; }
  /// Parts of a micro-batch's tokens, of which a tensor rank sends one to whole experts; 1: all send all.
  int token_parts() const { return expert_tensor == 1 ? tensor : 1; }
  /// Tensor ranks that cut an expert.
  int ranks_of_expert() const { return tensor / token_parts(); }
  /// Ranks over which experts are shared out.
  int ranks_of_experts() const { return token_parts() * ranks_of_parameters(); }
  /// Ranks of other tokens that share experts: as many lanes come to an expert at one time.
  int expert_lanes() const { return expert / token_parts(); }
  /// From ZeRO-2 on, and with context blocks: each lane is reduced as soon as it is complete, and the
  /// data-parallel ranks compute neighbouring lanes at one time (parallel::lanes_at_time). Otherwise a rank
  /// has neighbouring lanes, reduced once a step.
  bool reduces_each_lane() const {
    return (zero_stage >= 2 && ranks_of_parameters() > 1) || context_blocks > 1;
  }
  /// The lanes of a data-parallel rank where they are neighbours (not reduces_each_lane). Rank 0 has the most;
  /// no rank has more than one less.
  parallel::LaneRun lanes_of(int dp_rank) const { return parallel::lanes_of_rank(int(lanes), data, dp_rank); }
  /// How many lanes a rank computes in a step. Where each lane is reduced as soon as it is complete, all
  /// ranks run one program: one without a lane at the last time computes one that does not count.
  int lanes_computed_by(int dp_rank) const {
    return reduces_each_lane() ? parallel::times_of_lanes(int(lanes), data) : lanes_of(dp_rank).count();
  }
  /// Which lane the `i`-th of these is among all.
  int64_t lane_of(int dp_rank, int i) const {
    return reduces_each_lane() ? (int64_t(i) * data + dp_rank) % lanes : lanes_of(dp_rank).begin + i;
  }
  /// Its own of these, which come first.
  int counted_lanes_of(int dp_rank) const {
    const bool idles = reduces_each_lane() && dp_rank >= (lanes - 1) % data + 1;
    return lanes_computed_by(dp_rank) - (idles ? 1 : 0);
  }
  /// Whether context ranks exchange their tokens of all heads for all tokens of their heads.
  bool exchanges_heads() const { return context > 1 && context_comm_type == parallel::ContextComm::a2a; }
  /// Context blocks of a rank.
  int blocks_of_rank() const { return int(context_blocks / context); }
  parallel::VirtualStages stage_order() const {
    return parallel::virtual_stages_of(schedule, pipeline, virtual_stages);
  }
  /// Up to which tensor size chunks fall within a rank's part, whatever the KV heads.
  int cut_for_tensor() const { return std::max(tensor, widest_tensor); }
};

/// Kinds of parameters that may go without weight decay. An embedding: of tokens or of positions.
enum class DecayKind { norm, bias, embedding };
template <>
struct Words<DecayKind> {
  static constexpr std::string_view list[] = {"norm", "bias", "embedding"};
};

/// adamw, lion, sgd: of every parameter. muon: of the layers' matrices; the others have AdamW.
enum class OptimizerType { adamw, muon, lion, sgd };
template <>
struct Words<OptimizerType> {
  static constexpr std::string_view list[] = {"adamw", "muon", "lion", "sgd"};
};

/// Where the optimizer's state is between two updates.
enum class StateOffload { none, disk, host };
template <>
struct Words<StateOffload> {
  static constexpr std::string_view list[] = {"none", "disk", "host"};
};

struct MuonSpec {
  int steps = 5;
  parallel::MuonScale scale = parallel::MuonScale::match_rms;
  bool split_heads = false;  // each head of queries, keys and values is a matrix
};

/// A factor for the parameters of each role. embedding: of tokens or of positions; matrix: those of layers;
/// vector: norms and biases.
struct RoleFactors {
  double embedding = 1, head = 1, matrix = 1, vector = 1;
};

/// Whether updates change master weights, or the compute copies (kernels/weight_rounding.h).
enum class MasterWeights { f32, none };
template <>
struct Words<MasterWeights> {
  static constexpr std::string_view list[] = {"f32", "none"};
};

struct OptimizerSpec {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, grad_clip = 1.0;   // grad_clip 0: off
  std::vector<DecayKind> decay_exclude;
  OptimizerType type = OptimizerType::adamw;
  double momentum = 0.95;  // of muon and sgd
  MuonSpec muon;
  kernels::Moments moments = kernels::Moments::f32;
  MasterWeights master_weights = MasterWeights::f32;
  double ema_decay = 0;  // of averages of the weights; 0: none
  StateOffload offload = StateOffload::none;
  std::string offload_directory;  // of the file of each rank; empty: node-local scratch
  RoleFactors lr_scale, weight_decay_scale;
};

struct ScheduleSpec {
  // Tokens in the file are converted, rounding up.
  int64_t total_steps = 0, warmup_steps = 0, decay_steps = 0;
  double lr = 3e-4, min_lr = 0;
  LrSchedule type = LrSchedule::cosine;
  BatchLrRule batch_lr_rule = BatchLrRule::none;   // for a branch with another global batch than its parent
};

struct EvalSpec {
  int64_t every_steps = 0;                     // 0: never
  int64_t max_sequences = 0;                   // 0: the whole validation set
  std::vector<std::string> tasks = {};         // files of multiple-choice tasks
  int64_t tasks_every_steps = 0;               // 0: at every evaluation
  int64_t max_examples = 1000;                 // of each task; 0: all
};

enum class MemoryCopies { automatic, on, off, one };
enum class PartnerCopies { automatic, off };
enum class SaveIntervalChoice { given, automatic };
enum class EverySteps { automatic, given };

struct CheckpointSpec {
  std::string dir;                             // "" : <run>/ckpt
  SaveIntervalChoice interval = SaveIntervalChoice::given;
  int64_t every_steps = 0;                     // 0: not by steps
  double every_seconds = 0;                    // 0: not by time
  double mtbf_seconds = 0;                     // mean time between failures of the run; 0: observed
  bool on_exit = true;
  int keep_last = 3;
  int64_t keep_every_steps = 0;
  double chunk_mib = 8;
  MemoryCopies memory = MemoryCopies::automatic;   // copies of the state in the memory of its node
  EverySteps memory_when = EverySteps::given;
  int64_t memory_every_steps = 1;                     // if given; 0: only with every_steps
  PartnerCopies partner = PartnerCopies::automatic;   // second copies of it in the memory of another node
  int64_t partner_every_steps = 0;             // 0: as the network allows
  double exit_timeout_seconds = 600;           // longest time of a stop
  /// Whether anything is saved before the end.
  bool saves_while_training() const {
    return interval == SaveIntervalChoice::automatic || every_steps > 0 || every_seconds > 0 ||
           keep_every_steps > 0;
  }
  std::string store;                           // s3://bucket/prefix or a folder; "": no copies
  EverySteps store_when = EverySteps::given;
  int64_t store_every_steps = 0;  // if given; 0: every checkpoint
  double write_mib_per_s = 0;  // of a rank, behind the training; 0: no limit
  double scrub_mib_per_s = 400;
};

enum class TooFewNodes { wait, requeue, stop };

/// What is done about a node that is slower than the others.
enum class SlowNodes { off, notify, swap, rebalance };
template <>
struct Words<SlowNodes> {
  static constexpr std::string_view list[] = {"off", "notify", "swap", "rebalance"};
};

struct FaultSpec {
  int max_restarts = 0;
  double heartbeat_seconds = 1, collective_timeout_seconds = 60, step_timeout_seconds = 600;
  int64_t skip_bad_steps = 5;                  // at most so many in a row; one more stops the run
  // Longest times without progress in phases outside of training steps.
  double setup_timeout_seconds = 600, data_timeout_seconds = 600, load_timeout_seconds = 600;
  double evaluation_timeout_seconds = 600, save_timeout_seconds = 600;
  double start_skew_seconds = 21600;           // longest wait of a rank for others before the first step
  double node_silence_seconds = 2, grace_seconds = 30;
  bool supervisor_takeover = false;            // a node starts another supervisor when the supervisor is dead
  TooFewNodes too_few_nodes = TooFewNodes::wait;
  double wait_for_nodes_seconds = 600;
  bool elastic = true;                         // use a smaller width if a node is lost and there is no spare
  SlowNodes slow_nodes = SlowNodes::notify;
};

/// What is done about a loss that leaves its level.
enum class LossPolicy { off, warn, skip, lower_rate };
template <>
struct Words<LossPolicy> {
  static constexpr std::string_view list[] = {"off", "warn", "skip", "lower_rate"};
};

struct LossMonitorSpec {
  LossPolicy policy = LossPolicy::warn;
  int64_t window = 100;         // steps that say what is usual
  double threshold = 10;        // above the median, in robust deviations
  int64_t diverged_steps = 20;  // so many in a row are a new level, not a spike
  int64_t plateau_steps = 0;    // 0: not looked for
  int64_t lead_steps = 0;       // steps before the first bad one that belong to it
  double rate_factor = 0.5;
  int64_t rate_steps = 500;
  int64_t max_rollbacks = 3;  // one more stops the run
};

/// What people hear of without looking.
enum class AlertCause {
  failure,
  corruption,
  spike,
  divergence,
  loss,
  rate,
  goodput,
  silence,
  disk,
  temperature,
  finished
};
template <>
struct Words<AlertCause> {
  static constexpr std::string_view list[] = {"failure", "corruption",  "spike",   "divergence",
                                              "loss",    "rate",        "goodput", "silence",
                                              "disk",    "temperature", "finished"};
};

struct AlertsSpec {
  std::string webhook;               // http:// or https://; "": none
  std::vector<std::string> command;  // program and arguments; empty: none
  std::vector<AlertCause> on = {AlertCause::failure,     AlertCause::corruption, AlertCause::spike,
                                AlertCause::divergence,  AlertCause::loss,       AlertCause::rate,
                                AlertCause::goodput,     AlertCause::silence,    AlertCause::disk,
                                AlertCause::temperature, AlertCause::finished};
  double loss_above = 0;          // 0: no such limit
  double tokens_per_s_below = 0;  // 0: no such limit
  double goodput_below_percent = 0;
  double silence_seconds = 900;
  double disk_free_percent = 5;
  double temperature_above_c = 0;  // 0: no such limit
  double timeout_seconds = 10;
  int tries = 3;
  bool exist() const { return !webhook.empty() || !command.empty(); }
  bool has(AlertCause cause) const { return std::find(on.begin(), on.end(), cause) != on.end(); }
};

struct ObservabilitySpec {
  std::string run_dir = "runs", run_id;        // run_id "": the job's name and four random letters and digits
  int64_t log_every_steps = 1;
  int64_t rank_metrics_every_steps = 100;      // every rank reports its numbers; 0: never
  int64_t state_digest_every_steps = 16;       // the state is digested, and replicas compare theirs; 0: never
  int64_t replay_every_steps = 256;            // replicas compute one micro-batch and compare; 0: never
  bool save_gradients = false;                 // write the first step's gradients to <run>/gradients/
  LossMonitorSpec loss_monitor;
  AlertsSpec alerts;
};

/// The request of `launch --submit` to Slurm. With "" and 0 the site's default applies.
struct SlurmSpec {
  std::string partition, account, qos, reservation, constraint;
  std::string time;                            // in sbatch's form: "90", "1-12:00:00"
  int nodes = 0;                               // nodes for the mesh; 0: computed from cores or GPUs of a node
  int spares = 0;
  int gpus_per_node = 0, cpus_per_node = 0;    // cpus_per_node 0: whole nodes
  std::string gpu_type;
  int signal_seconds = 0;                      // 0: computed from the expected duration of a save
  bool requeue = true;
  std::vector<std::string> arguments, setup;   // arguments of sbatch; shell lines before the program
};

enum class RankStart { automatic, mpirun, pmix };

/// The command that starts the agents on other nodes, with ssh's form of arguments; or none: something else
/// starts them.
class RemoteShell {
 public:
  RemoteShell() = default;
  static RemoteShell none() { return RemoteShell(std::nullopt); }
  /// "none", or the command.
  static RemoteShell of(const std::string& text) { return text == "none" ? none() : RemoteShell(text); }
  const std::optional<std::string>& command() const { return command_; }
  std::string text() const { return command_.value_or("none"); }

 private:
  explicit RemoteShell(std::optional<std::string> command) : command_(std::move(command)) {}
  std::optional<std::string> command_ = "ssh";
};

struct LauncherSpec {
  // Per node; 0: as many as the job needs (a note if cores are oversubscribed).
  int slots = 0;
  int ranks_per_gpu = 1;                       // ranks that share one GPU
  std::string mpirun = "mpirun";
  // "node0", "node0:4"; empty: this machine, or the nodes of the Slurm job.
  std::vector<std::string> hosts;
  std::string hostfile;                        // a file with one host per line
  RemoteShell shell;
  int port = 0;                                // port of the supervisor; 0: any free port
  RankStart start = RankStart::automatic;
  std::string network;                         // "10.1.0.0/16"; "": the network of the agents' connections
  bool bind = true;                            // bind ranks to cores if there are enough cores
  bool tensor_across_nodes = false;
  double burn_in = 0;                           // seconds of work before a node's first step; 0: none
  static constexpr double kBurnInAnswerS = 20;  // more, for devices that do not answer
  SlurmSpec slurm;
  std::vector<std::pair<std::string, std::string>> env;
};

/// precision.loss_scale, of a job in f16 (runtime/train/loss_scale.h). Powers of two.
struct LossScaleSpec {
  static constexpr int64_t kLargest = int64_t{1} << 32;
  int64_t initial = 65536, minimum = 1;
  int64_t growth_interval = 2000;  // steps; 0: it never grows
};

struct JobSpec {
  int version = 1;
  std::string name = "job", description;
  uint64_t seed = 1234;
  DeviceChoice device = DeviceChoice::cpu;     // automatic: decided once, when the run is launched
  ModelSpec model;
  DataSpec data;
  BatchSpec batch;
  ParallelSpec parallelism;
  DType compute = DType::f32;                  // precision.compute
  Fp8Spec fp8;                                 // precision.fp8 and precision.keep
  LossScaleSpec loss_scale;                    // precision.loss_scale
  bool tf32 = false;                           // precision.tf32: f32 products on tensor cores
  Recompute recompute = Recompute::none;       // memory.activation_recompute
  int64_t recompute_layers = 0;                // the same field as a number, where recompute is first_layers
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  EvalSpec eval;
  CheckpointSpec checkpoint;
  FaultSpec fault_tolerance;
  ObservabilitySpec observability;
  LauncherSpec launcher;

  parallel::MeshShape mesh() const { return parallelism.mesh(); }
  /// How many layers of a virtual stage of `layers` layers are computed again in backward: the first ones.
  int64_t recomputed_layers(int64_t layers) const {
    if (recompute == Recompute::full) return layers;
    return recompute == Recompute::first_layers ? std::min(layers, recompute_layers) : 0;
  }
  bool recomputes_layers() const { return recomputed_layers(1) > 0; }
  int64_t tokens_per_step() const { return batch.global_sequences * data.seq_len; }
  /// Micro-batches of one lane in a step.
  int64_t micro_batches_per_lane() const {
    return batch.global_sequences / (parallelism.lanes * batch.micro_sequences);
  }
  /// Micro-batches that a data-parallel rank computes in a step.
  int64_t micro_batches_of(int dp_rank) const {
    return micro_batches_per_lane() * parallelism.lanes_computed_by(dp_rank);
  }
};

}  // namespace trainctl
