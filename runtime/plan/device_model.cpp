#include "runtime/plan/device_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <tuple>

#include "kernels/device.h"
#include "kernels/product_memory.h"
#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/units.h"
#include "runtime/model/stage_model.h"
#include "runtime/predict/op_time.h"

namespace trainctl {
namespace {

/// Resident size of a rank's process that has started MPI and touched its libraries, before any tensor is
/// there, and what these libraries take while it trains. Measured on Debian 12 with OpenMPI 4.1.4 and oneDNN
/// 2.6; test/end_to_end/plan_test.cpp holds whole runs to within a twentieth of the plan.
constexpr size_t kProgramBytes = size_t(41) << 20;
/// What a rank's tables know of a parameter of the whole model, in the heap (measured, 96 to 768 experts).
constexpr size_t kBytesOfParameter = 10 << 10;
/// What the heap of a thread keeps more where the rows of a product change with each batch (measured).
constexpr size_t kRoutedHeapBytes = size_t(2) << 20;

/// What oneDNN packs the panels of a product into, in each thread: up to 512 rows and 384 columns
/// (kernels/cpu/product_cut.cpp) of a depth that it cuts at 384. The heap keeps two and a half times that,
/// because panels of several sizes take turns (measured, as above).
size_t product_bytes(const ModelTables& tables, int threads) {
  const LayerShape& s = tables.shape;
  const Widest widest = widest_of(tables.model, s);
  const int64_t depth = std::min<int64_t>(384, std::max(widest.depth, s.rows));
  const int64_t lines = std::min<int64_t>(512, s.rows) + std::min<int64_t>(384, widest.columns);
  const size_t kept = tables.params.experts > 0 ? kRoutedHeapBytes : 0;
  const size_t number = s.compute == DType::f16 ? sizeof(float) : size_of(s.compute);
  return (size_t(depth * lines) * number * 5 / 2 + kept) * size_t(threads);
}

/// The partial sums of products that are cut in k, of the one with most. Matrices that are joined are
/// multiplied as one. Products with the weights of experts are not cut.
size_t partial_bytes(const ModelTables& tables) {
  const LayerShape& s = tables.shape;
  std::set<std::tuple<int64_t, int64_t, int64_t>> products;  // rows, n, k
  int64_t joined_rows = 0;
  for (const Param& p : tables.params.params) {
    if (p.is_vector()) continue;
    if (p.row.rule == parallel::UpdateRule::muon) {  // of the whole matrix, its square, and both
      const auto [side, wide] = std::minmax(p.layout.rows, p.layout.cols);
      for (const auto& [rows, k] : {std::pair(side, wide), {wide, side}, {side, side}})
        products.emplace(rows, side, k);
    }
    if (p.expert >= 0) {
      joined_rows = 0;
      continue;
    }
    const parallel::LocalShard own = parallel::local_shard(p.layout, int(s.tensor), 0);
    joined_rows = own.rows + (p.joined ? joined_rows : 0);
    products.emplace(s.rows / s.cut.blocks_here(), joined_rows, own.cols);
  }
  size_t most = 0;
  for (const auto& [rows, n, k] : products) most = std::max(most, kernels::partial_sum_bytes(rows, n, k));
  return most;
}

/// The operands and results of a product in f16, whole in f32: no library of a CPU multiplies f16.
size_t widened_bytes(const ModelTables& tables) {
  const LayerShape& s = tables.shape;
  if (s.compute != DType::f16) return 0;
  int64_t left = 0, right = 0, joined_rows = 0;
  for (const Param& p : tables.params.params) {
    if (p.is_vector()) continue;
    const parallel::LocalShard own = parallel::local_shard(p.layout, int(s.tensor), 0);
    joined_rows = own.rows + (p.joined ? joined_rows : 0);
    // All tokens of all ranks that share experts may choose one of them.
    const int64_t rows =
        p.expert >= 0 ? s.rows / s.token_parts * s.expert_ranks : s.rows / s.cut.blocks_here();
    left = std::max(left, rows * std::max(joined_rows, own.cols));
    right = std::max({right, joined_rows * own.cols, rows * own.cols});
  }
  return size_t(2 * left + right) * sizeof(float);
}

/// A GPU as plans know it. Peaks come from the table of data sheets behind kernels::gpu_peak_flops_per_s,
/// by the driver's name.
struct KnownGpu {
  const char* name;
  const char* driver_name;
  uint64_t memory_mib;
  double link_gb_per_s;   ///< one way, between two GPUs of a node
  const char* cluster = "";  ///< known to runtime/predict; "": its time is not predicted
};

// Memory is the total that the driver reports (nvidia-smi, memory.total), which the makers' data sheets
// round: A10, L4, RTX 4090 24 GB, RTX 5090 32 GB, A100 40 and 80 GB, L40S 48 GB, H100 80 GB (SXM, PCIe) and
// 94 GB (NVL), GH200 96 GB, H200 141 GB, B200 180 GB (as HGX). Sources: the NVIDIA data sheets named in
// kernels/gpu_peaks.cpp; totals as published in github.com/modal-labs/modal-client pull 2797 (H100, A100,
// A10, L40S, L4) and github.com/pytorch/ao pull 4002 (B200: what CUDA reports); H20 as GH200, both with 96 GB
// of HBM3; B300 and GB300 are the 288 GB of the data sheet, MI300X, MI325X and MI355X 192, 256 and 288 GiB
// less 16 MiB (the first as rocm-smi reports it, recalled).
// Links, half of what the same data sheets give for both ways together: NVLink 3 600 GB/s, NVLink 4 900
// (bridge of H100 NVL 600), NVLink 5 1800; without NVLink PCIe 4.0 x16 64, 5.0 x16 128; seven links of
// AMD's Infinity Fabric 896, 1075 of MI355X.
constexpr KnownGpu kGpus[] = {
    {"a10", "A10", 23028, 32},
    {"l4", "L4", 23034, 32},
    {"rtx4090", "GeForce RTX 4090", 24564, 32},
    {"rtx5090", "GeForce RTX 5090", 32607, 64},
    {"a100-40", "A100-SXM4-40GB", 40960, 300, "a100-40"},
    {"l40s", "L40S", 46068, 32, "l40s"},
    {"h100", "H100 80GB HBM3", 81559, 450, "h100"},
    {"h100-pcie", "H100 PCIe", 81559, 64},
    {"h800", "H800", 81559, 200, "h800"},
    {"a100-80", "A100-SXM4-80GB", 81920, 300, "a100-80"},
    {"a800", "A800-SXM4-80GB", 81920, 200, "a800"},
    {"h100-nvl", "H100 NVL", 95830, 300},
    {"h20", "H20", 97871, 450, "h20"},
    {"gh200", "GH200 480GB", 97871, 450, "gh200"},
    {"h200", "H200", 143771, 450, "h200"},
    {"b200", "B200", 182630, 900, "b200"},
    {"gb200", "GB200", 189471, 900, "gb200"},
    {"mi300x", "MI300X", 196592, 448, "mi300x"},
    {"mi325x", "MI325X", 262128, 448, "mi325x"},
    {"b300", "B300 SXM6 AC", 274658, 900, "b300"},
    {"gb300", "GB300 SXM6 AC", 274658, 900, "gb300"},
    {"mi355x", "MI355X", 294896, 538, "mi355x"},
};

/// "rtx4090" of "rtx-4090".
std::string without_dashes(std::string name) {
  std::erase(name, '-');
  return name;
}

/// Of products by the data sheet, in the job's precision; 0: not known.
double sheet_peak(const std::string& driver_name, const DeviceUse& use) {
  return kernels::gpu_peak_flops_per_s(driver_name, use.compute, use.tf32).value_or(0);
}

}  // namespace

size_t DeviceModel::program_bytes(size_t parameters) const {
  return is_host() ? kProgramBytes + kBytesOfParameter * parameters : 0;
}

size_t DeviceModel::workspace_bytes(const ModelTables& tables, const ParallelSpec& parallelism,
                                    const parallel::ShardingBytes& optimizer) const {
  if (!is_host())
    return kernels::cuda_scratch_bytes(scratch_shape(tables, optimizer)) + kernels::cuda_workspace_bytes();
  kernels::ScratchShape shape = scratch_shape(tables, {});
  shape.widest = tables.model.hidden;  // of a norm; biases need no memory of their own here
  return kernels::cpu_scratch_bytes(shape, parallelism.threads_per_rank) +
         product_bytes(tables, parallelism.threads_per_rank) + partial_bytes(tables) + widened_bytes(tables);
}

DeviceModel device_of_kind(const DeviceUse& use, DeviceKind kind) {
  return {.kind = kind, .name = name_of(kind), .adds_gradients = kind == DeviceKind::cuda && uses_nccl(use)};
}

uint64_t DeviceModel::room(const DeviceUse& use) const {
  if (is_host()) return memory_bytes;
  const uint64_t contexts = kGpuContextBytes * uint64_t(std::min(use.ranks_per_gpu, use.ranks));
  return memory_bytes - std::min(memory_bytes, contexts);
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const KnownGpu& gpu : kGpus) names.push_back(gpu.name);
  return names;
}

DeviceModel device_named(const std::string& text, const DeviceUse& use, DeviceKind kind) {
  const std::string name = without_dashes(predict::short_gpu_name(text));
  for (const KnownGpu& gpu : kGpus)
    if (name == without_dashes(gpu.name)) {
      if (use.compute == DType::f16)
        throw Error(ErrorCode::kUsage,
                    fmt::format("E0323: f16 is computed by ranks on CPUs alone, and {} is a GPU; use bf16 on "
                                "GPUs, or plan for an amount of memory such as 64GiB",
                                gpu.name));
      DeviceModel device = device_of_kind(use, DeviceKind::cuda);
      device.name = gpu.name;
      device.memory_bytes = device.total_bytes = gpu.memory_mib << 20;
      device.flops_per_s = sheet_peak(gpu.driver_name, use);
      device.link_bytes_per_s = gpu.link_gb_per_s * 1e9;
      if (*gpu.cluster) device.cluster = predict::known_cluster(gpu.cluster);
      if (device.flops_per_s == 0 && device.cluster)
        device.flops_per_s =
            predict::product_peak(device.cluster->device, use.compute == DType::f32, use.tf32);
      return device;
    }
  if (const auto bytes = bytes_of(text)) {
    DeviceModel device = device_of_kind(use, kind);
    device.name = device.is_host() ? "a machine of " + text : "a GPU of " + text;
    device.memory_bytes = device.total_bytes = *bytes;
    return device;
  }
  throw Error(
      ErrorCode::kUsage,
      fmt::format("--device {}: no such device is known; use {}, or an amount of memory such as 80GiB", text,
                  fmt::join(device_names(), ", ")));
}

DeviceModel device_of_gpu(const kernels::GpuFacts& facts, DType precision, bool tf32) {
  DeviceModel device{.kind = DeviceKind::cuda,
                     .name = facts.name,
                     .memory_bytes = facts.free_bytes,
                     .total_bytes = facts.total_bytes,
                     .flops_per_s = kernels::gpu_peak_flops_per_s(facts.name, precision, tf32).value_or(0)};
  for (const KnownGpu& known : kGpus)
    if (facts.name.ends_with(known.driver_name)) {
      device.link_bytes_per_s = known.link_gb_per_s * 1e9;
      if (*known.cluster) device.cluster = predict::known_cluster(known.cluster);
    }
  return device;
}

DeviceModel device_here(const DeviceUse& use, DeviceKind kind, bool with_peak, int gpu) {
  DeviceModel device = device_of_kind(use, kind);
  if (device.is_host()) {
    const SystemMemory memory = system_memory();
    device.name = "this machine";
    device.measured = true;
    device.memory_bytes = memory.available_bytes;
    device.total_bytes = memory.total_bytes;
    if (with_peak) device.flops_per_s = rank_peak_flops_per_s(use, kind).value_or(0);
    if (device.flops_per_s > 0) {
      // A rank is a device: of so many known cores as its measured products are worth.
      predict::ClusterModel cluster = predict::known_cluster("cpu-core");
      predict::scale_device(cluster.device,
                            device.flops_per_s / cluster.device.peak_flops_per_s(use.compute == DType::f32));
      device.cluster = std::move(cluster);
    }
    return device;
  }
  device.name = "the GPU of this machine";
  if (kernels::cuda_status().devices == 0) return device;
  DeviceModel found = device_of_gpu(kernels::gpu_facts(gpu), use.compute, use.tf32);
  found.adds_gradients = device.adds_gradients;
  found.flops_per_s = sheet_peak(found.name, use);
  return found;
}

}  // namespace trainctl
