// Rows of a table whose columns have usual names, whatever the table: a kind of GPU, a model, the mesh, the
// batch, and what was measured of it. Files that have readers of their own are left out.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>

#include "runtime/predict/cluster.h"
#include "runtime/spec/presets.h"
#include "scripts/bench/published_rows.h"

namespace trainctl::bench {
namespace {

constexpr std::string_view kReadApart[] = {"01_megatron_sc21_table1.json",
                                           "02_megatron_sc21_table2_ptdp_vs_zero3.json",
                                           "04b_korthikanti_table3_configs.json",
                                           "04d_korthikanti_table5_e2e.json",
                                           "08a_zero_bubble_table4_throughput.json",
                                           "08b_zero_bubble_table5_bubble_rates.json",
                                           "11_torchtitan.json",
                                           "13_nemo_2407_h100_fp8.json",
                                           "18_mosaic_llm_foundry_mpt.json",
                                           "28_single_node_baselines.json"};

/// Letters and digits in lower case.
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c))) out += char(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// The first of these columns that a row has.
double number_of(const Json& r, std::initializer_list<const char*> keys, double fallback = 0) {
  for (const char* key : keys)
    if (const double value = number(r, key); value > 0) return value;
  return fallback;
}
std::string text_of(const Json& r, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const std::string value = text(r, key); !value.empty()) return value;
  return "";
}

/// Shapes of models that have no preset; Llama 2 and GPT-3 from their papers.
struct Shape {
  const char* name;
  bool gpt;
  int hidden, layers, heads, kv_heads, ffn, vocab;
};
constexpr Shape kShapes[] = {{"llama27b", false, 4096, 32, 32, 32, 11008, 32000},
                             {"llama213b", false, 5120, 40, 40, 40, 13824, 32000},
                             {"llama270b", false, 8192, 80, 64, 8, 28672, 32000},
                             {"llama7b", false, 4096, 32, 32, 32, 11008, 32000},
                             {"llama13b", false, 5120, 40, 40, 40, 13824, 32000},
                             {"llama65b", false, 8192, 80, 64, 64, 22016, 32000},
                             {"gpt35b", true, 4096, 24, 32, 32, 16384, 51200},
                             {"gpt320b", true, 6144, 44, 48, 48, 24576, 51200},
                             {"gpt340b", true, 8192, 48, 64, 64, 32768, 51200},
                             {"gpt3175b", true, 12288, 96, 96, 96, 49152, 51200},
                             {"gpt22b", true, 6144, 48, 64, 64, 24576, 51200},
                             {"gpt530b", true, 20480, 105, 128, 128, 81920, 51200},
                             {"gpt1t", true, 25600, 128, 160, 160, 102400, 51200}};

std::string shaped(const Shape& s, int64_t seq) {
  return fmt::format(R"({{"family": "{}", "hidden_size": {}, "num_layers": {}, "num_heads": {}, {}
                          "ffn_size": {}, "vocab_size": {}, "max_seq_len": {}, "tie_embeddings": {}}})",
                     s.gpt ? "gpt2" : "llama", s.hidden, s.layers, s.heads,
                     s.gpt ? "" : fmt::format("\"num_kv_heads\": {},", s.kv_heads), s.ffn, s.vocab, seq,
                     s.gpt);
}

/// A model of a row as JSON: by the shape that the row gives, or by its name; "": not known.
std::string model_of(const Json& r, int64_t seq, bool mtp) {
  std::string name = text_of(r, {"model", "model_name", "name"});
  name = name.substr(0, name.find('('));
  name = plain(name.substr(name.rfind('/') + 1));  // "meta-llama/Llama-3.1-8B"
  for (const std::string_view before : {"meta", "nvidia", "openai"})
    if (name.starts_with(before)) name.erase(0, before.size());
  for (const std::string_view after : {"base", "instruct", "pretrain", "pretraining"})
    if (name.ends_with(after)) name.resize(name.size() - after.size());
  const std::string preset = [&]() -> std::string {
    for (const spec::Preset& known : spec::presets())
      if (plain(known.name) == name) return std::string(known.name);
    if (name == "mixtral8x7b" || name == "mixtral") return "mixtral-8x7b";
    if (name == "deepseekv3671b" || name == "deepseekr1") return "deepseek-v3";
    if (name == "kimik21t" || name == "kimi") return "kimi-k2";
    if (name == "gptoss") return "gpt-oss-120b";
    if (name == "qwen330b") return "qwen3-30b-a3b";
    if (name == "qwen3235b") return "qwen3-235b-a22b";
    return "";
  }();
  // A preset with the sequences of a longer table is the same work.
  if (!preset.empty())
    return fmt::format(
        R"({{"preset": "{}"{}{}}})", preset, mtp ? R"(, "mtp": {"num_layers": 1})" : "",
        seq > 8192 && preset.starts_with("llama3-") ? fmt::format(", \"max_seq_len\": {}", seq) : "");
  for (const Shape& shape : kShapes)
    if (shape.name == name) return shaped(shape, seq);
  const auto size = [&](std::initializer_list<const char*> keys, double fallback = 0) {
    return int(number_of(r, keys, fallback));
  };
  const int hidden = size({"hidden", "hidden_size", "d_model"}), layers = size({"layers", "num_layers"}),
            heads = size({"heads", "num_heads", "num_attention_heads"});
  if (hidden == 0 || layers == 0 || heads == 0) return "";
  const bool gpt = has(name, "gpt") || has(name, "mpt") || has(name, "opt") || has(name, "bloom");
  const int ffn = size({"ffn", "ffn_size", "ffn_hidden_size", "intermediate_size"}, gpt ? 4 * hidden : 0);
  if (ffn == 0) return "";
  return shaped(
      {"", gpt, hidden, layers, heads, size({"kv_heads", "num_kv_heads", "num_query_groups"}, heads), ffn,
       size({"vocab", "vocab_size"}, gpt ? 51200 : 32000)},
      seq);
}

/// What the software of a table does, by its name.
void set_software(const std::string& software, const std::string& device, Row& row) {
  if (has(software, "torchtitan") || has(software, "pytorch") || has(software, "fsdp") ||
      has(software, "huggingface") || has(software, "nanotron") || has(software, "deepspeed")) {
    row.stack = has(software, "compile") ? Stack::flash2 : Stack::eager_flash2;
    return;
  }
  row.stack = Stack::own;
  row.hides_tensor = true;
  const bool latent = has(row.model, "deepseek") || has(row.model, "kimi"), rack = device.starts_with("gb");
  if (!latent) row.settings.emplace_back(kSumsInBf16);  // a selection bias needs sums in f32
  // Recipes of Megatron-Bridge in 2025 and 2026: racks replay graphs, and send each token once; gpt-oss, and
  // Qwen3 235B on nodes of 8, send pairs, the latter on H100 beside another micro-batch.
  row.experts.host = rack ? ExpertStack::Host::graphs : ExpertStack::Host::eager;
  row.experts.sends_once =
      !has(row.model, "gpt-oss") && (rack || !has(row.model, "235b") || device.starts_with("b300"));
  row.experts.hides = has(row.model, "235b") && device == "h100";
  row.experts.recomputes_latents = latent;
}

void set_mesh(const Json& r, Row& row) {
  const double gpus = number_of(r, {"gpus", "num_gpus", "n_gpus", "world_size", "devices"}, 1);
  const double tp = number_of(r, {"tp", "tensor_parallel", "tensor"}, 1),
               pp = number_of(r, {"pp", "pipeline_parallel", "pipeline"}, 1),
               cp = number_of(r, {"cp", "context_parallel", "context"}, 1),
               vp = number_of(r, {"vp", "vpp", "virtual_stages", "interleave", "interleave_m"}, 1),
               ep = number_of(r, {"ep", "expert_parallel", "expert"}, 1);
  const double micro =
      number_of(r, {"mbs", "micro_batch", "micro_batch_size", "microbatch", "local_batch"}, 1);
  const double replicas = gpus / tp / pp / cp;
  const double steps = number_of(r, {"ga", "grad_accum", "num_microbatches"}, pp > 1 ? 4 * pp : 1);
  const double global =
      number_of(r, {"gbs", "global_batch", "global_batch_size", "batch"}, replicas * micro * steps);
  row.settings = mesh_settings(tp, pp, replicas, micro, global);
  if (cp > 1) row.settings.push_back(fmt::format("parallelism.context={}", int(cp)));
  if (pp > 1 && vp > 1) {
    row.settings.emplace_back("parallelism.pipeline_schedule=interleaved");
    row.settings.push_back(fmt::format("parallelism.virtual_stages={}", int(vp)));
  }
  if (number(r, "fsdp") > 1 || (number(r, "fsdp") == 1 && gpus > 1) || number(r, "zero") == 3)
    row.settings.emplace_back("parallelism.zero_stage=3");
  if (ep > 1) row.settings.push_back(fmt::format("parallelism.expert={}", int(ep)));
  if (ep > 1 && tp > 1) row.settings.emplace_back("parallelism.expert_tensor=1");
  const std::string again =
      plain(text_of(r, {"recompute", "ac", "activation_checkpointing", "activation_recompute"}));
  if (again == "full" || again == "true") row.settings.emplace_back("memory.activation_recompute=full");
}

void set_precision(const Json& r, Row& row) {
  const std::string name = plain(text_of(r, {"precision", "dtype", "compute"}));
  row.numbers = has(name, "fp4")   ? Numbers::fp4
                : has(name, "mx")  ? Numbers::mx8
                : has(name, "fp8") ? Numbers::fp8
                                   : Numbers::bf16;
  if (row.numbers != Numbers::bf16) row.settings.emplace_back("precision.fp8.recipe=tensor");
  // "bf16 with fp32 sums" is bf16.
  if (row.numbers == Numbers::bf16 && has(name, "32") && !has(name, "16") && row.refused.empty())
    row.refused = fmt::format("rows in {} are not predicted", name);
}

/// Why a row with a model is no measurement of a step; "": it is.
std::string lacks(const Row& row, const std::string& system) {
  if (system.empty()) return "no GPU is named";
  if (row.seq_len <= 0) return "it has no length of sequences";
  if (row.tokens_per_s <= 0 && row.flops_per_s <= 0 && row.mfu <= 0)
    return "it has no tokens/s, time of a step, FLOP/s or MFU";
  return "";
}

/// GPUs that are alike in what software makes of them. An H20 has a seventh of an H100's products.
std::string family_of(const std::string& device) {
  if (device == "h20") return "H20";
  if (device == "gh200" || device.starts_with("h")) return "H100";
  if (device.starts_with("a")) return "A100";
  if (device.starts_with("mi")) return "AMD";
  return device.starts_with("b") || device.starts_with("gb") ? "Blackwell" : device;
}

/// Tokens a second of a GPU; or the FLOP/s of one, with what counts as FLOPs.
void set_measured(const Json& r, const std::string& counted, Row& row) {
  const double gpus = number_of(r, {"gpus", "num_gpus", "n_gpus", "world_size", "devices"}, 1);
  row.tokens_per_s = number_of(r, {"tokens_per_s_per_gpu", "tps_per_gpu", "tokens_per_sec_per_gpu",
                                   "tokens_per_gpu_s", "tokens_per_second_per_gpu"});
  if (row.tokens_per_s == 0)
    row.tokens_per_s = number_of(r, {"tokens_per_s", "tokens_per_second", "tps"}) / gpus;
  if (row.tokens_per_s == 0) row.tokens_per_s = number(r, "samples_per_gpu_s") * double(row.seq_len);
  const double batch = number_of(r, {"gbs", "global_batch", "global_batch_size", "batch"});
  const double step_s =
      number_of(r, {"step_s", "step_time_s", "iter_s", "iteration_s"}, number(r, "step_ms") / 1e3);
  if (row.tokens_per_s == 0 && step_s > 0) row.tokens_per_s = batch * double(row.seq_len) / step_s / gpus;
  row.flops_per_s = 1e12 * number_of(r, {"model_tflops_per_gpu", "tflops_per_gpu", "tflops", "model_tflops"});
  const double percent = number(r, "mfu_pct"), mfu = number(r, "mfu");
  row.mfu = percent > 0 ? percent / 100 : mfu < 1 ? mfu : mfu / 100;  // a share, or percent
  if (row.tokens_per_s == 0 && row.flops_per_s == 0) {
    if (percent == 0 && mfu == 1) row.refused = "an mfu of 1 is a share or percent; give it as mfu_pct";
    if (row.mfu > 1) row.refused = "no MFU is above 100 %";
  }
  row.counts_causal = has(counted, "causal") && !has(counted, "noncausal");
  row.counts_again = has(counted, "recompute") || has(counted, "hfu");
}

}  // namespace

void add_table(const std::string& path, std::vector<Row>& rows) {
  const std::string file = std::filesystem::path(path).filename().string();
  if (std::find(std::begin(kReadApart), std::end(kReadApart), file) != std::end(kReadApart)) return;
  const Json json = load(path);
  const auto list = json.is_object() ? json.find("rows") : json.end();
  if (!json.is_object() || list == json.end() || !list->is_array()) return;
  const bool is_bridge = file == "14_megatron_bridge_2511.json";
  for (const Json& r : *list) {
    const std::string system = text_of(r, {"system", "gpu", "hardware", "device", "accelerator"});
    Row row{.table = is_bridge ? "Megatron-Bridge" : text_of(json, {"name", "table"}),
            .device = predict::short_gpu_name(system),
            .seq_len = int64_t(number_of(r, {"seq_len", "sequence_length", "seq", "context_length"}))};
    const std::string software =
        plain(text_of(r, {"software", "framework", "impl", "stack"}) + text(json, "table"));
    set_measured(r, plain(text_of(r, {"flops_convention"}) + text(json, "flops_convention")), row);
    const double tokens = row.tokens_per_s, per_token = tokens > 0 ? row.flops_per_s / tokens : 0;
    const std::string model = text_of(r, {"model", "model_name", "name"});
    // Of DeepSeek-V3 a token takes 250 GFLOP without the module that predicts the token after the next.
    const bool mtp = has(plain(model), "deepseekv3") && (per_token > 255e9 || has(plain(model), "wmtp"));
    row.model = model_of(r, row.seq_len, mtp);
    // Tables without models are of products, exchanges or prices.
    if (model.empty() && row.model.empty()) continue;
    if (row.refused.empty()) row.refused = lacks(row, system);
    if (has(plain(model + text_of(r, {"task", "technique"})), "lora"))
      row.refused = "adapters (LoRA) are no job of ours";
    set_mesh(r, row);
    set_precision(r, row);
    set_software(software, row.device, row);
    const bool experts = number_of(r, {"ep", "expert_parallel", "expert"}, 1) > 1;
    row.label = fmt::format("{} {} x{:.0f}", model, text_of(r, {"precision", "dtype", "compute"}),
                            number_of(r, {"gpus", "num_gpus", "n_gpus", "world_size", "devices"}, 1));
    row.group = fmt::format("{}{}{}",
                            row.numbers == Numbers::fp4    ? "FP4 "
                            : row.numbers != Numbers::bf16 ? "FP8 "
                                                           : "",
                            experts                        ? "MoE "
                            : row.numbers == Numbers::bf16 ? "dense "
                                                           : "",
                            family_of(row.device));
    if (row.model.empty() && row.refused.empty())
      row.refused = fmt::format("no preset and no shape of {} is known", model);
    if (is_bridge && experts && row.refused.empty() && has_best_of(row, int(number(r, "gpus")))) continue;
    rows.push_back(std::move(row));
  }
}

void add_tables(const std::string& folder, std::vector<Row>& rows) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) add_table(path, rows);
}

}  // namespace trainctl::bench
