// Predicts published measurements and writes a table of the errors: bench_published FOLDER [--rows]
// [CLUSTERS] FOLDER has the published tables as JSON, a file each, with "rows". Nothing is fitted to these
// rows: the clusters (scripts/clusters, or those of the folder CLUSTERS) are made from data sheets and from
// measured kernels and collectives.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "runtime/base/json.h"
#include "runtime/plan/fit.h"
#include "runtime/plan/report.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

/// The software of a measurement, by what was published of its kernels.
enum class Stack {
  own,           ///< as the program's own kernels
  flash2,        ///< FlashAttention-2; a compiler or a library fuses elementwise ops
  eager_flash2,  ///< PyTorch without a compiler
  eager_flash1,  ///< with attention of 2023
  unfused,       ///< attention that stores its scores: Megatron-LM of 2021 and 2022
  unfused_again  ///< and makes them again in the backward pass ("selective")
};

/// FlashAttention-2 on an H100: arXiv:2407.08608, figures 5 to 7 (causal: 335 TFLOP/s forward, 328 both ways
/// with 128 channels, 284 both ways with 64); on an A100 it is what the cluster file has. Kernels in Triton
/// before it: 1 / 1.8 of that, the middle of the 1.3 to 2.5 that its authors give (arXiv:2307.08691,
/// recalled). Elementwise ops that are not fused read and write each intermediate result: about twice the
/// bytes of ours.
predict::ClusterModel with_stack(predict::ClusterModel cluster, Stack stack) {
  if (stack == Stack::own) return cluster;
  if (stack == Stack::unfused || stack == Stack::unfused_again) {
    // For each pair of a query and a key 13 bytes forward (scores, softmax, dropout) and 19 backward, and
    // products over the whole square at 200 TFLOP/s; FLOPs count half of it.
    const double bytes_per_s = cluster.device.memory_bytes_per_s * cluster.device.memory_share;
    cluster.device.attention.clear();
    cluster.device.attention_half_length = 0;
    for (const int channels : {64, 96, 128, 160}) {
      const double forward_s = 13 / bytes_per_s + 4 * channels / 200e12;
      const double backward_s = 19 / bytes_per_s + 8 * channels / 200e12;
      cluster.device.attention.push_back(
          {channels, 2 * channels / forward_s,
           4 * channels / (backward_s + (stack == Stack::unfused_again ? forward_s : 0))});
    }
    return cluster;
  }
  const bool hopper = cluster.name.starts_with("h");
  for (predict::AttentionRate& rate : cluster.device.attention) {
    if (hopper && rate.head_dim == 64) rate = {64, 290e12, 225e12};
    if (hopper && rate.head_dim == 128) rate = {128, 335e12, 260e12};
    if (stack == Stack::eager_flash1) rate.forward_flops_per_s /= 1.8, rate.backward_flops_per_s /= 1.8;
  }
  if (stack != Stack::flash2) {
    cluster.device.passes = 2;
    cluster.device.launch_s = 10e-6;
  }
  return cluster;
}

/// A measured row as a job of ours.
struct Row {
  std::string table, label;
  std::string group;   ///< "dense H100"
  std::string device;  ///< of plan --device
  std::string model;   ///< JSON
  int64_t seq_len = 0;
  std::vector<std::string> settings;
  double tokens_per_s = 0;  ///< of a GPU, measured
  Stack stack = Stack::own;
};

struct Judged {
  Row row;
  double predicted = 0, error = 0;  ///< tokens/s of a GPU; predicted over measured time, less one
  StepTime time;
  std::string refused;
};

Json load(const std::string& path) {
  std::ifstream file(path);
  return file ? Json::parse(file) : Json();
}

std::string text(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->text() : "";
}
double number(const Json& row, const char* key, double fallback = 0) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? found->get<double>() : fallback;
}

std::string gpt(double hidden, double layers, double heads, double vocab, double seq, bool tied = true) {
  return fmt::format(
      R"({{"family": "gpt2", "hidden_size": {}, "num_layers": {}, "num_heads": {}, "ffn_size": {}, "vocab_size": {},
           "max_seq_len": {}, "tie_embeddings": {}}})",
      int(hidden), int(layers), int(heads), int(4 * hidden), int(vocab), int(seq), tied);
}
std::string llama(double hidden, double layers, double heads, double kv, double ffn, double vocab,
                  double seq) {
  return fmt::format(
      R"({{"family": "llama", "hidden_size": {}, "num_layers": {}, "num_heads": {}, "num_kv_heads": {},
           "ffn_size": {}, "vocab_size": {}, "max_seq_len": {}, "tie_embeddings": false}})",
      int(hidden), int(layers), int(heads), int(kv), int(ffn), int(vocab), int(seq));
}

std::vector<std::string> mesh(double tp, double pp, double dp, double micro, double global) {
  return {fmt::format("parallelism.tensor={}", int(tp)),
          fmt::format("parallelism.pipeline={}", int(pp)),
          fmt::format("parallelism.data={}", int(dp)),
          fmt::format("parallelism.lanes={}", int(dp)),
          fmt::format("batch.micro_sequences={}", int(micro)),
          fmt::format("batch.global_sequences={}", int(global))};
}

/// MPT of LLM Foundry: PyTorch's FSDP.
void add_mosaic(const std::string& folder, std::vector<Row>& rows) {
  const Json json = load(folder + "/18_mosaic_llm_foundry_mpt.json");
  if (json.is_null()) return;
  for (const Json& r : json.at("rows")) {
    const std::string precision = text(r, "precision");
    if (precision != "bf16" && precision != "amp_bf16") continue;
    const std::string gpu = text(r, "gpu");
    const bool hopper = gpu.starts_with("h100");
    Row row{.table = "MPT",
            .label = fmt::format("{} T{} x{} mb{}", text(r, "model"), number(r, "seq_len"), number(r, "gpus"),
                                 number(r, "microbatch")),
            .group = hopper ? "dense H100" : "dense A100",
            .device = hopper                  ? "h100"
                      : gpu.ends_with("40gb") ? "a100-40"
                                              : "a100-80",
            .model = gpt(number(r, "hidden"), number(r, "layers"), number(r, "heads"), 50368,
                         number(r, "seq_len")),
            .seq_len = int64_t(number(r, "seq_len")),
            .settings = mesh(1, 1, number(r, "gpus"), number(r, "microbatch"), number(r, "global_batch")),
            .tokens_per_s = number(r, "tokens_per_s_per_gpu"),
            .stack = Stack::eager_flash1};
    row.settings.push_back(text(r, "sharding") == "FULL_SHARD" ? "parallelism.zero_stage=3"
                                                               : "parallelism.zero_stage=2");
    row.settings.push_back("parallelism.reduction_dtype=bf16");
    if (text(r, "activation_checkpointing") == "True")
      row.settings.push_back("memory.activation_recompute=full");
    rows.push_back(std::move(row));
  }
}

void add_torchtitan(const std::string& folder, std::vector<Row>& rows) {
  const Json json = load(folder + "/11_torchtitan.json");
  if (json.is_null()) return;
  const std::map<std::string, std::string> models = {
      {"Llama-3-8B", R"({"preset": "llama3-8b"})"},
      {"Llama-3-70B", R"({"preset": "llama3-70b"})"},
      {"Llama-2-13B", llama(5120, 40, 40, 40, 13824, 32000, 4096)},
      {"Llama-2-70B", llama(8192, 80, 64, 8, 28672, 32000, 4096)}};
  for (const Json& r : json.at("rows")) {
    const auto model = models.find(text(r, "model"));
    // The H100 of this file are a kind of their own: 500 W, 2.4 TB/s.
    if (model == models.end() || text(r, "hardware") != "A100-80GB") continue;
    const std::string ac = text(r, "ac");
    const double gpus = number(r, "gpus"), micro = number(r, "local_batch");
    Row row{.table = "torchtitan",
            .label = fmt::format("{} ac {} mb{}", model->first, ac, micro),
            .group = "dense A100",
            .device = "a100-80",
            .model = model->second,
            .seq_len = int64_t(number(r, "seq_len")),
            .settings = mesh(1, 1, gpus, micro, gpus * micro),
            .tokens_per_s = number(r, "tps_per_gpu"),
            .stack = Stack::eager_flash2};
    row.settings.push_back("parallelism.zero_stage=3");
    if (ac == "full") row.settings.push_back("memory.activation_recompute=full");
    // Every second layer, or in every layer every second product ("op").
    if (ac.starts_with("selective")) {
      const bool large = model->first.ends_with("70B");
      const char* half = large ? "40" : model->first == "Llama-2-13B" ? "20" : "16";
      row.settings.push_back(fmt::format("memory.activation_recompute={}", half));
    }
    rows.push_back(std::move(row));
  }
}

void add_korthikanti(const std::string& folder, std::vector<Row>& rows) {
  const Json configs = load(folder + "/04b_korthikanti_table3_configs.json"),
             times = load(folder + "/04d_korthikanti_table5_e2e.json");
  if (configs.is_null() || times.is_null()) return;
  for (const Json& c : configs.at("rows"))
    for (const Json& t : times.at("rows")) {
      if (text(c, "model") != text(t, "model")) continue;
      for (const bool full : {true, false}) {
        const double seconds = number(t, full ? "iter_s_full_recompute" : "iter_s_sp_selective");
        const double global = number(c, "global_batch"), chunks = number(c, "interleave_m");
        Row row{.table = "Korthikanti",
                .label = fmt::format("{} {}", text(c, "model"), full ? "full recompute" : "selective, SP"),
                .group = "dense A100",
                .device = "a100-80",
                .model = gpt(number(c, "hidden"), number(c, "layers"), number(c, "heads"), 51200, 2048),
                .seq_len = 2048,
                .settings = mesh(number(c, "tp"), number(c, "pp"), 1, number(c, "micro_batch"), global),
                .tokens_per_s = global * 2048 / seconds / number(c, "gpus"),
                .stack = full ? Stack::unfused : Stack::unfused_again};
        row.settings.push_back(fmt::format("memory.activation_recompute={}", full ? "full" : "none"));
        row.settings.push_back(fmt::format("parallelism.sequence_parallel={}", !full));
        if (chunks > 1) {
          row.settings.push_back("parallelism.pipeline_schedule=interleaved");
          row.settings.push_back(fmt::format("parallelism.virtual_stages={}", int(chunks)));
        }
        rows.push_back(std::move(row));
      }
    }
}

void add_zero_bubble(const std::string& folder, std::vector<Row>& rows) {
  const Json json = load(folder + "/08a_zero_bubble_table4_throughput.json");
  if (json.is_null()) return;
  for (const Json& r : json.at("rows")) {
    const std::string schedule = text(r, "schedule");
    if (schedule == "ZB-2p") continue;  // a schedule that is not ours
    const double seq = number(r, "seq_len"), pp = number(r, "pp"), micro = number(r, "micro_batch");
    Row row{
        .table = "zero bubble",
        .label = fmt::format("{} {} pp{} m{}", schedule, text(r, "model"), pp, number(r, "num_microbatches")),
        .group = "dense A100",
        .device = "a100-80",
        .model = gpt(number(r, "hidden"), number(r, "layers"), number(r, "heads"), 50304, seq, false),
        .seq_len = int64_t(seq),
        .settings = mesh(1, pp, 1, micro, micro * number(r, "num_microbatches")),
        .tokens_per_s = number(r, "samples_per_gpu_s") * seq,
        .stack = Stack::unfused};
    if (schedule == "ZB-1p") row.settings.push_back("parallelism.pipeline_schedule=zb-h1");
    if (schedule == "1F1B-I") {
      row.settings.push_back("parallelism.pipeline_schedule=interleaved");
      row.settings.push_back(
          fmt::format("parallelism.virtual_stages={}", int(std::ceil(number(r, "layers") / pp))));
    }
    rows.push_back(std::move(row));
  }
}

void add_megatron(const std::string& folder, std::vector<Row>& rows) {
  const Json json = load(folder + "/02_megatron_sc21_table2_ptdp_vs_zero3.json");
  if (json.is_null()) return;
  for (const Json& r : json.at("rows")) {
    const bool small = number(r, "params_b") < 200;
    const double hidden = small ? 12288 : 20480, layers = small ? 96 : 105, heads = small ? 96 : 128;
    const double gpus = number(r, "gpus"), micro = number(r, "microbatch"), global = number(r, "batch");
    const bool sharded = text(r, "scheme") == "ZeRO-3";
    const double tp = sharded ? 1 : 8, pp = sharded ? 1 : small ? 12 : 35, V = 51200;
    const double flops =
        96 * 2048 * layers * hidden * hidden * (1 + 2048 / (6 * hidden) + V / (16 * layers * hidden));
    Row row{.table = "Megatron SC'21",
            .label = fmt::format("{} {} x{} mb{}", text(r, "scheme"), number(r, "params_b"), gpus, micro),
            .group = "dense A100",
            .device = "a100-80",
            .model = gpt(hidden, layers, heads, V, 2048),
            .seq_len = 2048,
            .settings = mesh(tp, pp, gpus / tp / pp, micro, global),
            .tokens_per_s = 2048 * 1e12 * number(r, "tflops_per_gpu") / flops,
            .stack = Stack::unfused};
    row.settings.push_back("memory.activation_recompute=full");
    row.settings.push_back("parallelism.sequence_parallel=false");
    if (sharded) row.settings.push_back("parallelism.zero_stage=3");
    rows.push_back(std::move(row));
  }
}

void add_single_node(const std::string& folder, std::vector<Row>& rows) {
  const Json json = load(folder + "/28_single_node_baselines.json");
  if (json.is_null()) return;
  for (const Json& r : json.at("rows")) {
    const std::string impl = text(r, "impl"), model = text(r, "model");
    if (impl.starts_with("llm.c (CUDA") && number(r, "tokens_per_s") > 0)
      rows.push_back({"llm.c", model + " x8", "dense H100", "h100", R"({"preset": "gpt2-1558m"})", 1024,
                      mesh(1, 1, 8, 16, 1024), number(r, "tokens_per_s") / 8});
    if (impl == "llm.c" && number(r, "gpus") == 1)
      rows.push_back({"llm.c", model + " x1", "dense A100", "a100-40", R"({"preset": "gpt2-124m"})", 1024,
                      mesh(1, 1, 1, 32, 32), number(r, "tokens_per_s")});
    if (impl.starts_with("DeepSpeed ZeRO-2") && text(r, "hardware") == "8xH200")
      rows.push_back({"DeepSpeed", model + " ZeRO-2", "dense H100", "h200", R"({"preset": "llama3-8b"})",
                      8192, mesh(1, 1, 8, 1, 8), number(r, "tflops_per_gpu_causal") * 1e12 / 51.47e9,
                      Stack::eager_flash2});
  }
}

/// Rows that several releases measured count with the best of them: gpt-oss-120b in BF16 (the other MoE rows
/// are in FP8).
void add_bridge(const std::string& folder, std::vector<Row>& rows) {
  const Json json = load(folder + "/14_megatron_bridge_2511.json");
  if (json.is_null()) return;
  for (const Json& r : json.at("rows")) {
    const std::string system = text(r, "system");
    if (text(r, "precision") != "BF16" || text(r, "model") != "GPT OSS 120B") continue;
    if (system != "H100" && system != "B200" && system != "GB200") continue;
    const double best = system == "H100" ? 5993 : 0;  // 26.02
    const double pp = number(r, "pp"), dp = number(r, "gpus") / pp;
    Row row{.table = "Megatron-Bridge",
            .label = "gpt-oss-120b " + system,
            .group = system == "H100" ? "MoE H100" : "MoE Blackwell",
            .device = system == "H100"   ? "h100"
                      : system == "B200" ? "b200"
                                         : "gb200",
            .model = R"({"preset": "gpt-oss-120b"})",
            .seq_len = int64_t(number(r, "seq_len")),
            .settings = mesh(1, pp, dp, number(r, "mbs"), number(r, "gbs")),
            .tokens_per_s = std::max(best, number(r, "tokens_per_s_per_gpu")),
            .stack = Stack::flash2};
    row.settings.push_back(fmt::format("parallelism.expert={}", int(number(r, "ep"))));
    rows.push_back(std::move(row));
  }
}

/// clusters: a folder of cluster files instead of the program's own; "": none.
Judged judge(Row row, const std::string& clusters) {
  Judged result{std::move(row)};
  // The spec refuses experts that GPUs share; the job is planned for GPUs all the same.
  const auto is_expert = [](const std::string& setting) {
    return setting.starts_with("parallelism.expert=");
  };
  const bool shares_experts = std::any_of(result.row.settings.begin(), result.row.settings.end(), is_expert);
  ParseInput input{.text = fmt::format(R"({{"version": 1, "name": "published", "model": {}, "device": "{}",
      "data": {{"train": [{{"path": "/none.bin", "format": "raw", "dtype": "uint32"}}], "seq_len": {}}},
      "precision": {{"compute": "bf16"}}, "schedule": {{"total_steps": 10, "lr": 1e-3}}}})",
                                       result.row.model, shares_experts ? "cpu" : "cuda", result.row.seq_len),
                   .file = "job.json",
                   .overrides = result.row.settings,
                   .environment = {}};
  if (!shares_experts) input.overrides.push_back("parallelism.reduction=fast");
  const ParsedJob parsed = parse_job(input);
  if (!parsed.ok()) {
    for (const Diagnostic& d : parsed.diagnostics)
      if (d.is_error() && result.refused.empty()) result.refused = d.message;
    return result;
  }
  const JobSpec& job = parsed.job;
  DeviceModel device = device_named(result.row.device, job, DeviceKind::cuda);
  if (!clusters.empty()) {
    const std::string file = fmt::format("{}/{}.json", clusters, device.cluster->name);
    std::ifstream text(file);
    device.cluster = predict::parse_cluster(std::string(std::istreambuf_iterator<char>(text), {}), file);
  }
  device.cluster = with_stack(*device.cluster, result.row.stack);
  device.ranks_on_node = device.cluster->devices_of_node;
  const JobPlan plan = make_plan(job, device);
  result.time = predict_step(job, plan, device, *device.cluster);
  result.predicted = double(plan.tokens_per_step) / result.time.step_s / job.mesh().world_size();
  result.error = result.row.tokens_per_s / result.predicted - 1;
  return result;
}

/// The bubble rates of the zero-bubble paper (its table 5), of the schedules that are ours: those models on
/// A100, with the shapes of its table 4.
void add_bubbles(const std::string& folder, std::vector<std::pair<Row, double>>& rows) {
  const Json rates = load(folder + "/08b_zero_bubble_table5_bubble_rates.json");
  if (rates.is_null()) return;
  std::vector<Row> shapes;
  add_zero_bubble(folder, shapes);
  for (const Json& r : rates.at("rows")) {
    const std::string schedule = text(r, "schedule");
    const std::string named = schedule == "ZB-H1" ? "ZB-1p" : schedule;
    const std::string label = fmt::format("{} {} pp{} m{}", named, text(r, "model"), number(r, "pp"),
                                          number(r, "num_microbatches"));
    if (schedule != "ZB-1p" && number(r, "bubble_rate") > 0)
      for (const Row& shape : shapes)
        if (shape.label == label) rows.emplace_back(shape, number(r, "bubble_rate"));
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

void print_summary(const std::vector<Judged>& judged, const std::function<std::string(const Judged&)>& key) {
  std::map<std::string, std::vector<double>> errors;
  for (const Judged& j : judged)
    if (j.refused.empty()) errors[key(j)].push_back(j.error);
  fmt::print(
      "| rows | number | median error | median absolute error | 90 % of errors within "
      "|\n|---|---:|---:|---:|---|\n");
  for (auto& [name, list] : errors) {
    std::vector<double> absolute;
    for (const double e : list) absolute.push_back(std::abs(e));
    std::sort(list.begin(), list.end());
    fmt::print("| {} | {} | {:+.1f} % | {:.1f} % | {:+.0f} to {:+.0f} % |\n", name, list.size(),
               100 * median(list), 100 * median(absolute), 100 * list[size_t(double(list.size() - 1) * 0.05)],
               100 * list[size_t(std::ceil(double(list.size() - 1) * 0.95))]);
  }
  fmt::print("\n");
}

/// The errors that remain when the median of each GPU's errors is taken away: one fitted efficiency a GPU.
void fit_groups(std::vector<Judged>& judged) {
  std::map<std::string, std::vector<double>> errors;
  for (const Judged& j : judged)
    if (j.refused.empty()) errors[j.row.group].push_back(j.error);
  for (Judged& j : judged) j.error = (1 + j.error) / (1 + median(errors[j.row.group])) - 1;
}

std::string shares(const StepTime& time) {
  std::string out;
  for (const NamedSeconds& part : named(time.parts))
    if (part.seconds > 0.01 * time.step_s)
      out += fmt::format("{}{} {:.0f}", out.empty() ? "" : ", ", part.name, 100 * part.seconds / time.step_s);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: bench_published FOLDER [--rows] [CLUSTERS]\n");
    return 2;
  }
  const bool in_rows = argc > 2 && std::string_view(argv[2]) == "--rows";
  const std::string clusters = argc > 2 + in_rows ? argv[2 + in_rows] : "";
  std::vector<Row> rows;
  for (const auto add : {add_mosaic, add_torchtitan, add_korthikanti, add_zero_bubble, add_megatron,
                         add_single_node, add_bridge})
    add(argv[1], rows);
  std::vector<Judged> judged;
  for (Row& row : rows) judged.push_back(judge(std::move(row), clusters));
  print_summary(judged, [](const Judged& j) { return j.row.group; });
  print_summary(judged, [](const Judged& j) { return j.row.group + ", " + j.row.table; });
  if (in_rows) {
    fmt::print(
        "| table | row | measured tokens/s | predicted | error of time | where it goes, % "
        "|\n|---|---|---:|---:|---:|---|\n");
    for (const Judged& j : judged)
      if (j.refused.empty())
        fmt::print("| {} | {} {} | {:.0f} | {:.0f} | {:+.1f} % | {} |\n", j.row.table, j.row.device,
                   j.row.label, j.row.tokens_per_s, j.predicted, 100 * j.error, shares(j.time));
    fmt::print("\n");
  }
  std::vector<std::pair<Row, double>> bubbles;
  add_bubbles(argv[1], bubbles);
  std::vector<double> distances;
  fmt::print("| bubble rate | published | predicted |\n|---|---:|---:|\n");
  for (const auto& [row, published] : bubbles) {
    const Judged j = judge(row, clusters);
    if (!j.refused.empty()) continue;
    distances.push_back(std::abs(j.time.bubble_fraction - published));
    fmt::print("| {} | {:.4f} | {:.4f} |\n", row.label, published, j.time.bubble_fraction);
  }
  fmt::print("\nmedian distance of {} bubble rates: {:.4f}\n\n", distances.size(), median(distances));
  std::vector<Judged> fitted = judged;
  fit_groups(fitted);
  fmt::print("After one fitted efficiency for each group:\n\n");
  print_summary(fitted, [](const Judged& j) { return j.row.group; });
  for (const Judged& j : judged)
    if (!j.refused.empty()) fmt::print("refused: {} {}: {}\n", j.row.table, j.row.label, j.refused);
  return 0;
}
