// Which NVIDIA driver a program needs that was built with some CUDA toolkit.
#pragma once
#include <string>

#include "runtime/base/problem.h"

namespace trainctl::kernels {

/// The oldest driver: the CUDA version that it serves (1000 * major + 10 * minor) and its branch.
struct DriverFloor {
  int cuda = 0, branch = 0;
};
/// Of a program with the CUDA runtime `runtime_version`. Source: CUDA Compatibility guide, "Minor Version Compatibility", table 1: drivers of
/// the runtime's major version or a later one; and our kernels' arguments of more than 4 KiB, which need CUDA 12.1 and driver 530.
DriverFloor driver_floor(int runtime_version);

/// It in words: "driver 580 or later".
std::string driver_floor_text(int runtime_version);

/// None where a driver that serves CUDA `driver_version` is new enough; else one sentence. `driver`: its own
/// version ("535.104.05"), or "".
Problem driver_problem(int driver_version, const std::string& driver, int runtime_version);

}  // namespace trainctl::kernels
