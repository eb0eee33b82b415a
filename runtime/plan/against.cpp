#include "runtime/plan/against.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

using predict::ClusterModel;
using predict::DeviceSpeed;

/// Parts of a step that take less than this share of it decide nothing.
constexpr double kLeastShare = 0.01;

double waits_of(const StepParts& parts) {
  return parts.tensor + parts.context + parts.experts + parts.bubble + parts.data + parts.spread;
}

std::string percent_more(double measured, double predicted) {
  const double more = 100 * (measured / predicted - 1);
  return fmt::format("{:.1f} % {}", std::abs(more), more >= 0 ? "longer" : "shorter");
}

std::string verdict_of(const Comparison& c) {
  const double step = c.step.difference_s();
  std::string text = fmt::format("a step took {}, {} than predicted", duration_text(c.step.measured_s),
                                 percent_more(c.step.measured_s, c.step.predicted_s));
  const auto far = [](const ComparedKind& k) { return std::abs(k.difference_s()); };
  const ComparedKind& worst = *std::max_element(
      c.kinds.begin(), c.kinds.end(), [&](const auto& a, const auto& b) { return far(a) < far(b); });
  if (far(worst) < kLeastShare * c.step.measured_s)
    return text + "; no kind of instruction is off by 1 % of it";
  text +=
      fmt::format("; most of all {} took {} {} than the predicted {}", worst.name, duration_text(far(worst)),
                  worst.difference_s() > 0 ? "longer" : "less", duration_text(worst.predicted_s));
  if (worst.predicted_s > 0)
    text += fmt::format(" ({:+.1f} %)", 100 * worst.difference_s() / worst.predicted_s);
  if (step * worst.difference_s() < 0) text += ", which others make up for";
  return text;
}

/// Multiplies a rate that is written as a share of a peak; what a share cannot be goes to the peak.
void scale_share(double& share, double times, const auto& scale_peak) {
  const double wanted = share * times;
  constexpr double kLeast = 0.05;  // in a file
  share = std::clamp(wanted, kLeast, 1.0);
  if (share != wanted) scale_peak(wanted / share);
}

void scale_products(DeviceSpeed& device, double times) {
  scale_share(device.product_share, times, [&](double more) {
    device.peak_bf16_flops_per_s *= more;
    device.peak_f32_flops_per_s *= more;
    for (predict::AttentionRate& rate : device.attention) {
      rate.forward_flops_per_s = std::min(rate.forward_flops_per_s, device.peak_bf16_flops_per_s);
      rate.backward_flops_per_s = std::min(rate.backward_flops_per_s, device.peak_bf16_flops_per_s);
    }
  });
}

void scale_attention(DeviceSpeed& device, double times) {
  for (predict::AttentionRate& rate : device.attention) {
    rate.forward_flops_per_s *= times, rate.backward_flops_per_s *= times;
    rate.forward_f32_flops_per_s *= times, rate.backward_f32_flops_per_s *= times;
  }
}

void scale_memory(DeviceSpeed& device, double times) {
  for (predict::OpRate& rate : device.ops) {
    rate.f32_bytes_per_s *= times, rate.bf16_bytes_per_s *= times;
    rate.call_s /= times;
  }
  scale_share(device.memory_share, times, [&](double more) { device.memory_bytes_per_s *= more; });
}

class Corrector {
 public:
  Corrector(const ClusterModel& cluster, const MeasuredStep& measured,
            const std::function<StepTime(const ClusterModel&)>& predict)
      : measured_(measured), predict_(predict) {
    result_.cluster = cluster;
  }

  CorrectedCluster correct(const CorrectionBasis& basis) {
    const ClusterModel before = result_.cluster;
    const std::string& source = basis.source;
    if (basis.shares_devices) {
      undecided("everything: ranks took turns on a device; let a run have no more of them than devices");
      return std::move(result_);
    }
    correct_optimizer();
    correct_passes();
    correct_waits(basis.with_pipeline);
    DeviceSpeed& device = result_.cluster.device;
    const LinkSpeeds old{before.node.bytes_per_s / 1e9, result_.cluster.node.bytes_per_s / 1e9};
    note("device.peak_bf16_tflops", before.device.peak_bf16_flops_per_s / 1e12,
         device.peak_bf16_flops_per_s / 1e12);
    note("device.peak_f32_tflops", before.device.peak_f32_flops_per_s / 1e12,
         device.peak_f32_flops_per_s / 1e12);
    note("device.product_share", before.device.product_share, device.product_share);
    note("device.attention[0].forward_tflops", before.device.attention[0].forward_flops_per_s / 1e12,
         device.attention[0].forward_flops_per_s / 1e12);
    note("device.memory_gb_per_s", before.device.memory_bytes_per_s / 1e9, device.memory_bytes_per_s / 1e9);
    note("device.memory_share", before.device.memory_share, device.memory_share);
    if (!result_.corrections.empty()) result_.cluster.device_source += "; " + source;
    note("node.link_gb_per_s", old.before, old.after);
    note("fabric.device_gb_per_s", before.fabric.bytes_per_s / 1e9, result_.cluster.fabric.bytes_per_s / 1e9);
    if (old.before != old.after) result_.cluster.node_source += "; " + source;
    if (before.fabric.bytes_per_s != result_.cluster.fabric.bytes_per_s)
      result_.cluster.fabric_source += "; no faster than the link of a node, " + source;
    return std::move(result_);
  }

 private:
  /// What a call takes besides its products or bytes does not change with a rate.
  static constexpr int kRounds = 8;
  struct LinkSpeeds {
    double before, after;
  };

  void note(const char* field, double before, double after) {
    if (std::abs(after - before) > 1e-3 * before) result_.corrections.push_back({field, before, after});
  }
  void undecided(std::string text) { result_.undecided.push_back(std::move(text)); }
  StepTime now() const { return predict_(result_.cluster); }
  bool is_small(double seconds) const { return seconds < kLeastShare * measured_.step_s; }

  /// Its ops move bytes, and compute no products.
  void correct_optimizer() {
    for (int round = 0; round < kRounds; ++round) {
      const double predicted = now().parts.optimizer;
      if (is_small(predicted) || is_small(measured_.optimizer_s))
        return undecided("memory_share: the optimizer takes less than 1 % of a step");
      scale_memory(result_.cluster.device, predicted / measured_.optimizer_s);
    }
  }

  /// What of the passes other ops do not take, products or attention do.
  void correct_passes() {
    const predict::TimeParts first = now().parts.work;
    const bool by_products = first.products >= first.attention;
    const double measured = measured_.forward_s + measured_.backward_s;
    for (int round = 0; round < kRounds; ++round) {
      const predict::TimeParts work = now().parts.work;
      const double share = by_products ? work.products : work.attention;
      const double left = measured - (work.sum() - share);
      if (left < share / 20)
        return undecided(fmt::format(
            "product_share: other ops alone are predicted to take longer than the measured {} of the passes",
            duration_text(measured)));
      (by_products ? scale_products : scale_attention)(result_.cluster.device, share / left);
    }
    undecided(by_products
                  ? "attention: a step's time does not tell it from products; they were corrected alone"
                  : "product_share: a step's time does not tell products from attention, which takes longer; "
                    "it was corrected alone");
  }

  void correct_waits(bool with_pipeline) {
    const StepTime time = now();
    const double predicted = waits_of(time.parts) - time.parts.spread;
    const double measured = measured_.waiting_s - measured_.uneven_s;
    if (with_pipeline) return undecided("link_gb_per_s: ranks also wait for stages of the pipeline");
    if (is_small(predicted) || is_small(measured))
      return undecided("link_gb_per_s: exchanges take less than 1 % of a step");
    // The latency is a part of the time that this does not change.
    predict::LinkSpeed& link = result_.cluster.node;
    const double rate = link.bytes_per_s;
    link.bytes_per_s = 1e18;
    const double latencies = waits_of(now().parts) - time.parts.spread;
    link.bytes_per_s = rate;
    if (measured <= latencies)
      return undecided("link_gb_per_s: exchanges were shorter than the latencies of their messages");
    link.bytes_per_s = std::clamp(rate * (predicted - latencies) / (measured - latencies), 1e7, 1e14);
    // A file whose network is faster than the links of a node is refused.
    predict::LinkSpeed& fabric = result_.cluster.fabric;
    fabric.bytes_per_s = std::min(fabric.bytes_per_s, link.bytes_per_s);
  }

  const MeasuredStep& measured_;
  const std::function<StepTime(const ClusterModel&)>& predict_;
  CorrectedCluster result_;
};

}  // namespace

Comparison compare_step(const StepTime& predicted, const MeasuredStep& measured) {
  Comparison c;
  c.step.predicted_s = predicted.step_s;
  c.step.measured_s = measured.step_s;
  c.kinds = {{"forward", predicted.forward_s, measured.forward_s},
             {"backward", predicted.backward_input_s + predicted.backward_weight_s, measured.backward_s},
             {"exchanges and waits", waits_of(predicted.parts), measured.waiting_s},
             {"optimizer", predicted.parts.optimizer, measured.optimizer_s},
             {"data", 0, measured.data_s},
             {"reporting", 0, measured.reporting_s}};
  c.verdict = verdict_of(c);
  if (!measured.traced) return c;
  const TracedStep& traced = *measured.traced;
  for (const ComparedKind& kind :
       {ComparedKind{"forward", predicted.forward_s, traced.forward_s},
        {"backward", predicted.backward_input_s + predicted.backward_weight_s, traced.backward_s},
        {"backward, inputs", predicted.backward_input_s, traced.backward_input_s},
        {"backward, weights", predicted.backward_weight_s, traced.backward_weight_s},
        {"tensor", predicted.parts.tensor, traced.tensor_s},
        {"context", predicted.parts.context, traced.context_s},
        {"experts", predicted.parts.experts, traced.experts_s},
        {"pipeline", predicted.parts.bubble, traced.pipeline_s},
        {"data", predicted.parts.data, traced.data_s}})
    if (std::isfinite(kind.measured_s)) c.traced.push_back(kind);
  return c;
}

CorrectedCluster correct_cluster(const ClusterModel& cluster, const MeasuredStep& measured,
                                 const std::function<StepTime(const ClusterModel&)>& predict,
                                 const CorrectionBasis& basis) {
  return Corrector(cluster, measured, predict).correct(basis);
}

std::string render_comparison(const Comparison& c, const MeasuredStep& measured, const std::string& cluster) {
  std::string out =
      fmt::format("A step predicted from cluster {}, and as {} of the run measured it ({} to {})\n", cluster,
                  count_of(measured.steps, "step"), measured.first, measured.last);
  out +=
      fmt::format("  {:<22}{:>12}{:>12}{:>10}{:>14}\n", "", "predicted", "measured", "error", "of the step");
  const auto line = [&](const ComparedKind& k) {
    const std::string error = k.measured_s > 0 && k.predicted_s > 0
                                  ? fmt::format("{:+.1f} %", 100 * (k.predicted_s / k.measured_s - 1))
                                  : "";
    out += fmt::format("  {:<22}{:>12}{:>12}{:>10}{:>14}\n", k.name, duration_text(k.predicted_s),
                       duration_text(k.measured_s), error,
                       fmt::format("{:+.1f} %", 100 * -k.difference_s() / c.step.measured_s));
  };
  for (const ComparedKind& kind : c.kinds) line(kind);
  line(c.step);
  if (!c.traced.empty()) {
    out += fmt::format("Of steps {} to {}, which were traced: computations, and waits by peers\n",
                       measured.traced->first, measured.traced->last);
    for (const ComparedKind& kind : c.traced) line(kind);
  }
  return out + c.verdict + "\n";
}

}  // namespace trainctl
