// Checks between fields. Each looks only at fields that are sound, so that one mistake is reported once.
#include <fmt/format.h>

#include <cstdlib>

#include <algorithm>
#include <numeric>
#include <set>

#include "parallel/schedules.h"
#include "runtime/base/text.h"
#include "runtime/spec/divisors.h"
#include "runtime/spec/presets.h"
#include "runtime/spec/resolution.h"

namespace trainctl::spec {

namespace {

bool power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

int64_t power_of_two_up_to(int64_t n) {
  int64_t power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

/// Whether each rank has whole KV heads, or an equal part of the channels of one.
bool shares_kv_heads(const Resolution& r, int64_t tensor) {
  const ModelSpec& m = r.job.model;
  if (m.num_kv_heads % tensor == 0) return true;
  const bool channels_known = r.sound({"model.hidden_size", "model.num_heads", "model.head_dim"});
  return tensor % m.num_kv_heads == 0 && (!channels_known || m.num_kv_heads * m.head_dim() % tensor == 0);
}

void check_tensor(Resolution& r) {
  const ModelSpec& m = r.job.model;
  const ParallelSpec& p = r.job.parallelism;
  const char* kTensor = "parallelism.tensor";
  if (!r.sound({kTensor})) return;
  struct Divided {
    const char *code, *message, *path;
    int64_t value;
  };
  std::vector<Divided> divided = {
      {"E0310", "tensor parallel size must divide the number of attention heads", "model.num_heads",
       m.num_heads},
      {"E0311", "tensor parallel size must divide the feed-forward width", "model.ffn_size", m.ffn_size},
  };
  std::erase_if(divided, [&](const Divided& d) { return !r.sound(std::string(d.path)); });
  std::vector<int64_t> numbers;
  for (const Divided& d : divided) numbers.push_back(d.value);
  const int64_t rows = r.job.batch.micro_sequences * r.job.data.seq_len / p.context;
  const bool rows_known = r.sound({"batch.micro_sequences", "data.seq_len", "parallelism.sequence_parallel",
                                   "parallelism.context"}) &&
                          p.sequence_parallel;
  if (rows_known) numbers.push_back(rows);
  std::vector<int64_t> legal = common_divisors(numbers);
  const bool kv_heads_known = r.sound({"model.num_kv_heads"});
  if (kv_heads_known) std::erase_if(legal, [&](int64_t tensor) { return !shares_kv_heads(r, tensor); });
  const std::vector<std::string> help =
      numbers.empty() ? std::vector<std::string>{} : std::vector{use_one_of(legal)};
  for (const Divided& d : divided) {
    if (d.value % p.tensor != 0)
      r.report(d.code, d.message, {kTensor, d.path}, help,
               fmt::format("{} is not a multiple of {}", d.value, p.tensor));
  }
  const bool repeats_heads = m.num_kv_heads == m.num_heads && r.sound({"model.num_heads"});
  if (kv_heads_known && !repeats_heads && !shares_kv_heads(r, p.tensor))
    r.report("E0312",
             "tensor parallel size must divide the KV heads, or be a multiple of them that divides their "
             "channels",
             {kTensor, "model.num_kv_heads"}, help,
             m.num_kv_heads < p.tensor ? fmt::format("{} ranks cannot share {} evenly", p.tensor,
                                                     count_of(m.num_kv_heads, "KV head"))
                                       : fmt::format("{} is not a multiple of {}", m.num_kv_heads, p.tensor));
  if (rows_known && rows % p.tensor != 0)
    r.report("E0313",
             fmt::format("with sequence_parallel the tensor parallel size must divide the {} rows of a "
                         "micro-batch",
                         rows),
             {kTensor, "batch.micro_sequences", "data.seq_len"},
             {help[0], "or set parallelism.sequence_parallel to false"});
  if (r.sound({"model.vocab_size"}) && m.vocab_size < p.tensor)
    r.report("E0314", "there are fewer token ids than tensor parallel ranks", {kTensor, "model.vocab_size"},
             {fmt::format("use at most {}", m.vocab_size)});
}

/// "[4, 4, 3, 1]": as even as possible, fewer first.
std::string even_list(int64_t layers, int64_t parts) {
  std::vector<int64_t> list;
  for (int64_t i = 0; i < parts; ++i) list.push_back(layers * (i + 1) / parts - layers * i / parts);
  return fmt::format("[{}]", fmt::join(list, ", "));
}

/// Each virtual stage has something to compute: the first has the embedding, the last the head, others need a
/// layer.
void check_stage_layers(Resolution& r) {
  const ParallelSpec& p = r.job.parallelism;
  const int64_t all = int64_t{p.pipeline} * p.virtual_stages, layers = r.job.model.num_layers;
  const char* kList = "parallelism.stage_layers";
  if (!r.sound({"model.num_layers"})) return;
  const int64_t most = layers + 2;
  if (all > most) {
    r.report("E0303", fmt::format("{} layers cannot fill {} virtual stages", layers, all),
             {"parallelism.pipeline", "parallelism.virtual_stages", "model.num_layers"},
             {fmt::format("pipeline * virtual_stages can be at most {}: only the first and the last need no "
                          "layer",
                          most)});
    return;
  }
  if (!r.given_by_user(kList) || !r.sound({kList}) || r.is_auto(*find_field(kList))) return;
  const std::vector<int64_t>& list = p.stage_layers;
  const int64_t sum = std::accumulate(list.begin(), list.end(), int64_t{0});
  size_t empty = 1;   // the first one between the ends without a layer
  while (empty + 1 < list.size() && list[empty] > 0) ++empty;
  std::string wrong;
  if (int64_t(list.size()) != all)
    wrong = fmt::format("stage_layers has {} for {}", count_of(int64_t(list.size()), "entry", "entries"),
                        count_of(all, "virtual stage"));
  else if (sum != layers)
    wrong = fmt::format("the entries of stage_layers add up to {}, not to the model's {}", sum,
                        count_of(layers, "layer"));
  else if (empty + 1 < list.size())
    wrong = fmt::format("virtual stage {} has no layer, and so nothing to compute", empty);
  if (wrong.empty()) return;
  std::vector<std::string> help;
  constexpr int64_t kMostShown = 64;
  if (all <= std::min(layers, kMostShown)) help.push_back(fmt::format("even: {}", even_list(layers, all)));
  help.push_back("\"auto\" cuts the layers by their cost");
  r.report("E0308", wrong,
           {kList, "parallelism.pipeline", "parallelism.virtual_stages", "model.num_layers"},
           std::move(help));
}

void check_pipeline(Resolution& r) {
  const ParallelSpec& p = r.job.parallelism;
  const bool shape =
      r.sound({"parallelism.pipeline", "parallelism.virtual_stages", "parallelism.pipeline_schedule"});
  if (!shape) return;
  check_stage_layers(r);
  const parallel::ScheduleKind& kind = parallel::kind_of(p.schedule);
  if (p.pipeline == 1 && (p.virtual_stages > 1 || kind.v_shaped)) {
    r.report("E0304", "virtual stages need a pipeline of at least two stages",
             {"parallelism.virtual_stages", "parallelism.pipeline"},
             {"set parallelism.virtual_stages to 1 and parallelism.pipeline_schedule to 1f1b"});
    if (kind.v_shaped) return;
  }
  if (kind.needs_several && p.virtual_stages == 1)
    r.report("E0304",
             fmt::format("the {} schedule needs at least two virtual stages: with one it would be 1f1b",
                         parallel::name_of(p.schedule)),
             {"parallelism.pipeline_schedule", "parallelism.virtual_stages"},
             {"set parallelism.virtual_stages to 2 or more, or parallelism.pipeline_schedule to 1f1b"});
  parallel::PipelineShape wanted{.schedule = p.schedule,
                                 .stages = p.pipeline,
                                 .virtual_stages = p.virtual_stages,
                                 .micro_batches = p.pipeline * std::max(1, kind.least_rounds)};
  const bool batch_known = r.sound({"batch.global_sequences", "parallelism.lanes", "parallelism.data",
                                    "batch.micro_sequences"}) &&
                           power_of_two(p.lanes) && p.data <= p.lanes &&
                           r.job.batch.global_sequences % (p.lanes * r.job.batch.micro_sequences) == 0;
  // Ranks with the most and with the fewest micro-batches.
  Problem problem = Problem::none();
  for (const int dp_rank : {0, p.data - 1}) {
    if (batch_known) wanted.micro_batches = static_cast<int>(r.job.micro_batches_of(dp_rank));
    if (problem.is_none()) problem = parallel::shape_problem(wanted);
  }
  if (problem.exists())
    r.report("E0304", fmt::format("the pipeline cannot be scheduled: {}", problem.text()),
             {"parallelism.virtual_stages", "parallelism.pipeline_schedule", "parallelism.pipeline",
              "batch.global_sequences"},
             {"`trainctl explain parallelism.pipeline_schedule` tells what each schedule needs"});
}

/// Widths that do not divide the lanes.
void check_uneven_width(Resolution& r) {
  const ParallelSpec& p = r.job.parallelism;
  if (!r.sound({"parallelism.lanes", "parallelism.data", "parallelism.zero_stage", "parallelism.expert",
                "parallelism.context_blocks", "parallelism.reduction"}) ||
      p.data > p.lanes || p.lanes % p.data == 0)
    return;
  const auto refuse = [&](const std::string& with, const char* field, const char* otherwise) {
    r.report("E0315", fmt::format("with {} the data parallel size must divide the number of lanes", with),
             {"parallelism.data", "parallelism.lanes", field},
             {fmt::format("use {}{}", power_of_two_up_to(p.data), otherwise)},
             fmt::format("{} is not a multiple of {}", p.lanes, p.data));
  };
  if (p.context_blocks > 1) return refuse("context blocks", "parallelism.context_blocks", "");
  if (p.zero_stage < 2) return;
  const std::string zero = fmt::format("ZeRO-{} and ", p.zero_stage);
  if (p.expert > 1) return refuse(zero + "shared experts", "parallelism.expert", ", or zero_stage 1");
  if (p.reduction == GradientSums::fast)
    refuse(zero + "fast sums", "parallelism.reduction", ", or parallelism.reduction exact");
}

void check_lanes(Resolution& r) {
  const ParallelSpec& p = r.job.parallelism;
  const BatchSpec& b = r.job.batch;
  if (r.sound({"parallelism.lanes"}) && !power_of_two(p.lanes)) {
    r.report("E0306", "the number of lanes must be a power of two", {"parallelism.lanes"},
             {fmt::format("use {} or {}", power_of_two_up_to(p.lanes), 2 * power_of_two_up_to(p.lanes))});
    return;
  }
  if (r.sound({"parallelism.lanes", "parallelism.data"}) && p.data > p.lanes)
    r.report(
        "E0305", "there are more data parallel ranks than lanes", {"parallelism.data", "parallelism.lanes"},
        {fmt::format("use {}, or more lanes: a run gets them with `resume --allow-other-bits` and rounds its "
                     "sums in another order from there on",
                     p.lanes == 1 ? "1" : fmt::format("1 to {}", p.lanes))},
        fmt::format("{} is more than {}", p.data, p.lanes));
  check_uneven_width(r);
  if (r.sound({"parallelism.zero_stage", "parallelism.reshard_after_forward"}) && p.zero_stage < 3 &&
      !p.reshard_after_forward)
    r.report(
        "E0317",
        fmt::format("with ZeRO-{} a rank has all its weights at all times: none are gathered for a pass, "
                    "and none can stay after it",
                    p.zero_stage),
        {"parallelism.reshard_after_forward", "parallelism.zero_stage"},
        {"remove reshard_after_forward, or set zero_stage to 3"});
  if (r.sound({"parallelism.data", "parallelism.reduction_algorithm"}) && !power_of_two(p.data) &&
      p.reduction_algorithm == parallel::ExchangeChoice::halving)
    r.report("E0316", "recursive halving needs a power of two of data parallel ranks",
             {"parallelism.reduction_algorithm", "parallelism.data"},
             {fmt::format("use \"auto\" or \"direct\", or parallelism.data = {} or {}",
                          power_of_two_up_to(p.data), 2 * power_of_two_up_to(p.data))},
             fmt::format("{} is no power of two", p.data));
  const int64_t group = p.lanes * b.micro_sequences;
  if (r.sound({"parallelism.lanes", "batch.micro_sequences", "batch.global_sequences"}) &&
      b.global_sequences % group != 0) {
    const int64_t below = b.global_sequences / group * group;
    const bool in_tokens = r.given("batch.global_tokens");
    const int64_t unit = in_tokens ? r.job.data.seq_len : 1;
    r.report("E0307",
             fmt::format("{} sequences cannot be cut into {} lanes of micro-batches of {}",
                         b.global_sequences, p.lanes, b.micro_sequences),
             {in_tokens ? "batch.global_tokens" : "batch.global_sequences", "batch.micro_sequences",
              "parallelism.lanes"},
             {(below > 0 ? fmt::format("use {} or {}", below * unit, (below + group) * unit)
                         : fmt::format("use {}, or smaller micro-batches", group * unit)) +
              (p.lanes >= 2 * p.data ? ", or fewer lanes" : "")});
  }
}

void check_world(Resolution& r) {
  const ParallelSpec& p = r.job.parallelism;
  const int64_t product = int64_t{p.tensor} * p.context * p.pipeline * p.data;
  const bool cuts = p.context > 1;
  if (r.sound({"parallelism.world_size", "parallelism.tensor", "parallelism.context", "parallelism.pipeline",
               "parallelism.data"}) &&
      p.mesh_from == MeshFrom::given && p.world_size != product)
    r.report("E0301",
             fmt::format("tensor * {}pipeline * data = {} * {}{} * {} = {}, but world_size is {}",
                         cuts ? "context * " : "", p.tensor, cuts ? fmt::format("{} * ", p.context) : "",
                         p.pipeline, p.data, product, p.world_size),
             {"parallelism.tensor", "parallelism.pipeline", "parallelism.data", "parallelism.world_size"},
             {fmt::format("set world_size to {} or \"auto\", or change the factors", product)});
  const bool one_machine = !r.is_of_run && r.job.launcher.hosts.empty() && r.job.launcher.hostfile.empty() &&
                           r.job.launcher.slurm.nodes == 0 && !std::getenv("SLURM_JOB_ID");
  if (r.sound({"parallelism.world_size", "launcher.slots"}) && one_machine && r.job.launcher.slots > 0 &&
      r.job.launcher.slots < p.world_size)
    r.report("E0702", fmt::format("{} ranks do not fit in {} slots", p.world_size, r.job.launcher.slots),
             {"launcher.slots", "parallelism.world_size"},
             {"use fewer ranks, more slots, or 0 slots to share cores"});
}

}  // namespace

void check_model(Resolution& r) {
  const ModelSpec& m = r.job.model;
  const Preset* preset = find_preset(m.preset);
  if (preset && r.sound({"model.family"})) {
    if (preset->family != m.family) {
      r.report("E0210", fmt::format("preset {} is not of this family", preset->name),
               {"model.family", "model.preset"}, {"remove model.family, or choose another preset"});
      return;  // the preset's shape is for its own family
    }
  }
  check_heads(r);
  check_layer(r);
  if (r.sound({"data.seq_len", "model.max_seq_len"}) && r.job.data.seq_len > m.max_seq_len)
    r.report("E0230", "sequences are longer than the model is made for",
             {"data.seq_len", "model.max_seq_len"},
             {fmt::format("use at most {}, or raise model.max_seq_len", m.max_seq_len)});
}

void check_recompute(Resolution& r) {
  const JobSpec& job = r.job;
  const char* kField = "memory.activation_recompute";
  if (r.sound({kField, "model.num_layers"}) && job.recompute_layers > job.model.num_layers)
    r.report("E0309",
             fmt::format("{} cannot be computed again: the model has {}",
                         count_of(job.recompute_layers, "layer"), job.model.num_layers),
             {kField, "model.num_layers"},
             {fmt::format("use at most {}, or \"full\" for all layers", job.model.num_layers)});
}

void check_parallelism(Resolution& r) {
  check_world(r);
  check_tensor(r);
  check_pipeline(r);
  check_lanes(r);
  check_sharing(r);
  check_f16(r);
  check_master_weights(r);
  check_fp8(r);
  check_recompute(r);
}

void check_optimizer(Resolution& r) {
  if (!r.sound("optimizer.type")) return;
  const OptimizerType type = r.job.optimizer.type;
  const bool muon = type == OptimizerType::muon;
  const std::pair<const char*, bool> fields[] = {{"optimizer.momentum", muon || type == OptimizerType::sgd},
                                                 {"optimizer.muon.steps", muon},
                                                 {"optimizer.muon.scale", muon},
                                                 {"optimizer.muon.split_heads", muon}};
  for (const auto& [path, used] : fields)
    if (!used && r.given_by_user(path) && r.sound(path) &&
        find_field(path)->get(r.job) != find_field(path)->get(JobSpec()))
      r.report("W0245", fmt::format("`{}` has no effect here", path), {path, "optimizer.type"},
               {fmt::format("optimizer.type is \"{}\"; remove the field, or choose {}", word_of(type),
                            std::string_view(path) == "optimizer.momentum" ? "muon or sgd" : "muon")});
}

void check_offload(Resolution& r) {
  const char *offload = "optimizer.offload", *folder = "optimizer.offload_directory";
  if (!r.sound(offload)) return;
  const OptimizerSpec& o = r.job.optimizer;
  if (r.sound(folder) && !o.offload_directory.empty() && o.offload != StateOffload::disk)
    r.report(
        "W0245", fmt::format("`{}` has no effect here", folder), {folder, offload},
        {fmt::format("optimizer.offload is \"{}\"; remove the field, or choose disk", word_of(o.offload))});
  if (o.offload == StateOffload::none) return;
  const bool on_cpus = r.job.device == DeviceChoice::cpu;
  if (r.sound("device") && o.offload == StateOffload::disk && !on_cpus)
    r.report("E0326", "a GPU reads and writes no state in files", {offload, "device"},
             {"offload = \"host\" keeps it in memory of the host", "or set device = \"cpu\""});
  if (r.sound("device") && o.offload == StateOffload::host && on_cpus)
    r.report("E0326", "ranks on CPUs have their state in the host's memory already", {offload, "device"},
             {"offload = \"disk\" keeps it in files", "or offload = \"none\""});
  if (r.sound("optimizer.type") && o.type == OptimizerType::muon)
    r.report("E0326", "muon updates whole matrices, whose state stays in the memory of the device",
             {offload, "optimizer.type"}, {"use adamw, lion or sgd with it", "or offload = \"none\""});
  if (r.sound(folder) && !o.offload_directory.empty() && !o.offload_directory.starts_with("/"))
    r.report("E0326", fmt::format("`{}` is no absolute path", folder), {folder},
             {"name a folder on a disk of each node, such as /local/scratch"});
}

void check_training(Resolution& r) {
  check_optimizer(r);
  check_offload(r);
  const ScheduleSpec& s = r.job.schedule;
  const bool lengths = r.sound({"schedule.total_steps", "schedule.warmup_steps"});
  const char* total = r.given("schedule.total_tokens") ? "schedule.total_tokens" : "schedule.total_steps";
  const char* warmup =
      r.given("schedule.warmup_tokens") ? "schedule.warmup_tokens" : "schedule.warmup_steps";
  const char* decay = r.given("schedule.decay_tokens") ? "schedule.decay_tokens" : "schedule.decay_steps";
  if (lengths && s.warmup_steps > s.total_steps)
    r.report(
        "E0231",
        fmt::format("the warm-up of {} steps is longer than the run of {}", s.warmup_steps, s.total_steps),
        {warmup, total},
        {fmt::format("use at most {} steps; 1 to 10 % of the run is usual", s.total_steps)});
  else if (lengths && r.sound({"schedule.decay_steps"}) && s.warmup_steps + s.decay_steps > s.total_steps)
    r.report("E0233",
             fmt::format("warm-up and decay take {} + {} steps, the run has {}", s.warmup_steps,
                         s.decay_steps, s.total_steps),
             {decay, warmup, total},
             {fmt::format("decay over at most {} steps", s.total_steps - s.warmup_steps)});
  if (r.sound({"schedule.decay_steps", "schedule.type"}) && s.type != LrSchedule::wsd && s.decay_steps > 0)
    r.report("E0234", "a decay length is for the wsd schedule only", {decay, "schedule.type"},
             {"remove it: linear and cosine fall until the end of the run"});
  if (r.sound({"schedule.lr", "schedule.min_lr"}) && s.min_lr > s.lr)
    r.report("E0232", "the lowest learning rate is above the highest", {"schedule.min_lr", "schedule.lr"},
             {"use at most schedule.lr"});
  for (const Field& field : fields()) {
    if (!field.sources) continue;
    const std::string& list = field.path;
    const std::vector<DataSource>& sources = r.job.data.*field.sources;
    std::set<std::string> names;
    for (size_t i = 0; i < sources.size(); ++i) {
      const std::string entry = fmt::format("{}.{}", list, i);
      if (!r.sound(list)) continue;
      if (sources[i].path.empty())
        r.report("E0204", fmt::format("`{}.path` is empty", entry), {entry + ".path"},
                 {"name a token file"});
      if (sources[i].format == TokenFormat::raw && !sources[i].dtype)
        r.report("E0501", "a raw token file cannot tell its integer type",
                 {entry + ".format", entry + ".path"},
                 {fmt::format("add {}.dtype: \"uint16\" or \"uint32\"", entry)});
      if (sources[i].format != TokenFormat::raw && sources[i].dtype)
        r.report("E0502", "dtype is for raw files only", {entry + ".dtype", entry + ".format"},
                 {"remove dtype, or set format to \"raw\""});
      if (!sources[i].name.empty() && !names.insert(sources[i].name).second)
        r.report("E0503", fmt::format("two sources are named `{}`", sources[i].name), {entry + ".name"},
                 {"give each its own name"});
    }
  }
  const DataSpec& data = r.job.data;
  const char* kPacking = "data.packing";
  if (r.sound({kPacking, "data.documents", "data.count_boundary_targets"}) &&
      data.packing == PackingKind::best_fit) {
    if (data.documents == Documents::ignore)
      r.report("E0238", "packed documents are kept apart", {kPacking, "data.documents"},
               {"set data.documents to \"mask\", or data.packing to \"stream\""});
    if (data.count_boundary_targets)
      r.report("E0238", "packed documents do not follow each other in a text",
               {kPacking, "data.count_boundary_targets"},
               {"remove data.count_boundary_targets, or set data.packing to \"stream\""});
  }
  constexpr int64_t kByteVocabulary = 257;  // 256 bytes and the end of a text
  if (r.job.data.tokenizer.is_bytes() && r.sound({"model.vocab_size", "data.tokenizer"}) &&
      r.given_by_user("data.tokenizer") && r.job.model.vocab_size < kByteVocabulary)
    r.report("E0505", "the vocabulary is smaller than the tokenizer's 257 ids",
             {"model.vocab_size", "data.tokenizer"}, {"use a vocab_size of at least 257"});
}

void check_takeover(Resolution& r) {
  const FaultSpec& f = r.job.fault_tolerance;
  if (!r.sound({"fault_tolerance.supervisor_takeover"}) || !f.supervisor_takeover) return;
  if (r.sound({"fault_tolerance.grace_seconds", "fault_tolerance.node_silence_seconds"}) &&
      f.grace_seconds < 4 * f.node_silence_seconds)
    r.report("E0705", "a quarter of the grace passes before the silence of a supervisor counts",
             {"fault_tolerance.grace_seconds", "fault_tolerance.node_silence_seconds"},
             {fmt::format("use grace_seconds = {:g} or more", 4 * f.node_silence_seconds)});
  if (r.sound({"launcher.shell"}) && !r.job.launcher.shell.command())
    r.report("E0705", "agents that something else starts reach no other supervisor than the first",
             {"fault_tolerance.supervisor_takeover", "launcher.shell"},
             {"leave supervisor_takeover out", "or give a launcher.shell"});
}

void check_store(Resolution& r) {
  const std::string& store = r.job.checkpoint.store;
  if (!r.sound({"checkpoint.store"}) || store.empty() || store.starts_with("/")) return;
  constexpr std::string_view kScheme = "s3://";
  const size_t slash = store.find('/', kScheme.size());
  const bool is_place = store.starts_with(kScheme) && slash != std::string::npos && slash > kScheme.size() &&
                        slash + 1 < store.size() && store[slash + 1] != '/';
  if (!is_place)
    r.report("E0604", "checkpoint.store is neither s3://bucket/prefix nor an absolute path",
             {"checkpoint.store"}, {"write it as s3://bucket/prefix"});
}

void check_operation(Resolution& r) {
  const JobSpec& job = r.job;
  if (r.sound({"parallelism.transport", "launcher.ranks_per_gpu"}) && job.parallelism.transport == Transport::nccl &&
      job.launcher.ranks_per_gpu > 1)
    r.report("E0701", "NCCL needs a GPU of its own for every rank", {"parallelism.transport", "launcher.ranks_per_gpu"},
             {"use parallelism.transport = \"host\"", "or launcher.ranks_per_gpu = 1"});
  if (r.sound({"eval.every_steps", "eval.tasks", "data.val", "data.train"}) && job.eval.every_steps > 0 &&
      job.data.val.empty() && job.eval.tasks.empty())
    r.report("W0501", "eval.every_steps is set but there is neither validation data nor a task: nothing is evaluated",
             {"eval.every_steps"}, {"add data.val or eval.tasks, or remove eval.every_steps"});
  if (r.sound({"eval.every_steps", "data.val"}) && job.eval.every_steps == 0 && !job.data.val.empty())
    r.report("W0502", "data.val is given but eval.every_steps is 0: it is never evaluated", {"data.val", "eval.every_steps"},
             {"set eval.every_steps, or remove data.val"});
  const CheckpointSpec& c = job.checkpoint;
  if (r.sound({"checkpoint.every_steps", "checkpoint.interval"}) && c.every_steps > 0 &&
      c.interval == SaveIntervalChoice::automatic)
    r.report("E0601", "an automatic interval decides by itself after how many steps to save",
             {"checkpoint.interval", "checkpoint.every_steps"},
             {"leave every_steps out", "or interval; every_seconds limits an automatic interval"});
  if (r.sound({"checkpoint.every_steps", "checkpoint.every_seconds", "checkpoint.keep_every_steps",
               "checkpoint.interval", "fault_tolerance.max_restarts"}) &&
      !c.saves_while_training() && job.fault_tolerance.max_restarts > 0)
    r.report("W0601", "restarts begin at step 0 again, because no checkpoint is saved before the end",
             {"fault_tolerance.max_restarts", "checkpoint.every_steps"},
             {"set checkpoint.interval = \"auto\"", "or checkpoint.every_steps"});
  const FaultSpec& f = job.fault_tolerance;
  if (r.sound({"fault_tolerance.collective_timeout_seconds", "fault_tolerance.step_timeout_seconds"}) &&
      f.collective_timeout_seconds > f.step_timeout_seconds)
    r.report("E0704", "a step would count as hung before a rank could name whom it waits for",
             {"fault_tolerance.collective_timeout_seconds", "fault_tolerance.step_timeout_seconds"},
             {"make step_timeout_seconds the longer one"});
  const double burn_in = job.launcher.burn_in;
  const double longest = burn_in + LauncherSpec::kBurnInAnswerS;
  for (const auto& [field, limit] : {std::pair{"setup_timeout_seconds", f.setup_timeout_seconds},
                                     std::pair{"start_skew_seconds", f.start_skew_seconds}}) {
    const std::string name = std::string("fault_tolerance.") + field;
    if (r.sound("launcher.burn_in") && r.sound(name) && burn_in > 0 && longest >= limit)
      r.report("E0704", "a rank would count as hung during its burn-in", {"launcher.burn_in", name},
               {fmt::format("use {} = {:g} or more", field, 2 * longest)});
  }
  check_takeover(r);
  check_store(r);
}

}  // namespace trainctl::spec
