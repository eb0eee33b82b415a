#include <cstdio>

#include "kernels/backend.h"

namespace trainctl::kernels {

Range::Range(Backend& backend, const char* what, int64_t micro_batch, int chunk) : backend_(backend) {
  char name[64];
  std::snprintf(name, sizeof name, "%s mb %lld chunk %d", what, static_cast<long long>(micro_batch), chunk);
  backend_.begin_range(name);
}

}  // namespace trainctl::kernels
