// What a trainer is put together from: the communicators of its mesh, the description of its data, the speed of
// its devices.
#include "runtime/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <tuple>

#include "ckpt/pieces.h"
#include "kernels/device.h"
#include "runtime/base/error.h"
#include "runtime/base/record.h"
#include "runtime/base/json.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/units.h"

namespace trainctl {

using parallel::Communicator;

MeshCommunicators split_mesh(const RankGroups& groups, Communicator& world, bool tied) {
  const auto& [tp, dp, pp] = std::tie(groups.tp, groups.dp, groups.pp);
  const auto along = [&](const parallel::MeshGroup& g, const std::string& name,
                         parallel::Traffic traffic = parallel::Traffic::bulk) {
    return world.split_for(traffic, g.first, g.rank, name);
  };
  MeshCommunicators c;
  c.tp = along(tp, fmt::format("tp group of stage {}, dp {}", pp.rank, dp.rank));
  c.dp = along(dp, fmt::format("dp group of stage {}, tp {}", pp.rank, tp.rank));
  // Numbers on the host, and the edges that are split from it.
  c.pp = along(pp, fmt::format("pp group of dp {}, tp {}", dp.rank, tp.rank), parallel::Traffic::none);
  if (tied && pp.size > 1)
    c.tied = world.split(groups.tied_peer ? pp.first : -1, pp.rank,
                         fmt::format("tied embedding of dp {}, tp {}", dp.rank, tp.rank));
  c.edges = make_edges(*c.pp, groups.ring);
  return c;
}

DeviceModel device_of_rank(const JobSpec& job, const kernels::Backend& backend, const Communicator& dp) {
  DeviceModel device = device_of_kind(job, backend.is_host() ? DeviceKind::cpu : DeviceKind::cuda);
  device.adds_gradients = dp.reduces();
  return device;
}

std::vector<RankTimes> gather_times(const parallel::MeshShape& shape, const MeshCommunicators& comms,
                                    const RankTimes& own) {
  ENSURE(shape.cp == 1, "cp = {}", shape.cp);  // the order of ranks: tp, dp, pp
  std::vector<RankTimes> gathered{own};
  for (Communicator* axis : {comms.tp.get(), comms.dp.get(), comms.pp.get()}) {
    std::vector<RankTimes> parts(axis->rank() == 0 ? gathered.size() * size_t(axis->size()) : 0);
    parallel::gather(*axis, 0, gathered.data(), parts.data(), gathered.size() * sizeof(RankTimes), 7);
    if (parts.empty()) return {};
    gathered = std::move(parts);
  }
  return gathered;
}

std::unique_ptr<SaveDecider> make_save_decider(const JobSpec& job, const RankOptions& options, int rank,
                                               int64_t step, bool in_memory, Control& control, Clock& clock) {
  const auto event = [&control](EventKind kind) {
    return [&control, kind](const auto& record) { control.event(kind, record_text(record)); };
  };
  return std::make_unique<SaveDecider>(
      SaveDecider::Options{.decides = rank == 0,
                           .checkpoint = job.checkpoint,
                           .history = options.saves,
                           .nodes = int(std::max<size_t>(1, options.nodes.size())),
                           .step = step,
                           .waits = !in_memory,
                           .decided = event(EventKind::interval),
                           .warned = event(EventKind::interval_short)},
      clock);
}

void note_gpu(GpuWatch& watch, RankTimes& times) {
  const kernels::GpuReadings now = watch.last();
  times.temperature_c = now.temperature_c.value_or(NAN);
  times.power_w = now.power_w.value_or(NAN);
  times.sm_clock_mhz = now.sm_clock_mhz.value_or(NAN);
}

data::DatasetOptions dataset_options(const JobSpec& job, bool validation) {
  data::DatasetOptions o;
  for (const DataSource& s : validation ? job.data.val : job.data.train) {
    data::SourceOptions source{.path = s.path, .dtype = s.dtype, .weight = s.weight, .name = s.name};
    switch (s.format) {
      case TokenFormat::automatic: source.format = data::Format::automatic; break;
      case TokenFormat::megatron: source.format = data::Format::megatron; break;
      case TokenFormat::llmc: source.format = data::Format::llmc; break;
      case TokenFormat::raw: source.format = data::Format::raw; break;
    }
    o.sources.push_back(std::move(source));
  }
  o.seq_len = job.data.seq_len;
  o.vocab_size = job.model.vocab_size;
  o.shuffle = validation ? false : job.data.shuffle;
  o.seed = job.data.shuffle_seed;
  return o;
}

double all_ranks_peak(const JobSpec& job, const RankOptions& options, Communicator& world, kernels::Backend& backend) {
  if (backend.is_host()) {
    const double cores = std::max(1u, std::thread::hardware_concurrency());
    return options.matmul_flops_per_s * std::min(double(world.size()), std::max(1.0, cores / job.parallelism.threads_per_rank));
  }
  const double gpus = std::ceil(double(world.size()) / job.launcher.ranks_per_gpu);
  if (options.matmul_flops_per_s > 0) return options.matmul_flops_per_s * gpus;
  // A GPU that no table knows: one rank measures it.
  const double measured = world.rank() == 0 ? kernels::measure_matmul_flops_per_s(backend, job.compute) : 0;
  return measured * gpus;
}

kernels::AdamWStep adamw_step(const JobSpec& job, int64_t step, int64_t skipped, double grad_norm) {
  kernels::AdamWStep a;
  a.lr = float(learning_rate(job.schedule, step));
  a.beta1 = float(job.optimizer.beta1);
  a.beta2 = float(job.optimizer.beta2);
  a.eps = float(job.optimizer.eps);
  if (job.optimizer.grad_clip > 0)
    a.grad_scale = float(std::min(1.0, job.optimizer.grad_clip / (grad_norm + 1e-6)));
  // Counts the updates that were made: a skipped step changed no moment.
  const double updates = double(step + 1 - skipped);
  a.bias_correction1 = float(1.0 - std::pow(job.optimizer.beta1, updates));
  a.bias_correction2 = float(1.0 - std::pow(job.optimizer.beta2, updates));
  return a;
}

namespace {

uint64_t slot_file_bytes(const parallel::ShardedParams& params, size_t tensors) {
  uint64_t bytes = 0;
  size_t chunks = 0;
  for (const auto& chunk : params.state_chunks()) {
    if (!chunk.saved_here) continue;
    bytes += 3 * uint64_t(chunk.box.count()) * sizeof(float);
    chunks += 3;
  }
  return ckpt::memory_for_pieces(bytes, chunks, tensors);
}

int ranks_on_node_of(const SlotsWanted& wanted) {
  for (const NodeRanks& node : wanted.options.nodes)
    if (wanted.rank >= node.first && wanted.rank < node.first + node.count) return node.count;
  return wanted.job.mesh().world_size();
}

std::unique_ptr<ckpt::NodeMemory> open_own_slots(const SlotsWanted& wanted, uint64_t bytes) {
  const std::string& folder = wanted.options.memory_folder;
  if (folder.empty()) throw Error(ErrorCode::kIo, "this node has no folder in /dev/shm for the run");
  const auto ranks = uint64_t(ranks_on_node_of(wanted));
  const uint64_t available = system_memory().available_bytes, need = ranks * (bytes + wanted.planned_bytes);
  if (wanted.job.checkpoint.memory == MemoryCopies::automatic && available > 0 && need > available)
    throw Error(ErrorCode::kIo,
                fmt::format("two copies of the state and the ranks here would take {} of memory, and {} are free",
                            brief_memory_text(need), brief_memory_text(available)));
  return ckpt::shared_memory(
      folder + "/" + ckpt::piece_file_name(wanted.rank, wanted.job.mesh().world_size()), bytes);
}

}  // namespace

std::unique_ptr<ckpt::NodeMemory> open_slots(const SlotsWanted& wanted, const parallel::ShardedParams& params,
                                             const MeshCommunicators& comms, std::string& why) {
  const MemoryCopies mode = wanted.job.checkpoint.memory;
  if (mode == MemoryCopies::off) return nullptr;
  std::unique_ptr<ckpt::NodeMemory> slots;
  try {
    slots = open_own_slots(wanted, slot_file_bytes(params, wanted.tensors));
  } catch (const Error& error) {
    // An agent that has no folder says why itself.
    if (mode == MemoryCopies::on || !wanted.options.memory_folder.empty()) why = error.what();
  }
  std::vector<double> without{slots ? 0.0 : 1.0};
  for (Communicator* axis : {comms.dp.get(), comms.pp.get(), comms.tp.get()})
    parallel::all_reduce_f64(*axis, without);
  if (without[0] == 0) return slots;
  if (mode == MemoryCopies::on)
    throw Error(ErrorCode::kIo,
                fmt::format("checkpoint.memory is on, and {}; set it to auto or off",
                            why.empty() ? "another rank has no memory for its copies" : why));
  return nullptr;
}

ckpt::StateInfo describe_state(const StateDescription& now) {
  const auto& [job, options] = std::tie(now.job, now.options);
  ckpt::StateInfo s;
  s.run_id = options.run_id;
  s.epoch = options.epoch;
  s.step = now.step;
  s.tokens = now.start.tokens_at(job, now.step);
  s.seed = job.seed;
  s.spec_hash = options.spec_hash;
  s.program_version = TRAINCTL_VERSION;
  s.numerics = now.numerics;
  s.lineage_json = options.lineage_json;
  const parallel::MeshShape mesh = job.mesh();
  nlohmann::ordered_json extra{
      {"samples", now.start.samples_at(job, now.step)},
      {"lanes", job.parallelism.lanes},
      {"lr", now.step > 0 ? learning_rate(job.schedule, now.step - 1) : 0.0},
      {"loss", std::isfinite(now.last_loss) ? nlohmann::ordered_json(now.last_loss) : nlohmann::ordered_json()},
      {"mesh",
       {{"tensor", mesh.tp}, {"pipeline", mesh.pp}, {"data", mesh.dp}, {"zero_stage", job.parallelism.zero_stage}}},
      {"data", parse_ordered_json(now.fingerprints_json)}};
  if (now.bad_steps.total > 0)
    extra["bad_steps"] = {{"total", now.bad_steps.total}, {"in_a_row", now.bad_steps.in_a_row}};
  s.extra_json = dump_json(extra);
  s.resolved_spec_json = options.resolved_spec_json.empty() ? "{}" : options.resolved_spec_json;
  return s;
}

RunPhase phase_of(parallel::Act act) {
  using parallel::Act;
  switch (act) {
    case Act::post_activation:
    case Act::wait_activation: return RunPhase::receiving_activation;
    case Act::wait_weights:
    case Act::forward: return RunPhase::forward;
    case Act::send_activation:
    case Act::release_activation: return RunPhase::sending_activation;
    case Act::post_gradient:
    case Act::wait_gradient: return RunPhase::receiving_gradient;
    case Act::backward:
    case Act::backward_input: return RunPhase::backward;
    case Act::backward_weight: return RunPhase::weight_gradient;
    case Act::send_gradient:
    case Act::release_gradient: return RunPhase::sending_gradient;
    case Act::reduce:
    case Act::sum: return RunPhase::reducing_gradients;
    case Act::step:
    case Act::gather: return RunPhase::optimizer;
  }
  ENSURE(false, "action {}", int(act));
}

void require_equal_numerics(Communicator& world, const std::string& numerics) {
  std::array<char, 256> first{};
  numerics.copy(first.data(), first.size() - 1);
  const std::array<char, 256> own = first;
  parallel::broadcast(world.host(), 0, first.data(), first.size());
  if (first == own) return;
  throw Error(ErrorCode::kPreflight,
              fmt::format("rank {} computes with {}, rank 0 with {}: one run needs devices of one kind, or its bits depend on which "
                          "rank computes what; choose equal machines, or equal GPUs with CUDA_VISIBLE_DEVICES",
                          world.rank(), own.data(), first.data()));
}

void check_validation_size(const data::Dataset& validation, const JobSpec& job) {
  const uint64_t unit = uint64_t(job.parallelism.lanes * job.batch.micro_sequences);
  if (validation.samples_per_epoch() >= unit) return;
  throw Error(ErrorCode::kData,
              fmt::format("the validation set holds {} sequences of {} tokens, fewer than parallelism.lanes = {} x "
                          "batch.micro_sequences = {}; give it more text or set eval.every_steps = 0",
                          validation.samples_per_epoch(), job.data.seq_len, job.parallelism.lanes, job.batch.micro_sequences));
}

RankOutcome run_rank(const JobSpec& job, const RankOptions& options, Communicator& world,
                     kernels::Backend& backend, Control& control, FileSystem& fs) {
  return Trainer(job, options, world, backend, control, fs).run();
}

}  // namespace trainctl
