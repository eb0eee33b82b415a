#include "runtime/machine/pmix/pmix_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/machine/pmix/pmix_library.h"

namespace trainctl {
namespace {

std::string map_text(const std::vector<std::vector<int>>& ranks_of_host) {
  std::string text;
  for (const std::vector<int>& ranks : ranks_of_host)
    text += fmt::format("{}{}", text.empty() ? "" : ";", fmt::join(ranks, ","));
  return text;
}

/// Of the process with the local rank `i` on `host`.
std::unique_ptr<PmixInfos> process_infos(const PmixServer::Epoch& epoch, size_t host, size_t i) {
  const int rank = epoch.ranks_of_host[host][i];
  auto infos = std::make_unique<PmixInfos>();
  infos->add_rank(PMIX_RANK, rank);
  infos->add_rank(PMIX_GLOBAL_RANK, rank);
  infos->add_rank(PMIX_APP_RANK, rank);
  infos->add_uint32(PMIX_APPNUM, 0);
  infos->add_uint16(PMIX_LOCAL_RANK, uint16_t(i));
  infos->add_uint16(PMIX_NODE_RANK, uint16_t(i));
  infos->add_uint32(PMIX_NODEID, uint32_t(host));
  infos->add_text(PMIX_HOSTNAME, epoch.hosts[host]);
  return infos;
}

}  // namespace

std::shared_ptr<PmixInfos> job_infos(const PmixServer::Epoch& epoch, const std::string& name) {
  const PmixLibrary& pmix = pmix_library();
  const std::vector<int>& local = epoch.ranks_of_host[size_t(epoch.this_host)];
  uint32_t world_size = 0;
  for (const auto& ranks : epoch.ranks_of_host) world_size += uint32_t(ranks.size());
  auto infos = std::make_shared<PmixInfos>();
  for (const char* key : {PMIX_UNIV_SIZE, PMIX_JOB_SIZE, PMIX_APP_SIZE, PMIX_MAX_PROCS})
    infos->add_uint32(key, world_size);
  infos->add_uint32(PMIX_JOB_NUM_APPS, 1);
  infos->add_uint32(PMIX_LOCAL_SIZE, uint32_t(local.size()));
  infos->add_uint32(PMIX_NODE_SIZE, uint32_t(local.size()));
  infos->add_uint32(PMIX_NUM_NODES, uint32_t(epoch.hosts.size()));
  char* nodes = nullptr;
  char* processes = nullptr;
  if (pmix.generate_regex(fmt::format("{}", fmt::join(epoch.hosts, ",")).c_str(), &nodes) != PMIX_SUCCESS ||
      pmix.generate_ppn(map_text(epoch.ranks_of_host).c_str(), &processes) != PMIX_SUCCESS) {
    std::free(nodes);
    throw Error(ErrorCode::kLauncher, fmt::format("libpmix could not describe {} hosts", epoch.hosts.size()));
  }
  infos->add_map(PMIX_NODE_MAP, nodes, pmix.info_load);
  infos->add_map(PMIX_PROC_MAP, processes, pmix.info_load);
  infos->add_text(PMIX_LOCAL_PEERS, fmt::format("{}", fmt::join(local, ",")));
  infos->add_rank(PMIX_LOCALLDR, local.front());
  infos->add_text(PMIX_JOBID, name);
  infos->add_text(PMIX_MAPBY, "slot");
  infos->add_text(PMIX_RANKBY, "slot");
  infos->add_text(PMIX_BINDTO, "none");
  for (size_t host = 0; host < epoch.hosts.size(); ++host)
    for (size_t i = 0; i < epoch.ranks_of_host[host].size(); ++i)
      infos->add_array(PMIX_PROC_DATA, process_infos(epoch, host, i));
  return infos;
}

}  // namespace trainctl
