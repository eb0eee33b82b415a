#include "runtime/run/agent/node_description.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/machine/bundle.h"
#include "runtime/machine/pmix/pmix_server.h"
#include "runtime/machine/rank_device.h"
#include "runtime/spec/parse.h"

namespace trainctl {
namespace {

/// Between two questions to a GPU's driver.
constexpr double kUsageIntervalS = 2.0;

}  // namespace

std::string host_name() {
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  return host;
}

NodeDescription::NodeDescription(const AgentOptions& options) : options_(options) {
  if (const char* topology = std::getenv("SLURM_TOPOLOGY_ADDR")) topology_ = topology;
  read_job();
  facts_ = node_facts(uses_gpus_);
  for (int gpu = 0; gpu < facts_.gpu_count(); ++gpu)
    gpus_.push_back(std::make_unique<GpuWatch>(kernels::open_gpu_readings(gpu), kUsageIntervalS));
  folders_problem_ = folders_problem({"/tmp", "/dev/shm", options.run_directory + "/logs"});
}

void NodeDescription::read_job() {
  try {
    const std::string path = options_.run_directory + "/job.json";
    const ParsedJob job = parse_job({.text = real_file_system().read_text(path),
                                     .file = path,
                                     .overrides = {},
                                     .environment = {},
                                     .is_of_run = true});
    if (!job.ok()) return;
    uses_gpus_ = job.job.device != DeviceChoice::cpu;
    numerics_ = machine_numerics(job.job, device_kind(job.job));
  } catch (const Error& error) {
    job_problem_ = Problem(error.what());
  }
}

wire::NodeHello NodeDescription::hello() const {
  const bool has_mpirun = !find_launcher(options_.mpirun, own_bundle(), find_program).empty();
  return {.name = options_.name,
          .host = host_name(),
          .version = wire::kProgramVersion,
          .topology = topology_,
          .pmix_problem = pmix_problem().text_or_empty(),
          .mpirun_problem = has_mpirun ? "" : fmt::format("{} is no program on this node", options_.mpirun),
          .run_problem = folders_problem_.is_none() ? "" : options_.name + " " + folders_problem_.text(),
          .numerics = numerics_,
          .pid = int(::getpid()),
          .facts = facts_};
}

NodeUsage NodeDescription::usage() const {
  NodeUsage now{.memory_used_bytes = memory_used_here()};
  for (const auto& gpu : gpus_)
    if (const auto celsius = gpu->last().temperature_c)
      now.hottest_c = std::max(now.hottest_c.value_or(*celsius), *celsius);
  return now;
}

}  // namespace trainctl
