#include "runtime/predict/op_time.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops.h"

namespace trainctl::predict {
namespace {

/// A tile of a product's outputs, and the share of the full rate that a processor reaches on it. Fitted, with
/// depth_cost, to the products of GPT-2 124M and of a layer of Llama 8B on an H100.
struct Tile {
  double rows, columns, share;
};
constexpr Tile kTiles[] = {{128, 256, 1.0}, {256, 128, 1.0}, {128, 128, 0.93}, {64, 256, 0.9},
                           {256, 64, 0.9},  {64, 128, 0.8},  {128, 64, 0.8},   {64, 64, 0.6}};
constexpr double kLeastDepth = 1024;  // of a part, where products are cut along their depth
constexpr double kWholeWaves = 0.25;  // of the last wave's idle processors, the share that stays idle

bool is_grouped(const kernels::OpShape& shape) { return shape.op.starts_with("grouped_"); }

bool is_of_head(const kernels::OpShape& shape, const WorkKind& kind) {
  const auto is_weight = [&](int64_t rows, int64_t columns) {
    return rows == kind.fp8_head_rows && columns == kind.fp8_head_columns;
  };
  return (shape.op == kernels::LinearForward::kName && is_weight(shape.n, shape.k)) ||
         (shape.op == kernels::LinearBackwardInput::kName && is_weight(shape.k, shape.n)) ||
         (shape.op == kernels::LinearBackwardWeight::kName && is_weight(shape.m, shape.n));
}

bool is_fp8(const DeviceSpeed& device, const kernels::OpShape& shape, const WorkKind& kind) {
  return device.multiplies_fp8 && device.fp8_flops_per_s > 0 && kind.fp8_head_rows > 0 &&
         !is_of_head(shape, kind);
}

/// Of `number` products of one shape that are dealt together. rate: of all processors together on large
/// tiles.
double tiled_seconds(const DeviceSpeed& device, double number, double m, double n, double k, double rate,
                     double depth_cost) {
  const double processors = device.processors;
  double best = INFINITY;
  for (const Tile& tile : kTiles) {
    const double tiles = number * std::ceil(m / tile.rows) * std::ceil(n / tile.columns);
    const double cuts = std::max(1.0, std::min(std::floor(processors / tiles), k / kLeastDepth));
    const double waves = tiles * cuts / processors;
    const double charged = kWholeWaves * std::ceil(waves) + (1 - kWholeWaves) * std::max(1.0, waves);
    const double flops = 2 * tile.rows * tile.columns * (k / cuts + depth_cost);
    best = std::min(best, charged * flops / (rate * tile.share / processors));
  }
  return best;
}

double products_s(const DeviceSpeed& device, double number, double m, double n, double k, bool f32) {
  const double rate = device.product_share * device.peak_flops_per_s(f32);
  // A core deals no tiles: small blocks follow each other at one rate, whatever the shape.
  return device.processors > 1 ? tiled_seconds(device, number, m, n, k, rate, device.depth_cost)
                               : 2 * number * m * n * (k + device.depth_cost) / rate;
}

double at_least_bytes(const DeviceSpeed& device, double seconds, double bytes) {
  return std::max(seconds, bytes / (device.memory_bytes_per_s * device.memory_share)) + device.op_s;
}

}  // namespace

TimeParts& TimeParts::operator+=(const TimeParts& other) {
  products += other.products;
  attention += other.attention;
  memory += other.memory;
  launches += other.launches;
  return *this;
}

TimeParts operator*(double times, TimeParts parts) {
  return {times * parts.products, times * parts.attention, times * parts.memory, times * parts.launches};
}

double product_seconds(const DeviceSpeed& device, double m, double n, double k, double bytes, bool f32) {
  return at_least_bytes(device, products_s(device, 1, m, n, k, f32), bytes);
}

double fp8_product_seconds(const DeviceSpeed& device, double m, double n, double k, double bytes) {
  return at_least_bytes(
      device, tiled_seconds(device, 1, m, n, k, device.fp8_flops_per_s, device.fp8_depth_cost), bytes);
}

double grouped_seconds(const DeviceSpeed& device, const kernels::OpShape& shape, int64_t experts,
                       double bytes, bool f32, bool fp8) {
  const double number = double(std::max<int64_t>(1, experts));
  const bool of_weight = shape.op == kernels::GroupedBackwardWeight::kName;
  const double m = double(shape.m) / (of_weight ? 1 : number), n = double(shape.n),
               k = double(shape.k) / (of_weight ? number : 1);
  const double multiplied =
      fp8 ? tiled_seconds(device, number, m, n, k, device.fp8_flops_per_s, device.fp8_depth_cost)
          : products_s(device, number, m, n, k, f32);
  return at_least_bytes(device, multiplied / device.grouped_share, bytes);
}

double product_peak(const DeviceSpeed& device, bool f32, bool tf32) {
  return f32 && tf32 ? device.peak_bf16_flops_per_s / 2 : device.peak_flops_per_s(f32);
}

TimeParts op_seconds(const DeviceSpeed& device, const kernels::OpShape& shape, const kernels::OpCount& count,
                     const WorkKind& kind) {
  // Packing keeps the address of the weight; products read it in place on every device of ours.
  if (count.calls == 0 || shape.op == kernels::Pack::kName) return {};
  const double calls = double(count.calls);
  if (count.attention_flops > 0) {
    const bool backward = shape.op == "attention_backward";
    const double length = double(shape.window > 0 ? std::min(shape.k, shape.window) : shape.k);
    const AttentionRate& rate = device.attention_of(kind.head_dim);
    const double share = length / (length + device.attention_half_length);
    double flops_per_s = backward ? rate.backward_flops_per_s : rate.forward_flops_per_s;
    if (kind.f32) {
      const double own = backward ? rate.backward_f32_flops_per_s : rate.forward_f32_flops_per_s;
      flops_per_s = own > 0 ? own : flops_per_s * device.peak_f32_flops_per_s / device.peak_bf16_flops_per_s;
    }
    return {.attention = count.flops / (share * flops_per_s) + calls * device.op_s};
  }
  if (count.flops > 0) {
    const double m = double(shape.m), n = double(shape.n), k = double(shape.k), bytes = count.bytes / calls;
    const bool fp8 = is_fp8(device, shape, kind);
    const double one = is_grouped(shape) ? grouped_seconds(device, shape, kind.experts, bytes, kind.f32, fp8)
                       : fp8             ? fp8_product_seconds(device, m, n, k, bytes)
                                         : product_seconds(device, m, n, k, bytes, kind.f32);
    // Bytes that tensor cores wait for. Cores compute what they move, which their rates contain.
    const double apart = device.processors > 1 ? kind.passes * count.apart_bytes : 0;
    return {.products = calls * one, .memory = apart / (device.memory_bytes_per_s * device.memory_share)};
  }
  if (const OpRate* rate = device.rate_of(shape.op))
    return {.memory =
                kind.passes * count.bytes / (kind.f32 ? rate->f32_bytes_per_s : rate->bf16_bytes_per_s) +
                calls * rate->call_s};
  return {.memory = kind.passes *
                    (count.bytes / (device.memory_bytes_per_s * device.memory_share) + calls * device.op_s)};
}

TimeParts work_seconds(const DeviceSpeed& device, const kernels::WorkTally& work, const WorkKind& kind) {
  TimeParts parts;
  double calls = 0;
  for (const auto& [shape, count] : work.ops) {
    parts += op_seconds(device, shape, count, kind);
    if (shape.op != kernels::Pack::kName) calls += double(count.calls);
  }
  parts.launches = std::max(0.0, calls * device.launch_s - parts.sum());
  return parts;
}

}  // namespace trainctl::predict
