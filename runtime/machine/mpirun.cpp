#include "runtime/machine/mpirun.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/machine/bundle.h"

namespace trainctl {
namespace {

void set(Environment& environment, const std::string& name, const std::string& value) {
  const auto it =
      std::find_if(environment.begin(), environment.end(), [&](const auto& e) { return e.first == name; });
  if (it == environment.end()) {
    environment.emplace_back(name, value);
  } else {
    it->second = value;
  }
}

std::string quoted(const std::string& text) {
  const bool plain =
      !text.empty() &&
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%^") ==
          std::string::npos;
  if (plain) return text;
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

}  // namespace

LaunchLine launch_line(const LaunchInput& in) {
  LaunchLine line;
  line.argv = {in.mpirun,  "-n",   fmt::format("{}", in.job->mesh().world_size()),
               in.program, "rank", in.run_directory};
  Environment& e = line.environment;
  if (is_of_bundle(in.mpirun, in.bundle)) e = bundle_environment(in.bundle);
  if (in.root) {
    set(e, "OMPI_ALLOW_RUN_AS_ROOT", "1");
    set(e, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  set(e, "OMPI_MCA_rmaps_base_oversubscribe", "1");
  set(e, "OMPI_MCA_hwloc_base_binding_policy", "none");
  set(e, "OMPI_MCA_mpi_yield_when_idle", "1");  // waiting ranks share cores with working ones
  // One machine: shared memory alone, which also starts twice as fast as looking for networks.
  set(e, "OMPI_MCA_plm", "^rsh");  // which ends mpirun where there is no ssh, even if none is needed
  set(e, "OMPI_MCA_pml", "ob1");
  set(e, "OMPI_MCA_btl", "self,vader");
  set(e, "OMPI_MCA_btl_vader_single_copy_mechanism", in.cross_memory_attach ? "cma" : "none");
  set(e, "OMPI_MCA_odls_base_num_threads",
      "0");  // else 32 or more local ranks that exit at once can deadlock mpirun
  set(e, "OMPI_MCA_odls_base_sigkill_timeout", "0");
  set(e, "OMPI_MCA_orte_tmpdir_base", in.session_folder);
  set(e, "TMPDIR", in.session_folder);
  set(e, "OMPI_MCA_btl_vader_backing_directory", in.shared_memory_folder);
  set(e, "OMP_NUM_THREADS", "1");  // a backend's own threads are given by parallelism.threads_per_rank
  set(e, "OMP_WAIT_POLICY", "passive");
  // A user without a name (a container started with --user) has no home to look up, either, and PMIx crashes.
  if (in.homeless) set(e, "HOME", in.session_folder);
  for (const auto& [name, value] : in.job->launcher.env) set(e, name, value);
  return line;
}

std::string shell_text(const LaunchLine& line) {
  std::string text;
  for (const auto& [name, value] : line.environment) text += name + "=" + quoted(value) + " ";
  for (const std::string& argument : line.argv) text += quoted(argument) + " ";
  text.pop_back();
  return text;
}

}  // namespace trainctl
