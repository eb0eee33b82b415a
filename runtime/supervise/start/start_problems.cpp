#include "runtime/supervise/start/start_problems.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>

#include "ckpt/s3_client.h"
#include "data/dataset.h"
#include "kernels/device.h"
#include "runtime/base/error.h"
#include "runtime/base/paths.h"
#include "runtime/base/scratch_file.h"
#include "runtime/machine/process.h"
#include "runtime/supervise/nodes/run_nodes.h"
#include "runtime/supervise/preflight/preflight.h"
#include "runtime/train/evaluation.h"
#include "runtime/train/run_tasks.h"
#include "runtime/train/trainer.h"

namespace trainctl {
namespace {

/// Without making it: the nearest folder above that is there has to take new names. `field`: of the job.
void check_folder(FileSystem& fs, const std::string& path, const char* field) {
  std::filesystem::path nearest = absolute_path(path);
  while (!fs.exists(nearest.string()) && nearest != nearest.root_path()) nearest = nearest.parent_path();
  const std::string there = nearest.string();
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kPreflight,
                fmt::format("{} cannot be made or written to: {} {}; choose another folder with -s {}=DIR",
                            path, there, why, field));
  };
  if (!fs.is_directory(there)) refuse("is no folder");
  if (::access(there.c_str(), W_OK | X_OK) != 0)
    refuse(fmt::format("gives no right to it ({})", std::strerror(errno)));
}

bool is_one_machine(const JobSpec& job, FileSystem& fs) {
  try {
    return nodes_of(job, fs).one_machine;
  } catch (const Error&) {
    return false;  // reported by itself
  }
}

}  // namespace

std::vector<StartProblem> start_problems(const ParsedJob& parsed, FileSystem& fs, StartsAt place,
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
      if (!kernels::has_cuda()) throw Error(ErrorCode::kPreflight, kernels::cuda_status().problem);
    });
  const auto open = [&](bool validation) {
    return data::open_dataset(dataset_options(job.data, job.model.vocab_size, validation));
  };
  look("data.train", "E0510", [&] { open(false); });
  if (!job.data.val.empty())
    look("data.val", "E0510", [&] {
      const auto validation = open(true);
      if (job.eval.every_steps > 0) Evaluation(job).check(*validation);
    });
  if (!job.eval.tasks.empty()) look("eval.tasks", "E0510", [&] { RunTasks::check(job, fs); });
  if (place == StartsAt::elsewhere) return found;
  if (job.optimizer.offload == StateOffload::disk && job.launcher.hosts.empty() &&
      job.launcher.hostfile.empty())
    look("optimizer.offload_directory", "E0326", [&] {
      const std::string& folder = job.optimizer.offload_directory;
      require_scratch_folder(
          {.directory = folder.empty() ? "/tmp" : folder, .field = "optimizer.offload_directory"});
    });
  const std::pair<const char*, std::string> folders[] = {{"observability.run_dir", job.observability.run_dir},
                                                         {"checkpoint.dir", job.checkpoint.dir}};
  for (const auto& [field, path] : folders)
    if (!path.empty())
      look(field, "E0607", [&, field = field, &path = path] { check_folder(fs, path, field); });
  look("launcher.mpirun", "E0708", [&] { find_mpirun(job.launcher.mpirun); });
  if (const auto& command = job.observability.alerts.command; !command.empty())
    look("observability.alerts.command", "E0712", [&] {
      if (find_program(command.front()).empty())
        throw Error(ErrorCode::kPreflight,
                    fmt::format("{} is no program that is found on this machine, so no alert would be sent; "
                                "install it, or give its full path",
                                command.front()));
    });
  if (place == StartsAt::here && found.empty() && is_one_machine(job, fs))
    look("model", "E0402", [&] {
      Preflight preflight;
      check_room(job, std::nullopt, 0, preflight);
    });
  return found;
}

}  // namespace trainctl
