// The rows of published tables as jobs of ours, and the software that they were measured with.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json.h"

namespace trainctl::bench {

/// The software of a measurement, by what was published of its kernels.
enum class Stack {
  own,           ///< as the program's own kernels
  flash2,        ///< FlashAttention-2; a compiler or a library fuses elementwise ops
  eager_flash2,  ///< PyTorch without a compiler, of Llama
  eager_flash1,  ///< of MPT, with attention of 2023
  unfused,       ///< attention that stores its scores: Megatron-LM of 2021 and 2022
  unfused_again  ///< and makes them again in the backward pass ("selective")
};

/// The product library of a measurement on a Hopper GPU.
enum class Products {
  today,
  cuda11,  ///< cuBLAS 11.11, of PyTorch 2.0
  cuda12   ///< cuBLAS 12.0 and 12.1, of PyTorch 2.1
};

/// What the products of layers multiply: numbers of 8 bits with a scale for each operand or for each 32 of
/// them, or of 4 bits.
enum class Numbers { bf16, fp8, mx8, fp4 };

/// How Megatron-Core computes layers with experts, as the recipe of a row has it.
struct ExpertStack {
  /// eager: the host enqueues each op; unfused: more of them, as in 2025; graphs: attention and the router
  /// are replayed; whole: the whole step is, and an expert's rows are multiplied, activated and quantised
  /// at once.
  enum class Host { unfused, eager, graphs, whole } host = Host::eager;
  /// Each pair of a token and an expert is sent (NCCL), or a token once to each rank and node that has some
  /// of its experts (DeepEP, HybridEP).
  bool sends_once = false;
  bool hides = false;               ///< exchanges run beside the computations of another micro-batch
  bool recomputes_latents = false;  ///< the products from latents to heads, in the backward pass
};

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
  Products products = Products::today;
  bool whole_again = false;   ///< recomputation repeats a layer's last product, too; ours does not
  bool hides_tensor = false;  ///< most of the exchanges of tensor ranks run beside products
  ExpertStack experts = {};
  Numbers numbers = Numbers::bf16;
  /// Measured where tokens_per_s was not: FLOP/s of a GPU, or their share of its peak in bf16; how they were
  /// counted.
  double flops_per_s = 0, mfu = 0;
  bool counts_causal = false, counts_again = false;
  std::string refused = {};  ///< why it is no job of ours
};

/// NeMo and Megatron-Bridge exchange gradients in bf16: grad_sync_dtype=bf16 in examples/training of
/// github.com/NVIDIA/NeMo-Framework-Launcher (gpt/h100/20b_fp8_1node.sh), ddp.grad_reduce_in_fp32 = False in
/// scripts/performance/configs of github.com/NVIDIA-NeMo/Megatron-Bridge (llama, qwen, gpt_oss).
inline constexpr const char* kSumsInBf16 = "parallelism.reduction_dtype=bf16";

Json load(const std::string& path);
/// "", or `fallback`, where the row does not have it.
std::string text(const Json& row, const char* key);
double number(const Json& row, const char* key, double fallback = 0);

std::vector<std::string> mesh_settings(double tp, double pp, double dp, double micro, double global);
/// Whether add_expert_rows has a row of this model that is at least as fast.
bool has_best_of(const Row& row, int gpus);
/// Rows of mixtures of experts in releases of Megatron-Bridge and in guides of Megatron-Core.
void add_expert_rows(std::vector<Row>& rows);

/// Rows of a table whose columns have usual names (published_tables.cpp says which).
void add_table(const std::string& path, std::vector<Row>& rows);
/// Of every such table of a folder.
void add_tables(const std::string& folder, std::vector<Row>& rows);

/// FOLDER has the published tables as JSON, a file each, with "rows".
std::vector<Row> published_rows(const std::string& folder);
/// The bubble rates of the zero-bubble paper (its table 5), of the schedules that are ours: those models on
/// A100, with the shapes of its table 4.
std::vector<std::pair<Row, double>> published_bubbles(const std::string& folder);
/// Prints which rows contradict physics or themselves.
void print_claims(const std::string& folder);

}  // namespace trainctl::bench
