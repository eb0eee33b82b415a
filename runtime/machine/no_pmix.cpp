// The absent twin: this build has seen no header of PMIx.
#include "runtime/base/error.h"
#include "runtime/machine/pmix_server.h"

namespace trainctl {
namespace {

constexpr const char* kAbsent =
    "this trainctl was built without PMIx (pmix_server.h was not found); use launcher.start mpirun, or build "
    "with libpmix-dev";

[[noreturn]] void absent() { throw Error(ErrorCode::kLauncher, kAbsent); }

}  // namespace

struct PmixServer::State {};

std::string pmix_problem() { return kAbsent; }
PmixServer::PmixServer(Options) { absent(); }
PmixServer::~PmixServer() = default;
void PmixServer::begin(const Epoch&) { absent(); }
Environment PmixServer::environment_of(int) { absent(); }
void PmixServer::finish_fence(uint64_t, std::string) {}
void PmixServer::end() {}

}  // namespace trainctl
