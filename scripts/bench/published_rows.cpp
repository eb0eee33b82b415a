#include "scripts/bench/published_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>

namespace trainctl::bench {

Json load(const std::string& path) {
  std::ifstream file(path);
  return file ? Json::parse(file) : Json();
}

std::string text(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->text() : "";
}
double number(const Json& row, const char* key, double fallback) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? found->get<double>() : fallback;
}

std::vector<std::string> mesh_settings(double tp, double pp, double dp, double micro, double global) {
  // Our lanes are a power of two, each of whole micro-batches. Replicas that are not are predicted as the
  // next power of two of them, each with the work of one; they exchange (n - 1) / n of the bytes, nearly
  // the same.
  const double lanes = double(std::bit_ceil(unsigned(std::max(0.0, dp))));
  const double steps = std::max(1.0, std::round(global / std::max(1.0, dp) / micro));
  if (dp >= 1) dp = lanes, global = steps * micro * lanes;
  return {fmt::format("parallelism.tensor={}", int(tp)),
          fmt::format("parallelism.pipeline={}", int(pp)),
          fmt::format("parallelism.data={}", int(dp)),
          fmt::format("parallelism.lanes={}", int(dp)),
          fmt::format("batch.micro_sequences={}", int(micro)),
          fmt::format("batch.global_sequences={}", int(global))};
}

namespace {

constexpr auto mesh = mesh_settings;

std::string gpt(double hidden, double layers, double heads, double vocab, double seq, bool tied = true) {
  return fmt::format(
      R"({{"family": "gpt2", "hidden_size": {}, "num_layers": {}, "num_heads": {}, "ffn_size": {},
           "vocab_size": {}, "max_seq_len": {}, "tie_embeddings": {}}})",
      int(hidden), int(layers), int(heads), int(4 * hidden), int(vocab), int(seq), tied);
}
std::string llama(double hidden, double layers, double heads, double kv, double ffn, double vocab,
                  double seq) {
  return fmt::format(
      R"({{"family": "llama", "hidden_size": {}, "num_layers": {}, "num_heads": {}, "num_kv_heads": {},
           "ffn_size": {}, "vocab_size": {}, "max_seq_len": {}, "tie_embeddings": false}})",
      int(hidden), int(layers), int(heads), int(kv), int(ffn), int(vocab), int(seq));
}

/// MPT of LLM Foundry: PyTorch's FSDP.
void add_mosaic(const std::string& folder, std::vector<Row>& rows) {
  const Json json = load(folder + "/18_mosaic_llm_foundry_mpt.json");
  if (json.is_null()) return;
  for (const Json& r : json.at("rows")) {
    const std::string precision = text(r, "precision");
    if (precision != "bf16" && precision != "amp_bf16" && precision != "amp_fp8") continue;
    const std::string gpu = text(r, "gpu");
    const bool hopper = gpu.starts_with("h100");
    Row row{
        .table = "MPT",
        .label = fmt::format("{} T{} x{} mb{}{}", text(r, "model"), number(r, "seq_len"), number(r, "gpus"),
                             number(r, "microbatch"), precision == "amp_fp8" ? " FP8" : ""),
        .group = !hopper                  ? "dense A100"
                 : precision == "amp_fp8" ? "FP8 H100"
                                          : "dense H100",
        .device = hopper                  ? "h100"
                  : gpu.ends_with("40gb") ? "a100-40"
                                          : "a100-80",
        .model =
            gpt(number(r, "hidden"), number(r, "layers"), number(r, "heads"), 50368, number(r, "seq_len")),
        .seq_len = int64_t(number(r, "seq_len")),
        .settings = mesh(1, 1, number(r, "gpus"), number(r, "microbatch"), number(r, "global_batch")),
        .tokens_per_s = number(r, "tokens_per_s_per_gpu"),
        .stack = Stack::eager_flash1};
    row.settings.push_back(text(r, "sharding") == "FULL_SHARD" ? "parallelism.zero_stage=3"
                                                               : "parallelism.zero_stage=2");
    // FSDP has a buffer for each block of the model, ours a bucket.
    const double block_bytes = 12 * number(r, "hidden") * number(r, "hidden") * 4;
    row.settings.push_back(fmt::format("parallelism.bucket_mib={:.0f}", block_bytes / (1 << 20)));
    // In their tables bf16 goes with the mode PURE of FSDP and amp_bf16 with DEFAULT, which adds gradients in
    // f32. The former ran in an image of PyTorch 1.13.1, whose checkpoints repeat all; newer ones stop early.
    // On H100 bf16 ran in mosaicml/pytorch:2.1.0_cu121-nightly20230827, FP8 in 2.0.1_cu118 with Transformer
    // Engine (github.com/mosaicml/llm-foundry, h100new.md and h100old.md of its benchmarks).
    row.products = precision == "amp_fp8" ? Products::cuda11 : hopper ? Products::cuda12 : Products::today;
    if (precision == "amp_fp8") {
      row.settings.emplace_back("precision.fp8.recipe=tensor");
      row.numbers = Numbers::fp8;
    }
    const bool is_pure = precision == "bf16";
    row.settings.push_back(is_pure ? "parallelism.reduction_dtype=bf16" : "parallelism.reduction_dtype=f32");
    if (text(r, "activation_checkpointing") == "True") {
      row.settings.push_back("memory.activation_recompute=full");
      row.whole_again = is_pure;
    }
    rows.push_back(std::move(row));
  }
}

void add_torchtitan(const std::string& folder, std::vector<Row>& rows) {
  const Json json = load(folder + "/11_torchtitan.json");
  if (json.is_null()) return;
  const std::map<std::string, std::string> models = {
      {"Llama-3-8B", R"({"preset": "llama3-8b"})"},
      {"Llama-3.1-8B", R"({"preset": "llama3-8b"})"},
      {"Llama-3-70B", R"({"preset": "llama3-70b"})"},
      {"Llama-2-13B", llama(5120, 40, 40, 40, 13824, 32000, 4096)},
      {"Llama-2-70B", llama(8192, 80, 64, 8, 28672, 32000, 4096)}};
  for (const Json& r : json.at("rows")) {
    const auto model = models.find(text(r, "model"));
    // The H100 of this file are a kind of their own: 500 W, 2.4 TB/s.
    const bool h200 = text(r, "hardware").starts_with("8xH200");
    if (model == models.end() || (text(r, "hardware") != "A100-80GB" && !h200)) continue;
    const std::string ac = text(r, "ac");
    const double gpus = number(r, "gpus"), micro = number(r, "local_batch");
    Row row{.table = "torchtitan",
            .label = fmt::format("{} ac {} mb{}", model->first, h200 ? "selective op" : ac, micro),
            .group = h200 ? "FP8 H100" : "dense A100",
            .device = h200 ? "h200" : "a100-80",
            .model = model->second,
            .seq_len = h200 ? 8192 : int64_t(number(r, "seq_len")),
            .settings = mesh(1, 1, gpus, micro, gpus * micro),
            .tokens_per_s = number(r, "tps_per_gpu"),
            .stack = h200 ? Stack::flash2 : Stack::eager_flash2};
    row.settings.push_back("parallelism.zero_stage=3");
    if (h200) {
      row.settings.emplace_back("precision.fp8.recipe=tensor");
      row.numbers = Numbers::fp8;
    }
    if (ac == "full") row.settings.push_back("memory.activation_recompute=full");
    // Every second layer, or in every layer every second product ("op").
    if (ac.starts_with("selective") || h200) {
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
        row.whole_again = full;
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
            .stack = Stack::unfused,
            .whole_again = true};
    row.settings.push_back("memory.activation_recompute=full");
    row.settings.push_back("parallelism.sequence_parallel=false");
    if (sharded) {
      row.group = "dense A100, DeepSpeed of 2021";
      row.settings.push_back("parallelism.zero_stage=3");
      // DeepSpeed gathers and reduces 5e8 numbers at once (reduce_bucket_size, stage3_prefetch_bucket_size).
      row.settings.push_back(fmt::format("parallelism.bucket_mib={}", (500'000'000LL * 4) >> 20));
    }
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
    // GPT-2 124M on one "A100 40GB class" has no device: print_claims says why.
    // The row of 8 B200 says "same" as the one above it.
    const std::string hardware = text(r, "hardware");
    if ((impl.starts_with("DeepSpeed ZeRO-2") || impl == "same") && number(r, "tflops_per_gpu_causal") > 0)
      rows.push_back({"DeepSpeed", model + " ZeRO-2", hardware == "8xB200" ? "dense Blackwell" : "dense H100",
                      hardware == "8xB200" ? "b200" : "h200", R"({"preset": "llama3-8b"})", 8192,
                      mesh(1, 1, 8, 1, 8), number(r, "tflops_per_gpu_causal") * 1e12 / 51.47e9,
                      Stack::eager_flash2});
  }
}

/// The mesh with context ranks and virtual stages, as NeMo and Megatron-Bridge give them.
std::vector<std::string> nemo_mesh(const Json& r) {
  const double tp = number(r, "tp", 1), pp = number(r, "pp", 1), cp = number(r, "cp", 1);
  std::vector<std::string> settings =
      mesh(tp, pp, number(r, "gpus") / tp / pp / cp, number(r, "mbs"), number(r, "gbs"));
  if (cp > 1) settings.push_back(fmt::format("parallelism.context={}", int(cp)));
  if (pp > 1 && number(r, "vp", 1) > 1) {
    settings.emplace_back("parallelism.pipeline_schedule=interleaved");
    settings.push_back(fmt::format("parallelism.virtual_stages={}", int(number(r, "vp"))));
  }
  if (number(r, "fsdp") > 0) settings.emplace_back("parallelism.zero_stage=3");
  if (number(r, "ep", 1) > 1) settings.push_back(fmt::format("parallelism.expert={}", int(number(r, "ep"))));
  return settings;
}

/// NeMo 24.07; the shapes of its GPT-3 and Nemotron models from their papers, as the FLOPs of the rows
/// confirm.
void add_nemo(const std::string& folder, std::vector<Row>& rows) {
  const Json json = load(folder + "/13_nemo_2407_h100_fp8.json");
  if (json.is_null()) return;
  const std::map<std::string, std::string> models = {
      {"GPT3-5B", gpt(4096, 24, 32, 51200, 2048)},
      {"GPT3-20B", gpt(6144, 44, 48, 51200, 2048)},
      {"GPT3-175B", gpt(12288, 96, 96, 51200, 2048)},
      {"LLAMA2-7B", llama(4096, 32, 32, 32, 11008, 32000, 4096)},
      {"LLAMA2-13B", llama(5120, 40, 40, 40, 13824, 32000, 4096)},
      {"LLAMA2-70B", llama(8192, 80, 64, 8, 28672, 32000, 4096)},
      {"Nemotron-8B", gpt(4096, 32, 32, 256000, 4096, false)},
      {"Nemotron-22B", gpt(6144, 40, 48, 256000, 4096, false)},
      {"LLAMA3-8B", R"({"preset": "llama3-8b"})"},
      {"LLAMA3-70B", R"({"preset": "llama3-70b"})"}};
  for (const Json& r : json.at("rows")) {
    const auto model = models.find(text(r, "model"));
    if (model == models.end()) continue;
    Row row{.table = "NeMo 24.07",
            .label = fmt::format("{} x{}", model->first, number(r, "gpus")),
            .group = "FP8 H100",
            .device = "h100",
            .model = model->second,
            .seq_len = int64_t(number(r, "seq_len")),
            .settings = nemo_mesh(r),
            .tokens_per_s = number(r, "tokens_per_s_per_gpu"),
            .stack = Stack::own};
    row.hides_tensor = true;
    row.settings.emplace_back(kSumsInBf16);
    row.settings.emplace_back("precision.fp8.recipe=tensor");
    row.numbers = Numbers::fp8;
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<std::pair<Row, double>> published_bubbles(const std::string& folder) {
  std::vector<std::pair<Row, double>> rows;
  const Json rates = load(folder + "/08b_zero_bubble_table5_bubble_rates.json");
  if (rates.is_null()) return rows;
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
  return rows;
}

std::vector<Row> published_rows(const std::string& folder) {
  std::vector<Row> rows;
  for (const auto add : {add_mosaic, add_torchtitan, add_korthikanti, add_zero_bubble, add_megatron,
                         add_single_node, add_tables, add_nemo})
    add(folder, rows);
  if (!load(folder + "/14_megatron_bridge_2511.json").is_null()) add_expert_rows(rows);
  return rows;
}

}  // namespace trainctl::bench
