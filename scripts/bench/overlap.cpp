// Measures how much of the data-parallel communication is hidden behind forward and backward passes: ranks on
// threads whose dp groups go over modelled links (test/support/modelled_links.h). Prints one JSON object.
//
//   bench_overlap [RANKS [REPETITIONS [BUCKET_MIB [LANES_PER_RANK [HIDDEN]]]]]
//
//   HIDDEN              the model's hidden size, 256; chunks grow with its matrices, buckets do not
//   transfer_over_step  seconds that a rank's messages of a step take one after another, over the step without
//                       any: it sets the speed of the links
//   exposed             the share of those seconds by which they make the step longer
//   waited              the share of them that a rank waits: exposed, without what the steps' work differs by
//
// Not all can be hidden: with ZeRO-1, gradients travel during the backward pass of the last micro-batch alone,
// and the last bucket of a step has nothing to hide behind. Time is each rank's CPU time and its waits for
// messages, so that other programs and too few cores do not count. The runs with and without links take turns;
// every figure is of medians over steps and repetitions. Losses must be the same in all.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "runtime/base/error.h"
#include "test/support/modelled_links.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr int kSteps = 8, kFirst = 3;  // kFirst: the first that counts
constexpr double kLatency_s = 20e-6;

struct Setting {
  int ranks = 4, lanes = 2;
  double bucket_mib = 1;
  int hidden = 256;
  int zero = 1;
};

double median(std::vector<double> values) {
  ENSURE(!values.empty());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A layer's gradients are three buckets of the default size, at the default hidden size.
JobSpec job_of(const Setting& s, const std::string& folder) {
  JobSpec job = tiny_job(Family::gpt2, folder);
  job.model.hidden_size = s.hidden;
  job.model.num_layers = 8;
  job.model.ffn_size = 4 * s.hidden;
  job.model.max_seq_len = job.data.seq_len = 64;
  job.batch = {.global_sequences = 2 * s.ranks * s.lanes, .micro_sequences = 2};
  job.schedule.total_steps = kSteps;
  job.checkpoint.chunk_mib = 0.125 * (s.hidden / 256.0) * (s.hidden / 256.0);
  job.checkpoint.on_exit = false;
  job.parallelism.data = s.ranks;
  job.parallelism.lanes = s.ranks * s.lanes;
  job.parallelism.zero_stage = s.zero;
  job.parallelism.bucket_mib = s.bucket_mib;
  job.parallelism.threads_per_rank = 1;
  return job;
}

/// Of rank 0, for each step that counts.
struct Steps {
  std::vector<double> step_s, waited_s, transfer_s, bytes, exchanges;
  std::vector<double> losses;  // of all steps of one run
  void add(const Steps& other) {
    if (losses.empty()) losses = other.losses;
    ENSURE(losses == other.losses, "two runs have different losses");
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(step_s, other.step_s), append(waited_s, other.waited_s), append(transfer_s, other.transfer_s);
    append(bytes, other.bytes), append(exchanges, other.exchanges);
  }
};

Steps run(const Setting& s, LinkSpeed speed, const std::string& folder) {
  ModelledNetwork network(s.ranks, speed);
  std::vector<std::unique_ptr<RankClock>> clocks(static_cast<size_t>(s.ranks));
  Steps steps;
  int reports = 0;
  double last_s = 0;
  LinkUse last;
  ThreadRunOptions options;
  options.dir = folder;
  options.make_world = [&](std::unique_ptr<parallel::Communicator> real, kernels::Backend&) {
    std::unique_ptr<RankClock>& clock = clocks[size_t(real->rank())];
    clock = std::make_unique<RankClock>();
    return make_linked_communicator(std::move(real), network, *clock,
                                    [](const std::string& group) { return group.starts_with("dp group"); });
  };
  options.on_report = [&] {
    const double now_s = clocks[0]->monotonic_s();
    const LinkUse use = network.use(0);
    if (++reports >= kFirst) {
      steps.step_s.push_back(now_s - last_s);
      steps.waited_s.push_back(use.waited_s - last.waited_s);
      steps.transfer_s.push_back(use.transfer_s - last.transfer_s);
      steps.bytes.push_back(double(use.bytes - last.bytes));
      steps.exchanges.push_back(double(use.exchanges - last.exchanges));
    }
    last_s = now_s;
    last = use;
  };
  steps.losses = run_on_threads(job_of(s, folder), options).losses;
  return steps;
}

std::string measure(const Setting& s, int repetitions, const std::string& folder) {
  const std::vector<double> shares = {0.25, 0.75};
  Steps plain;
  std::vector<Steps> linked(shares.size());
  std::vector<LinkSpeed> speeds;
  for (int i = 0; i < repetitions; ++i) {
    plain.add(run(s, {}, folder));
    for (size_t k = 0; k < shares.size(); ++k) {
      if (speeds.size() == k) {
        const double limit_s = shares[k] * median(plain.step_s) - kLatency_s * median(plain.exchanges);
        ENSURE(limit_s > 0, "the latency alone takes {} of a step", shares[k]);
        speeds.push_back({kLatency_s, median(plain.bytes) / limit_s});
      }
      linked[k].add(run(s, speeds[k], folder));
    }
  }
  for (const Steps& steps : linked) ENSURE(steps.losses == plain.losses, "links change the losses");
  std::string rows;
  const double plain_s = median(plain.step_s);
  for (size_t k = 0; k < shares.size(); ++k) {
    const double transfer_s = median(linked[k].transfer_s);
    const double exposed = (median(linked[k].step_s) - plain_s) / transfer_s;
    const double waited = (median(linked[k].waited_s) - median(plain.waited_s)) / transfer_s;
    fmt::print(
        stderr,
        "overlap: ZeRO-{}, transfer {:.2f} of a step of {:.3f} s ({:.1f} MB, {:.0f} exchanges): exposed "
        "{:.3f}, waited {:.3f}\n",
        s.zero, transfer_s / plain_s, plain_s, median(linked[k].bytes) * 1e-6, median(linked[k].exchanges),
        exposed, waited);
    rows += fmt::format(
        R"({}{{"zero":{},"transfer_over_step":{:.3f},"exposed":{:.3f},"waited":{:.3f},"step_over_plain":{:.3f}}})",
        rows.empty() ? "" : ",", s.zero, transfer_s / plain_s, exposed, waited,
        median(linked[k].step_s) / plain_s);
  }
  return rows;
}

}  // namespace

int main(int count, char** arguments) {
  const auto argument = [&](int i, double otherwise) {
    return count > i ? std::atof(arguments[i]) : otherwise;
  };
  Setting s;
  s.ranks = int(argument(1, s.ranks));
  const int repetitions = int(argument(2, 3));
  s.bucket_mib = argument(3, s.bucket_mib);
  s.lanes = int(argument(4, s.lanes));
  s.hidden = int(argument(5, s.hidden));
  const TemporaryFolder folder("overlap");
  std::string rows;
  for (const int zero : {1, 2, 3}) {
    s.zero = zero;
    rows += (rows.empty() ? "" : ",") + measure(s, repetitions, folder.path());
  }
  fmt::print(R"({{"ranks":{},"lanes_per_rank":{},"bucket_mib":{},"rows":[{}]}})"
             "\n",
             s.ranks, s.lanes, s.bucket_mib, rows);
}
