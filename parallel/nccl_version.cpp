#include <fmt/format.h>

#include "parallel/nccl_api.h"

namespace trainctl::parallel {

Problem nccl_version_problem(int version, const std::string& path) {
  // Up to version 2.8 the number was like 2809, since 2.9 like 20900; 2.18 and later versions are 21800 or
  // more.
  if (version >= 21800 && version < 30000) return Problem::none();
  const std::string text = version < 10000 ? fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100)
                                           : fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  return Problem(
      fmt::format("{} is NCCL {}; trainctl needs 2.18 or a later 2.x: install one, or name its folder in "
                  "TRAINCTL_CUDA_LIBRARIES",
                  path, text));
}

}  // namespace trainctl::parallel
