// Measures the reduction of gradients between rank threads: how long it takes against what the memory of this
// machine would need for the bytes that the algorithm moves. Prints one JSON object.
//
//   bench_reduction [RANKS [MILLIONS [REPETITIONS]]]
//
//   bytes        read and written by all ranks: the ops' arguments, counted by the tally twins, and each message
//                once at its sender and once at its receiver, as if no cache held any of them
//   memory       bytes a second of a core while all rank threads copy, or add, blocks that no cache holds: the
//                faster of the two, measured between the reductions
//   of_limit     the time that these bytes take at that rate, over that of the reduction, in seconds of CPU time
//                of all rank threads: other programs on the cores do not count, waits for peers do not either,
//                of which there are none while ranks outnumber cores
//   seconds      of a clock on the wall, the least of all repetitions
//
// The gradients of one step: matrices of 4096 x 1024, in chunks of the default size, reduced one after another
// as a backward pass does.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

#include "kernels/tally.h"
#include "parallel/sharded_params.h"
#include "parallel/tally.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "test/support/modelled_links.h"

using namespace trainctl;
using namespace trainctl::parallel;

namespace {

constexpr int64_t kRows = 4096, kCols = 1024;

struct Setting {
  const char* name;
  ExchangeChoice exchange;
  DType dtype;
  double bucket_mib;
};

struct Model {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
  explicit Model(int64_t elements) {
    for (int64_t left = elements; left > 0; left -= kRows * kCols) {
      ParamUse use;
      use.param = use.part = int(uses.size());
      use.layout = {.name = std::to_string(use.param), .rows = kRows, .cols = kCols, .cut = Cut::rows};
      use.dtype = DType::bf16;
      grids.push_back(chunk_grid(use.layout, {1}, 8 << 18));  // chunks of 8 MiB
      uses.push_back(std::move(use));
    }
  }
  int64_t elements() const { return int64_t(uses.size()) * kRows * kCols; }
};

ShardingOptions options_of(const Setting& s, int ranks) {
  return {.lanes = ranks,
          .bucket_elements = int64_t(s.bucket_mib * (1 << 18)),
          .reduction_dtype = s.dtype,
          .exchange = s.exchange};
}

void reduce(ShardedParams& params) {
  for (int use = params.use_count() - 1; use >= 0; --use) params.reduce(use, use + 1);
  params.finish_reduction();
}

/// Of all ranks of one reduction.
double bytes_of(const Model& model, const Setting& s, int ranks) {
  double bytes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    kernels::WorkTally work;
    TrafficTally traffic;
    const auto backend = kernels::make_tally_backend(work);
    const auto stream = backend->create_stream();
    const auto data = make_tally_communicator(TrafficGroup::data, rank, ranks, traffic);
    const auto alone = make_tally_communicator(TrafficGroup::other, 0, 1, traffic);
    ShardedParams params(model.uses, model.grids, options_of(s, ranks), {*data, *alone, nullptr}, *backend,
                         *stream);
    work.ops.clear();
    traffic.clear();
    reduce(params);
    for (const auto& [op, count] : work.ops) bytes += count.bytes;
    bytes += 2 * traffic.sent(TrafficGroup::data);
  }
  return bytes;
}

/// Runs `body` on every rank's thread.
void on_threads(int ranks, const std::function<void(Communicator&)>& body) {
  auto ends = make_thread_world(ranks, 600);
  std::vector<std::thread> threads;
  for (auto& end : ends) threads.emplace_back([&body, &comm = *end] { body(comm); });
  for (std::thread& thread : threads) thread.join();
}

struct Time {
  double wall_s = 0;
  double cpu_s = 0;  // of all ranks together
};

/// Takes the time of what all ranks do together: from the first that begins to the last that ends. More ranks than
/// cores do not begin at one time.
class Stopwatch {
 public:
  explicit Stopwatch(int ranks) : begins_(size_t(ranks)), ends_(size_t(ranks)), cpu_(size_t(ranks)) {}
  Time of(Communicator& comm, const std::function<void()>& body) {
    const auto rank = size_t(comm.rank());
    barrier(comm);
    begins_[rank] = real_clock().monotonic_s();
    const double cpu_s = test::thread_cpu_s();
    body();
    cpu_[rank] = test::thread_cpu_s() - cpu_s;
    ends_[rank] = real_clock().monotonic_s();
    barrier(comm);
    const Time time{
        *std::max_element(ends_.begin(), ends_.end()) - *std::min_element(begins_.begin(), begins_.end()),
        std::accumulate(cpu_.begin(), cpu_.end(), 0.0)};
    barrier(comm);
    return time;
  }

 private:
  std::vector<double> begins_, ends_, cpu_;
};

/// Blocks to copy and to add, written once, so that they have pages of their own.
class Blocks {
 public:
  explicit Blocks(kernels::Backend& backend) {
    for (auto& block : blocks_) {
      block = backend.allocate(kElements * 4);
      std::fill_n(static_cast<float*>(block->data()), kElements, 1.0f);
    }
  }
  /// Bytes read and written in a second of CPU time while all ranks copy, or add two blocks, at one time.
  double rate(Communicator& comm, Stopwatch& watch, kernels::Backend& backend, kernels::Stream& stream) {
    const auto of = [&](int block) {
      return kernels::matrix(blocks_[block]->data(), DType::f32, 1, kElements);
    };
    const void* inputs[2] = {blocks_[0]->data(), blocks_[1]->data()};
    double best = 0;
    for (const bool adds : {false, true})
      for (int time = 0; time < 3; ++time) {
        const Time spent = watch.of(comm, [&] {
          if (adds)
            backend.run(stream, kernels::TreeSum{.inputs = inputs, .out = blocks_[2]->data(),
                                                 .dtype = DType::f32, .count = kElements});
          else
            backend.run(stream, kernels::Copy{.src = of(0), .dst = of(2)});
        });
        best = std::max(best, double(kElements) * 4 * (adds ? 3 : 2) * comm.size() / spent.cpu_s);
      }
    return best;
  }

 private:
  static constexpr int64_t kElements = 8 << 20;
  std::unique_ptr<kernels::Buffer> blocks_[3];
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Measured {
  std::vector<double> wall_s, cpu_s, rates;
};

void measure(Communicator& comm, const Model& model, const Setting& s, int repetitions, Stopwatch& watch,
             Measured& result) {
  const auto backend = kernels::make_cpu_backend(1);
  const auto stream = backend->create_stream();
  const auto alone = make_thread_world(1, 600);
  ShardedParams params(model.uses, model.grids, options_of(s, comm.size()), {comm, *alone[0], nullptr},
                       *backend, *stream);
  for (int use = 0; use < params.use_count(); ++use) {
    const kernels::Matrix g = params.gradient(use, 0);
    for (int64_t i = 0; i < g.count(); ++i) g.as<float>()[i] = float(i % 1001) * 0.001f;
  }
  Blocks blocks(*backend);
  for (int i = 0; i <= repetitions; ++i) {
    const double rate = blocks.rate(comm, watch, *backend, *stream);
    const Time spent = watch.of(comm, [&] { reduce(params); });
    if (comm.rank() != 0 || i == 0) continue;
    result.wall_s.push_back(spent.wall_s);
    result.cpu_s.push_back(spent.cpu_s);
    result.rates.push_back(rate);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const auto argument = [&](int i, int otherwise) { return count > i ? std::atoi(arguments[i]) : otherwise; };
  const int ranks = argument(1, 8), repetitions = argument(3, 3);
  const Model model(int64_t(argument(2, 100)) * 1000 * 1000);
  std::string rows;
  for (const Setting& s : {Setting{"halving", ExchangeChoice::halving, DType::f32, 32},
                           Setting{"halving", ExchangeChoice::halving, DType::f32, 128},
                           Setting{"direct", ExchangeChoice::direct, DType::f32, 32},
                           Setting{"halving", ExchangeChoice::halving, DType::bf16, 32}}) {
    Measured measured;
    Stopwatch watch(ranks);
    on_threads(ranks, [&](Communicator& comm) { measure(comm, model, s, repetitions, watch, measured); });
    const double wall_s = *std::min_element(measured.wall_s.begin(), measured.wall_s.end());
    const double cpu_s = median(measured.cpu_s), rate = median(measured.rates),
                 bytes = bytes_of(model, s, ranks);
    fmt::print(
        stderr,
        "reduction: {} M elements over {} ranks, {} in {}, buckets of {} MiB: {:.3f} s, {:.3f} s of CPU "
        "time; {:.1f} GB at {:.1f} GB/s would be {:.3f} s of it: {:.2f} of the limit\n",
        model.elements() / 1000000, ranks, s.name, name_of(s.dtype), s.bucket_mib, wall_s, cpu_s,
        bytes * 1e-9, rate * 1e-9, bytes / rate, bytes / rate / cpu_s);
    rows += fmt::format(
        R"({}{{"algorithm":"{}","dtype":"{}","bucket_mib":{},"seconds":{:.4f},"cpu_seconds":{:.4f},"bytes":{:.0f},)"
        R"("memory_gb_s":{:.2f},"of_limit":{:.3f}}})",
        rows.empty() ? "" : ",", s.name, name_of(s.dtype), s.bucket_mib, wall_s, cpu_s, bytes, rate * 1e-9,
        bytes / rate / cpu_s);
  }
  fmt::print("{{\"ranks\":{},\"elements\":{},\"rows\":[{}]}}\n", ranks, model.elements(), rows);
}
