#include <cstdio>

#include "kernels/backend.h"

namespace trainctl::kernels {

Range::Range(Backend& backend, const char* what, int64_t micro_batch, int virtual_stage)
    : backend_(backend) {
  char name[64];
  std::snprintf(name, sizeof name, "%s mb %lld virtual stage %d", what, static_cast<long long>(micro_batch),
                virtual_stage);
  backend_.begin_range(name);
}

}  // namespace trainctl::kernels
