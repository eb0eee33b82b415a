#include "kernels/driver_floor.h"

#include <fmt/format.h>

namespace trainctl::kernels {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

DriverFloor driver_floor(int runtime_version) {
  if (runtime_version < 13000) return {12010, 530};
  if (runtime_version < 14000) return {13000, 580};
  // A later major version than the guide's table had when this was written: as of each so far, its own first driver.
  return {runtime_version / 1000 * 1000, 0};
}

std::string driver_floor_text(int runtime_version) {
  const DriverFloor floor = driver_floor(runtime_version);
  return floor.branch > 0 ? fmt::format("driver {} or later", floor.branch)
                          : fmt::format("a driver for CUDA {} or later", version_text(floor.cuda));
}

Problem driver_problem(int driver_version, const std::string& driver, int runtime_version) {
  const DriverFloor floor = driver_floor(runtime_version);
  if (driver_version >= floor.cuda) return Problem::none();
  std::string text = fmt::format("the NVIDIA driver here{} serves CUDA {}, and this trainctl, built with CUDA {}, needs {}: update "
                                 "the driver",
                                 driver.empty() ? "" : " is " + driver + ", which", version_text(driver_version),
                                 version_text(runtime_version), driver_floor_text(runtime_version));
  const DriverFloor older = driver_floor(12000);
  if (runtime_version >= 13000 && driver_version >= older.cuda)
    text += fmt::format(", or take a trainctl that was built with CUDA 12.8 or 12.9, for which driver {} is enough", older.branch);
  return Problem(text);
}

}  // namespace trainctl::kernels
