#include "cmd/doctor_measure.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/paths.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/machine/bundle.h"
#include "runtime/machine/mpirun.h"
#include "runtime/observe/doctor.h"
#include "runtime/observe/link_report.h"
#include "runtime/plan/measure_device.h"
#include "runtime/predict/collective_time.h"

namespace trainctl::cmd {
namespace {

/// More than two ranks need for an exchange of each size.
constexpr double kExchangeLimitS = 60;

/// What two ranks of this machine print of their exchanges.
std::string exchange_lines(const std::string& mpirun) {
  const std::string folder =
      fmt::format("{}/trainctl-measure-{}", std::filesystem::temp_directory_path().string(), ::getpid());
  std::filesystem::create_directories(folder);
  const LaunchLine line = mpirun_line({.env = {},
                                       .hosts = {},
                                       .network = "",
                                       .world_size = 2,
                                       .mpirun = mpirun,
                                       .program = own_program(),
                                       .run_directory = "--exchange",
                                       .session_folder = folder,
                                       .shared_memory_folder = folder,
                                       .bundle = own_bundle(),
                                       .homeless = !std::getenv("HOME"),
                                       .root = ::geteuid() == 0});
  std::string text;
  {
    ChildProcess child(line.argv, line.environment);
    const double end_s = real_clock().monotonic_s() + kExchangeLimitS;
    while (!child.reap() && real_clock().monotonic_s() < end_s) {
      pollfd fds[] = {{.fd = child.output_fd(), .events = POLLIN, .revents = 0},
                      {.fd = child.exit_fd(), .events = POLLIN, .revents = 0}};
      ::poll(fds, 2, 100);
      text += child.read_output();
    }
    text += child.read_output();
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return text;
}

std::string today() { return utc_text(real_clock().unix_s()).substr(0, 10); }

/// Replaces the link of a node by the measured one. False: two ranks could not be started, or did not end.
bool measure_link(predict::ClusterModel& cluster, const std::function<void(const std::string&)>& say) {
  const std::string mpirun = find_launcher("mpirun", own_bundle(), find_program);
  if (mpirun.empty()) return false;
  say("exchanges between two ranks");
  const std::string text = exchange_lines(mpirun);
  const std::vector<predict::TimedExchange> exchanges = predict::timed_exchanges(text);
  const std::optional<predict::LinkSpeed> link = predict::fit_link(exchanges);
  if (!link) return false;
  cluster.node = *link;
  cluster.node_source =
      fmt::format("exchanges of 1 KiB to 4 MiB between two processes through MPI, measured here {}", today());
  return true;
}

OrderedJson result_json(const predict::ClusterModel& cluster, const FitErrors& errors,
                        const std::string& file) {
  return {{"file", file},
          {"cluster", cluster.name},
          {"peak_f32_flops_per_s", cluster.device.peak_f32_flops_per_s},
          {"peak_bf16_flops_per_s", cluster.device.peak_bf16_flops_per_s},
          {"link_bytes_per_s", cluster.node.bytes_per_s},
          {"link_latency_s", cluster.node.latency_s},
          {"error_of_steps", errors.total},
          {"error_of_ops", errors.of_op}};
}

}  // namespace

int measure_machine(const MeasureOptions& options, const Context& context) {
  if (options.out.empty()) throw Error(ErrorCode::kUsage, "--measure needs a file to write: -o cluster.json");
  const std::filesystem::path folder = std::filesystem::path(absolute_path(options.out)).parent_path();
  if (!std::filesystem::is_directory(folder))
    throw Error(ErrorCode::kUsage, fmt::format("there is no folder {}; make it first", folder.string()));
  const double began_s = real_clock().monotonic_s();
  const auto say = [&](const std::string& what) {
    if (!context.quiet())
      fmt::print(stderr, "{:5.1f} s  measuring {}\n", real_clock().monotonic_s() - began_s, what);
  };
  if (gather_doctor_facts().cuda.status.devices > 0)
    fmt::print(stderr,
               "note: this measures the CPU; for the GPUs of this machine begin with their known cluster and "
               "correct it by a run: trainctl plan --against RUN -o FILE\n");
  predict::ClusterModel cluster = predict::known_cluster("cpu-core");
  const MeasuredDevice measured =
      measure_cpu(cluster.device, {.threads = options.threads, .quick = options.quick, .say = say});
  const FitErrors& errors = measured.errors;
  cluster.device = measured.speed;
  const int cores = int(std::max(1u, std::thread::hardware_concurrency()));
  cluster.name =
      fmt::format("cpu-{}", options.threads == 1 ? "rank" : fmt::format("{}-threads", options.threads));
  cluster.devices_of_node = std::max(1, cores / options.threads);
  cluster.device_source = fmt::format(
      "every op of the steps of {}, in f32 and bf16, a rank of {}, measured here {}; the predicted time of "
      "an op "
      "is off by {:.0f} % on the mean",
      options.quick ? "one small model" : "four small models", count_of(options.threads, "thread"), today(),
      100 * errors.of_op);
  if (!measure_link(cluster, say))
    fmt::print(stderr, "warning: two ranks could not exchange anything; the file keeps {}\n",
               cluster.node_source);
  // Whatever the file of one core says of another machine is not known here.
  cluster.fabric.bytes_per_s = std::min(cluster.fabric.bytes_per_s, cluster.node.bytes_per_s);
  real_file_system().replace_text(options.out, predict::cluster_text(cluster));
  predict::parse_cluster(real_file_system().read_text(options.out), options.out);
  if (context.json) {
    print_json("measured", result_json(cluster, errors, options.out));
    return kExitDone;
  }
  const predict::DeviceSpeed& d = cluster.device;
  fmt::print(
      "products   {:.0f} GFLOP/s in f32, {:.0f} in bf16, of a rank of {}; of these {:.0f} % in large ones\n",
      d.peak_f32_flops_per_s / 1e9, d.peak_bf16_flops_per_s / 1e9, count_of(options.threads, "thread"),
      100 * d.product_share);
  fmt::print("messages   {}, {:.0f} us\n", rate_text(cluster.node.bytes_per_s), cluster.node.latency_s * 1e6);
  fmt::print("fit        {:+.1f} % of the measured steps' ops, {:.0f} % of a single op\n", 100 * errors.total,
             100 * errors.of_op);
  fmt::print("next: trainctl plan JOB --cluster {}\n", options.out);
  return kExitDone;
}

}  // namespace trainctl::cmd
