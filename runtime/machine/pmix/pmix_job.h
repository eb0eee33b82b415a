// The values that libpmix needs for an epoch before its ranks start. The ranks query them.
//
// Only runtime/machine/pmix/pmix_*.cpp include this header, because it includes the header of PMIx.
#pragma once
#include <memory>
#include <string>

#include "runtime/machine/pmix/pmix_infos.h"
#include "runtime/machine/pmix/pmix_server.h"

namespace trainctl {

/// The values of a valid epoch, whose ranks are in ascending order on each host. `name`: the epoch's name in
/// libpmix. The libpmix server must have been started. Error(kLauncher).
std::shared_ptr<PmixInfos> job_infos(const PmixServer::Epoch& epoch, const std::string& name);

}  // namespace trainctl
