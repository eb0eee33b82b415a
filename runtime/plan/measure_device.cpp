#include "runtime/plan/measure_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/ops.h"
#include "runtime/base/error.h"
#include "runtime/plan/device_model.h"
#include "runtime/predict/op_time.h"
#include "runtime/spec/parse.h"

namespace trainctl {
namespace {

using predict::DeviceSpeed;

enum class OpClass { product, attention, other, none };
OpClass class_of(const TimedOp& op) {
  if (op.shape.op == kernels::Pack::kName || op.seconds <= 0) return OpClass::none;
  if (op.one.attention_flops > 0) return OpClass::attention;
  return op.one.flops > 0 ? OpClass::product : OpClass::other;
}

/// A timed op of a step.
struct Sample {
  const TimedOps* step;
  const TimedOp* op;
  double weight() const { return op->seconds * op->calls; }
};
std::vector<Sample> samples_of(const std::vector<TimedOps>& steps, OpClass which) {
  std::vector<Sample> samples;
  for (const TimedOps& step : steps)
    for (const TimedOp& op : step.ops)
      if (class_of(op) == which) samples.push_back({&step, &op});
  return samples;
}

double predicted(const DeviceSpeed& device, const Sample& s) {
  return predict::op_seconds(device, s.op->shape, s.op->one,
                             {.f32 = s.step->f32, .head_dim = s.step->head_dim})
      .sum();
}

/// The factor by which the predictions for the samples are too long, and how far they scatter around it.
struct Factor {
  double times = 1, scatter = 0;
};
Factor factor_of(const DeviceSpeed& device, const std::vector<Sample>& samples) {
  double sum = 0, weights = 0, squares = 0;
  for (const Sample& s : samples) {
    const double far = std::log(predicted(device, s) / s.op->seconds);
    weights += s.weight();
    sum += s.weight() * far;
    squares += s.weight() * far * far;
  }
  if (weights == 0) return {};
  const double mean = sum / weights;
  return {std::exp(mean), squares - mean * sum};
}

void fit_products(DeviceSpeed& device, const std::vector<TimedOps>& steps) {
  const std::vector<Sample> samples = samples_of(steps, OpClass::product);
  if (samples.empty()) return;
  for (const Sample& s : samples) {
    double& peak = s.step->f32 ? device.peak_f32_flops_per_s : device.peak_bf16_flops_per_s;
    peak = std::max(peak, s.op->one.flops / s.op->seconds);
  }
  device.peak_bf16_flops_per_s = std::max(device.peak_bf16_flops_per_s, device.peak_f32_flops_per_s);
  DeviceSpeed best = device;
  double least = INFINITY;
  for (double depth = 0; depth <= 1024; depth = depth == 0 ? 1 : depth * 1.25) {
    device.depth_cost = depth;
    device.product_share = 0.5;
    for (int round = 0; round < 3; ++round)  // an op's least time and its bytes do not scale with the share
      device.product_share = std::clamp(device.product_share * factor_of(device, samples).times, 0.05, 1.0);
    const Factor left = factor_of(device, samples);
    const double error = left.scatter + std::pow(std::log(left.times), 2);
    if (error < least) least = error, best = device;
  }
  device = best;
}

void fit_attention(DeviceSpeed& device, const std::vector<TimedOps>& steps) {
  const std::vector<Sample> samples = samples_of(steps, OpClass::attention);
  if (samples.empty()) return;
  const auto is_backward = [](const Sample& s) {
    return s.op->shape.op == kernels::AttentionBackward::kName;
  };
  DeviceSpeed best = device;
  double least = INFINITY;
  for (double half = 0; half <= 4096; half = half == 0 ? 4 : half * 1.5) {
    device.attention_half_length = half;
    device.attention.clear();
    double error = 0;
    std::map<int, std::vector<Sample>> by_head;
    for (const Sample& s : samples) by_head[int(s.step->head_dim)].push_back(s);
    for (const auto& [head_dim, all] : by_head) {
      const double peak = device.peak_bf16_flops_per_s / 2;
      device.attention.push_back({head_dim, peak, peak, peak, peak});
      predict::AttentionRate& rate = device.attention.back();
      for (const auto& [backward, f32, of] : {std::tuple{false, false, &rate.forward_flops_per_s},
                                              {true, false, &rate.backward_flops_per_s},
                                              {false, true, &rate.forward_f32_flops_per_s},
                                              {true, true, &rate.backward_f32_flops_per_s}}) {
        std::vector<Sample> some;
        for (const Sample& s : all)
          if (is_backward(s) == backward && s.step->f32 == f32) some.push_back(s);
        if (some.empty()) continue;
        *of = std::min(device.peak_bf16_flops_per_s, *of * factor_of(device, some).times);
        error += factor_of(device, some).scatter;
      }
    }
    // One length alone does not decide: then the rate is that of every length.
    if (error < least - 1e-9) least = error, best = device;
  }
  device = best;
}

/// The rate of one op: seconds of a call = call_s + bytes / rate, with least relative errors.
predict::OpRate rate_of(const std::string& name, const std::vector<Sample>& samples) {
  predict::OpRate best{.op = name};
  double shortest = INFINITY, least = INFINITY;
  for (const Sample& s : samples) shortest = std::min(shortest, s.op->seconds);
  for (double share = 0; share < 0.95; share += 0.1) {
    predict::OpRate rate{.op = name, .call_s = share * shortest};
    double error = 0;
    for (const bool f32 : {true, false}) {
      double top = 0, bottom = 0;  // of the least squares of 1 - (call_s + bytes x) / seconds
      for (const Sample& s : samples) {
        if (s.step->f32 != f32) continue;
        const double bytes = s.op->one.bytes / s.op->seconds;
        top += s.weight() * bytes * (1 - rate.call_s / s.op->seconds);
        bottom += s.weight() * bytes * bytes;
      }
      const double x = bottom > 0 ? top / bottom : 0;
      for (const Sample& s : samples)
        if (s.step->f32 == f32)
          error += s.weight() * std::pow(1 - (rate.call_s + s.op->one.bytes * x) / s.op->seconds, 2);
      if (x > 0) (f32 ? rate.f32_bytes_per_s : rate.bf16_bytes_per_s) = 1 / x;
    }
    if (rate.f32_bytes_per_s == 0) rate.f32_bytes_per_s = rate.bf16_bytes_per_s;
    if (rate.bf16_bytes_per_s == 0) rate.bf16_bytes_per_s = rate.f32_bytes_per_s;
    if (error < least && rate.f32_bytes_per_s > 0) least = error, best = rate;
  }
  return best;
}

void fit_others(DeviceSpeed& device, const std::vector<TimedOps>& steps) {
  std::map<std::string, std::vector<Sample>> by_name;
  double bytes = 0, seconds = 0;
  for (const Sample& s : samples_of(steps, OpClass::other)) {
    if (s.op->one.bytes <= 0) continue;
    by_name[std::string(s.op->shape.op)].push_back(s);
    bytes += s.op->one.bytes * s.op->calls;
    seconds += s.weight();
  }
  if (by_name.empty()) return;
  device.ops.clear();
  double fastest = 0;
  for (const auto& [name, samples] : by_name) {
    const predict::OpRate rate = rate_of(name, samples);
    if (rate.f32_bytes_per_s <= 0) continue;
    device.ops.push_back(rate);
    fastest = std::max({fastest, rate.f32_bytes_per_s, rate.bf16_bytes_per_s});
  }
  // Of ops that the steps do not have.
  device.memory_bytes_per_s = fastest;
  device.memory_share = std::clamp(bytes / seconds / fastest, 0.05, 1.0);
}

/// Small models whose shapes differ: hidden size, sequence length, number of heads, tied and gated or not.
struct MeasuredModel {
  const char* name;
  const char* model;
  int sequence, micro, steps;
};
constexpr MeasuredModel kMeasured[] = {
    {"256 channels",
     R"({"family": "llama", "hidden_size": 256, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
         "ffn_size": 704, "vocab_size": 2048, "max_seq_len": 128, "tie_embeddings": false})",
     128, 4, 12},
    {"512 channels",
     R"({"family": "gpt2", "hidden_size": 512, "num_layers": 2, "num_heads": 8, "num_kv_heads": 8,
         "ffn_size": 2048, "vocab_size": 8192, "max_seq_len": 256, "tie_embeddings": true})",
     256, 2, 4},
    {"1024 channels",
     R"({"family": "llama", "hidden_size": 1024, "num_layers": 1, "num_heads": 8, "num_kv_heads": 4,
         "ffn_size": 2816, "vocab_size": 1024, "max_seq_len": 512, "tie_embeddings": false})",
     512, 1, 3},
    {"128 channels",
     R"({"family": "llama", "hidden_size": 128, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2,
         "ffn_size": 384, "vocab_size": 512, "max_seq_len": 512, "tie_embeddings": false})",
     512, 2, 8},
};

JobSpec measured_job(const MeasuredModel& m, bool f32, int threads) {
  const ParsedJob parsed =
      parse_job({.text = fmt::format(
                     R"({{"version": 1, "name": "measure", "model": {}, "device": "cpu",
               "data": {{"seq_len": {}, "train": [{{"path": "/none", "format": "raw", "dtype": "uint32"}}]}},
               "batch": {{"global_sequences": {}, "micro_sequences": {}}},
               "parallelism": {{"threads_per_rank": {}}}, "precision": {{"compute": "{}"}},
               "schedule": {{"total_steps": 1, "lr": 1e-3}}}})",
                     m.model, m.sequence, 2 * m.micro, m.micro, threads, f32 ? "f32" : "bf16"),
                 .file = "measure.json",
                 .overrides = {},
                 .environment = {}});
  for (const Diagnostic& d : parsed.diagnostics) ENSURE(!d.is_error(), "{}", d.message);
  return parsed.job;
}

}  // namespace

TimedOps TimedOps::of(const TimedSteps& steps, bool f32, double head_dim) {
  TimedOps result{.f32 = f32, .head_dim = head_dim, .ops = {}};
  for (const auto& [shape, count] : steps.work.ops) {
    std::vector<double> seconds = steps.seconds.at(shape);
    const auto quartile = seconds.begin() + ptrdiff_t(seconds.size() / 4);
    std::nth_element(seconds.begin(), quartile, seconds.end());
    const double calls = double(count.calls);
    result.ops.push_back({shape,
                          {1, count.flops / calls, count.attention_flops / calls, count.bytes / calls},
                          *quartile,
                          calls});
  }
  return result;
}

predict::DeviceSpeed fit_device(predict::DeviceSpeed known, const std::vector<TimedOps>& steps) {
  fit_others(known, steps);
  fit_products(known, steps);
  fit_attention(known, steps);
  return known;
}

FitErrors fit_errors(const predict::DeviceSpeed& device, const std::vector<TimedOps>& steps) {
  double measured = 0, all = 0, far = 0;
  for (const OpClass which : {OpClass::product, OpClass::attention, OpClass::other})
    for (const Sample& s : samples_of(steps, which)) {
      const double seconds = predicted(device, s);
      measured += s.weight();
      all += seconds * s.op->calls;
      far += std::abs(seconds - s.op->seconds) * s.op->calls;
    }
  return {measured > 0 ? all / measured - 1 : 0, measured > 0 ? far / measured : 0};
}

MeasuredDevice measure_cpu(const DeviceSpeed& known, const CpuMeasurement& how) {
  DeviceSpeed start = known;
  start.processors = 1;
  std::vector<TimedOps> steps;
  for (const bool f32 : {true, false}) {
    const DType dtype = f32 ? DType::f32 : DType::bf16;
    how.say(fmt::format("large {} products", name_of(dtype)));
    const auto backend = kernels::make_cpu_backend(how.threads);
    (f32 ? start.peak_f32_flops_per_s : start.peak_bf16_flops_per_s) =
        kernels::measure_matmul_flops_per_s(*backend, dtype);
    for (const MeasuredModel& m : kMeasured) {
      if (how.quick && &m != kMeasured) continue;
      how.say(fmt::format("the ops of a step in {}, a model of {}", name_of(dtype), m.name));
      const JobSpec job = measured_job(m, f32, how.threads);
      const DeviceModel device = device_of_kind(job, DeviceKind::cpu);
      const ModelTables tables = model_tables(job);
      const TimedSteps timed =
          time_steps({job, device, tables}, kernels::make_cpu_backend(how.threads), how.quick ? 3 : m.steps);
      steps.push_back(TimedOps::of(timed, f32, double(job.model.head_dim())));
    }
  }
  MeasuredDevice result{fit_device(std::move(start), steps), {}};
  result.errors = fit_errors(result.speed, steps);
  return result;
}

}  // namespace trainctl
