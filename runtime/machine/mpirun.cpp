#include "runtime/machine/mpirun.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/text.h"
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

}  // namespace

namespace {

/// What every rank needs, however it is started.
void set_common(Environment& e, const LaunchInput& in) {
  if (in.root) {
    set(e, "OMPI_ALLOW_RUN_AS_ROOT", "1");
    set(e, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  set(e, "OMPI_MCA_mpi_yield_when_idle", "1");  // waiting ranks share cores with working ones
  set(e, "OMPI_MCA_pml", "ob1");                // named, because looking for others takes a second
  // One machine: shared memory alone, which also starts twice as fast as looking for networks.
  set(e, "OMPI_MCA_btl", in.hosts.size() > 1 ? "self,vader,tcp" : "self,vader");
  if (in.hosts.size() > 1 && !in.network.empty()) {
    // A docker0 or an interface that leads nowhere makes the first exchange hang: both need the right
    // network.
    set(e, "OMPI_MCA_btl_tcp_if_include", in.network);
    set(e, "OMPI_MCA_oob_tcp_if_include", in.network);
  }
  set(e, "OMPI_MCA_btl_vader_single_copy_mechanism", in.cross_memory_attach ? "cma" : "none");
  set(e, "OMPI_MCA_orte_tmpdir_base", in.session_folder);
  set(e, "TMPDIR", in.session_folder);
  set(e, "OMPI_MCA_btl_vader_backing_directory", in.shared_memory_folder);
  set(e, "OMP_NUM_THREADS", "1");  // a backend's own threads are given by parallelism.threads_per_rank
  set(e, "OMP_WAIT_POLICY", "passive");
  if (const int kib = in.nccl_buffer_kib; kib != NcclSpec{}.buffer_kib)
    set(e, "NCCL_BUFFSIZE", fmt::format("{}", kib * 1024));
  // A user without a name (a container started with --user) has no home to look up, either, and PMIx crashes.
  if (in.homeless) set(e, "HOME", in.session_folder);
}

}  // namespace

LaunchLine rank_line(const LaunchInput& in) {
  LaunchLine line{.argv = {in.program, "rank", in.run_directory}};
  if (!in.bundle.empty()) line.environment = bundle_environment(in.bundle);
  set_common(line.environment, in);
  for (const auto& [name, value] : in.env) set(line.environment, name, value);
  return line;
}

LaunchLine mpirun_line(const LaunchInput& in) {
  LaunchLine line;
  line.argv = {in.mpirun, "-n", fmt::format("{}", in.world_size)};
  Environment& e = line.environment;
  if (is_of_bundle(in.mpirun, in.bundle)) e = bundle_environment(in.bundle);
  set_common(e, in);
  set(e, "OMPI_MCA_rmaps_base_oversubscribe", "1");
  set(e, "OMPI_MCA_hwloc_base_binding_policy", "none");
  set(e, "OMPI_MCA_ras", "^slurm,gridengine");  // hosts come from here, never from a scheduler's variables
  set(e, "OMPI_MCA_odls_base_num_threads",
      "0");  // else 32 or more local ranks that exit at once can deadlock mpirun
  set(e, "OMPI_MCA_odls_base_sigkill_timeout", "0");
  if (in.hosts.size() < 2) {
    set(e, "OMPI_MCA_plm", "^rsh,slurm");  // which end mpirun where there is no ssh, even if none is needed
  } else {
    std::string hosts;
    for (const LaunchHost& host : in.hosts)
      hosts += fmt::format("{}{}:{}", hosts.empty() ? "" : ",", host.name, host.ranks);
    line.argv.insert(line.argv.end(), {"--host", hosts});
    set(e, "OMPI_MCA_plm", "rsh");
    set(e, "OMPI_MCA_plm_rsh_agent", in.program + " remote");
    // A tree of daemons hangs beyond 64 nodes; fewer at a time than there are nodes waits without end.
    set(e, "OMPI_MCA_plm_rsh_no_tree_spawn", "1");
    set(e, "OMPI_MCA_plm_rsh_num_concurrent", fmt::format("{}", in.hosts.size()));
    set(e, "OMPI_MCA_orte_leave_session_attached", "1");
  }
  line.argv.insert(line.argv.end(), {in.program, "rank", in.run_directory});
  for (const auto& [name, value] : in.env) set(e, name, value);
  return line;
}

std::string shell_text(const LaunchLine& line) {
  std::string text;
  for (const auto& [name, value] : line.environment) text += name + "=" + shell_quoted(value) + " ";
  for (const std::string& argument : line.argv) text += shell_quoted(argument) + " ";
  text.pop_back();
  return text;
}

}  // namespace trainctl
