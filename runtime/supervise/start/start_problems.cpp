#include "runtime/supervise/start/start_problems.h"

#include <fmt/format.h>

#include <functional>

#include "ckpt/s3_client.h"
#include "kernels/device.h"
#include "runtime/base/error.h"
#include "runtime/supervise/nodes/run_nodes.h"

namespace trainctl {

std::vector<StartProblem> start_problems(const ParsedJob& parsed, FileSystem& fs,
                                         const ckpt::Environment& environment) {
  const JobSpec& job = parsed.job;
  std::vector<StartProblem> found;
  const auto look = [&](const char* field, const char* code, const std::function<void()>& check) {
    try {
      check();
    } catch (const Error& error) {
      found.push_back({diagnostic_at(parsed, field, code, error.what()), error.code()});
    }
  };
  if (!job.launcher.hosts.empty() || !job.launcher.hostfile.empty())
    look(job.launcher.hosts.empty() ? "launcher.hostfile" : "launcher.hosts", "E0706",
         [&] { nodes_of(job, fs); });
  if (ckpt::is_object_place(job.checkpoint.store))
    look("checkpoint.store", "E0606", [&] {
      try {
        ckpt::s3_credentials(fs, environment);
      } catch (const Error& error) {
        throw Error(ErrorCode::kPreflight,
                    fmt::format("{}; or go on without copies: -s checkpoint.store=", error.what()));
      }
    });
  if (job.device == DeviceChoice::cuda)
    look("device", "E0707", [] {
      if (const kernels::CudaStatus status = kernels::cuda_status(); !status.built)
        throw Error(ErrorCode::kPreflight, status.problem);
    });
  return found;
}

}  // namespace trainctl
