#include "runtime/plan/device_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/device.h"
#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

/// A GPU as plans know it. Peaks come from the table of data sheets behind kernels::gpu_peak_flops_per_s,
/// by the driver's name.
struct KnownGpu {
  const char* name;
  const char* driver_name;
  uint64_t memory_mib;
};

// Memory is the total that the driver reports (nvidia-smi, memory.total), which the makers' data sheets
// round: A10, L4, RTX 4090 24 GB, RTX 5090 32 GB, A100 40 and 80 GB, L40S 48 GB, H100 80 GB (SXM, PCIe) and
// 94 GB (NVL), GH200 96 GB, H200 141 GB, B200 180 GB (as HGX). Sources: the NVIDIA data sheets named in
// kernels/gpu_peaks.cpp; totals as published in github.com/modal-labs/modal-client pull 2797 (H100, A100,
// A10, L40S, L4) and github.com/pytorch/ao pull 4002 (B200: what CUDA reports).
constexpr KnownGpu kGpus[] = {
    {"a10", "A10", 23028},
    {"l4", "L4", 23034},
    {"rtx4090", "GeForce RTX 4090", 24564},
    {"rtx5090", "GeForce RTX 5090", 32607},
    {"a100-40", "A100-SXM4-40GB", 40960},
    {"l40s", "L40S", 46068},
    {"h100", "H100 80GB HBM3", 81559},
    {"h100-pcie", "H100 PCIe", 81559},
    {"a100-80", "A100-SXM4-80GB", 81920},
    {"h100-nvl", "H100 NVL", 95830},
    {"gh200", "GH200 480GB", 97871},
    {"h200", "H200", 143771},
    {"b200", "B200", 182630},
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return char(std::tolower(c)); });
  return text;
}

}  // namespace

uint64_t DeviceModel::room(const JobSpec& job) const {
  if (kind == DeviceKind::cpu) return memory_bytes;
  const uint64_t contexts =
      kGpuContextBytes * uint64_t(std::min(job.launcher.ranks_per_gpu, job.mesh().world_size()));
  return memory_bytes - std::min(memory_bytes, contexts);
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const KnownGpu& gpu : kGpus) names.push_back(gpu.name);
  return names;
}

DeviceModel device_named(const std::string& text, const JobSpec& job, DeviceKind kind) {
  const std::string name = lower(text) == "a100" ? "a100-80" : lower(text);
  for (const KnownGpu& gpu : kGpus)
    if (name == gpu.name)
      return {.kind = DeviceKind::cuda,
              .name = gpu.name,
              .memory_bytes = gpu.memory_mib << 20,
              .flops_per_s = kernels::gpu_peak_flops_per_s(gpu.driver_name, job.compute).value_or(0)};
  if (const auto bytes = bytes_of(text))
    return {.kind = kind,
            .name = kind == DeviceKind::cuda ? "a GPU of " + text : "a machine of " + text,
            .memory_bytes = *bytes};
  throw Error(
      ErrorCode::kUsage,
      fmt::format("--device {}: no such device is known; use {}, or an amount of memory such as 80GiB", text,
                  fmt::join(device_names(), ", ")));
}

DeviceModel device_here(const JobSpec& job, DeviceKind kind, bool with_peak) {
  DeviceModel device{.kind = kind, .name = "this machine"};
  if (with_peak) device.flops_per_s = rank_peak_flops_per_s(job, kind).value_or(0);
  if (kind == DeviceKind::cpu) {
    device.measured = true;
    device.memory_bytes = system_memory().available_bytes;
    return device;
  }
  device.name = "the GPU of this machine";
  if (kernels::cuda_status().devices == 0) return device;
  const kernels::GpuFacts facts = kernels::gpu_facts(0);
  device.name = facts.name;
  device.memory_bytes = facts.free_bytes;
  return device;
}

}  // namespace trainctl
