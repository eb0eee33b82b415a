// What libpmix has to know of an epoch before its ranks start; the ranks ask it for these values.
//
// Only runtime/machine/pmix_*.cpp include this: it needs the header of PMIx.
#pragma once
#include <memory>
#include <string>

#include "runtime/machine/pmix/pmix_infos.h"
#include "runtime/machine/pmix/pmix_server.h"

namespace trainctl {

/// Of an epoch without a problem, whose ranks are in order on each host. `name`: of the epoch in libpmix,
/// whose server must have been started. Error(kLauncher).
std::shared_ptr<PmixInfos> job_infos(const PmixServer::Epoch& epoch, const std::string& name);

}  // namespace trainctl
