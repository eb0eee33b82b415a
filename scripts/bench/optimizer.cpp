// Measures a step of the optimizers on the CPU, on the matrices of a few layers. Prints one JSON object for
// each width.
//
//   bench_optimizer [THREADS [TURNS]]
//
//   products          the share of its products in Muon's step: seconds in LinearForward and
//                     LinearBackwardWeight over all seconds, of the fastest step
//   products_alone    the seconds of the same products in a step that runs nothing else, over those of the
//                     fastest step
//   products_gflops   rate of the products alone; unit_gflops: of products 1024^3 with packed weights
//   bf16, int8        seconds of AdamW with such moments over those with moments in f32
//
// Everything takes turns; of each the fastest counts.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "kernels/host_memory.h"
#include "parallel/sharded_params.h"

using namespace trainctl;
using namespace trainctl::parallel;

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct OpTime {
  double seconds = 0, flops = 0;
};

/// A CPU that takes the time of each op, or runs the products alone.
class TimedCpu final : public kernels::HostDevice {
 public:
  explicit TimedCpu(int threads) : cpu_(kernels::make_cpu_backend(threads)) {}
  std::string name() const override { return cpu_->name(); }
  std::string numerics() const override { return cpu_->numerics(); }
  std::unique_ptr<kernels::PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return cpu_->make_packed(n, k, dtype);
  }
  void run(kernels::Stream& stream, const kernels::Op& op) override {
    std::visit(
        [&](const auto& o) {
          using O = std::decay_t<decltype(o)>;
          double flops = 0;
          if constexpr (requires { o.flops(); }) flops = o.flops();
          if (products_only && flops == 0 && !std::is_same_v<O, kernels::Pack>) return;
          const double begin = seconds();
          cpu_->run(stream, op);
          OpTime& time = ops[O::kName];
          time.seconds += seconds() - begin;
          time.flops += flops;
        },
        op);
  }

  bool products_only = false;
  std::map<std::string, OpTime> ops;

 private:
  const std::unique_ptr<kernels::Backend> cpu_;
};

struct LayerMatrices {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
  LayerMatrices(int64_t hidden, int layers, UpdateRule rule, kernels::Moments moments) {
    const auto add = [&](int64_t rows, int64_t cols, std::vector<int64_t> sections = {}) {
      ParamUse use;
      use.param = use.part = int(uses.size());
      use.layout = {.name = std::to_string(use.param), .rows = rows, .cols = cols};
      use.layout.sections = std::move(sections);
      use.rule = rule;
      use.states = rows_of(rule, {.moments = moments});
      use.weight_decay = 0.1f;
      grids.push_back(chunk_grid(use.layout, {1}, 8 << 18));
      uses.push_back(std::move(use));
    };
    for (int layer = 0; layer < layers; ++layer) {
      add(3 * hidden, hidden, {hidden, hidden, hidden});
      add(hidden, hidden);
      add(4 * hidden, hidden);
      add(hidden, 4 * hidden);
    }
  }
};

/// Parameters with gradients of one step.
class Stepper {
 public:
  Stepper(TimedCpu& cpu, kernels::Stream& stream, const LayerMatrices& of)
      : cpu_(cpu),
        alone_(make_thread_world(1, 600)),
        params_(of.uses, of.grids, {.lanes = 1}, {*alone_[0], *alone_[0], nullptr}, cpu, stream) {
    uint32_t random = 1;
    for (int use = 0; use < params_.use_count(); ++use) {
      const kernels::Matrix g = params_.gradient(use, 0);
      for (int64_t i = 0; i < g.count(); ++i) {
        random = random * 1664525u + 1013904223u;
        g.as<float>()[i] = float(int32_t(random)) * 0x1p-31f;
      }
    }
  }
  double step() {
    params_.reduce(0, params_.use_count());
    params_.finish_reduction();
    cpu_.ops.clear();
    const double begin = seconds();
    params_.step({.adamw = {.lr = 1e-4f}, .muon = {.lr = 1e-4f}});
    return seconds() - begin;
  }

 private:
  TimedCpu& cpu_;
  std::vector<std::unique_ptr<Communicator>> alone_;
  ShardedParams params_;
};

constexpr const char* kProducts[] = {"linear_forward", "linear_backward_weight"};

OpTime products_of(const TimedCpu& cpu) {
  OpTime all;
  for (const char* op : kProducts)
    if (const auto found = cpu.ops.find(op); found != cpu.ops.end()) {
      all.seconds += found->second.seconds;
      all.flops += found->second.flops;
    }
  return all;
}

std::string measure(TimedCpu& cpu, int64_t hidden, int layers, int turns) {
  const auto stream = cpu.create_stream();
  const auto of = [&](UpdateRule rule, kernels::Moments moments) {
    return Stepper(cpu, *stream, LayerMatrices(hidden, layers, rule, moments));
  };
  using kernels::Moments;
  Stepper muon = of(UpdateRule::muon, Moments::f32), f32 = of(UpdateRule::adamw, Moments::f32),
          bf16 = of(UpdateRule::adamw, Moments::bf16), int8 = of(UpdateRule::adamw, Moments::int8);
  double muon_s = 1e30, f32_s = 1e30, bf16_s = 1e30, int8_s = 1e30, alone_s = 1e30, unit = 0;
  OpTime products;
  std::map<std::string, OpTime> ops;
  for (int turn = 0; turn <= turns; ++turn) {
    if (const double s = muon.step(); turn > 0 && s < muon_s) {
      muon_s = s;
      ops = cpu.ops;
      products = products_of(cpu);
    }
    cpu.products_only = true;
    muon.step();
    cpu.products_only = false;
    alone_s = std::min(alone_s, products_of(cpu).seconds);
    f32_s = std::min(f32_s, f32.step());
    bf16_s = std::min(bf16_s, bf16.step());
    int8_s = std::min(int8_s, int8.step());
    unit = std::max(unit, kernels::measure_matmul_flops_per_s(cpu, DType::f32));
  }
  std::string rows;
  for (const auto& [op, time] : ops)
    rows += fmt::format(R"({}"{}":{:.4f})", rows.empty() ? "" : ",", op, time.seconds / muon_s);
  return fmt::format(
      R"({{"hidden":{},"muon_s":{:.4f},"products":{:.3f},"products_alone":{:.3f},"products_gflops":{:.1f},)"
      R"("unit_gflops":{:.1f},"shares_of_ops":{{{}}},"adamw_s":{:.4f},"bf16":{:.3f},"int8":{:.3f}}})",
      hidden, muon_s, products.seconds / muon_s, alone_s / muon_s, products.flops / alone_s * 1e-9,
      unit * 1e-9, rows, f32_s, bf16_s / f32_s, int8_s / f32_s);
}

}  // namespace

int main(int count, char** arguments) {
  const auto argument = [&](int i, int otherwise) { return count > i ? std::atoi(arguments[i]) : otherwise; };
  TimedCpu cpu(argument(1, 2));
  const int turns = argument(2, 5);
  fmt::print("[{},\n{}]\n", measure(cpu, 512, 4, turns), measure(cpu, 1024, 1, turns));
}
