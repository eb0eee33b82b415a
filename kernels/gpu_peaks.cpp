// Peaks of GPUs, from their makers' data sheets: dense (tables that say "with sparsity" are halved), bf16 on the tensor cores with f32
// sums, and f32 without them.
//
// Sources, all NVIDIA: A100 data sheet (2021), A800 data sheet (2022), A30, A40 and A10 data sheets (2021), RTX A6000 data sheet (2021),
// H100 data sheet (2024: SXM, NVL) and its edition of 2023 (PCIe), H200 data sheet (2024), GH200 data sheet (2024), HGX B200/B100 and
// GB200 in the Blackwell architecture brief (2024), HGX B300 and GB300 NVL72 (2025), H800 and H20 (2023,
// recalled), L4, L40 and L40S data sheets (2023), Ada architecture white paper 2.1 (RTX 4090,
// RTX 6000 Ada), Ampere GA102 white paper 2.1 (RTX 3090), Blackwell RTX white paper 1.1 (RTX 5090).
#include <string_view>

#include "kernels/device.h"

namespace trainctl::kernels {

namespace {

struct GpuPeak {
  std::string_view name;   ///< as the driver reports it, without "NVIDIA "; a star at the end matches any ending
  double bf16, f32;        ///< TFLOP/s
};

constexpr GpuPeak kPeaks[] = {
    {"GB300*", 2500, 80},
    {"GB200", 2500, 80},
    {"B300*", 2250, 75},
    {"B200", 2250, 75},
    {"B100", 1750, 60},
    {"GH200 *", 989.4, 66.9},
    {"H200 NVL", 835.5, 60},
    {"H200", 989.4, 66.9},
    {"H100 NVL", 835.5, 60},
    {"H100 PCIe", 756, 51},
    {"H100 80GB HBM3", 989.4, 66.9},
    {"H800", 989.4, 66.9},
    {"H20", 148, 44},
    {"A100-*", 312, 19.5},
    {"A100 80GB PCIe", 312, 19.5},
    {"A800-*", 312, 19.5},
    {"A800 80GB PCIe", 312, 19.5},
    {"A30", 165, 10.3},
    {"A40", 149.7, 37.4},
    {"A10", 125, 31.2},
    {"RTX A6000", 154.8, 38.7},
    {"L4", 121, 30.3},
    {"L40", 181.05, 90.5},
    {"L40S", 362.05, 91.6},
    {"RTX 6000 Ada Generation", 364.2, 91.1},
    {"GeForce RTX 3090", 71, 35.6},
    {"GeForce RTX 4090", 165.2, 82.6},
    {"GeForce RTX 5090", 209.5, 104.8},
};

bool matches(std::string_view name, std::string_view pattern) {
  if (!pattern.ends_with('*')) return name == pattern;
  pattern.remove_suffix(1);
  return name.starts_with(pattern);
}

}  // namespace

std::optional<double> gpu_peak_flops_per_s(const std::string& name, DType dtype, bool tf32) {
  constexpr std::string_view kMaker = "NVIDIA ";
  std::string_view model = name;
  if (model.starts_with(kMaker)) model.remove_prefix(kMaker.size());
  if (model.find(" MIG ") != std::string_view::npos) return std::nullopt;   // a slice of a GPU
  if (dtype != DType::bf16 && dtype != DType::f32) return std::nullopt;
  for (const GpuPeak& peak : kPeaks)
    if (matches(model, peak.name))
      return (dtype == DType::bf16 ? peak.bf16 : tf32 ? peak.bf16 / 2 : peak.f32) * 1e12;
  return std::nullopt;
}

}  // namespace trainctl::kernels
