// The oldest NVIDIA driver for a program that was built with a given CUDA toolkit.
#pragma once
#include <string>

#include "runtime/base/problem.h"

namespace trainctl::kernels {

/// A driver: the CUDA version that it supports (1000 * major + 10 * minor) and its branch, for example 580.
struct DriverFloor {
  int cuda = 0, branch = 0;
};
/// The oldest driver for a program with the CUDA runtime `runtime_version`: a driver of the runtime's major
/// version or later, and at least CUDA 12.1 and driver 530, because our kernels have arguments of more than
/// 4 KiB. Source: CUDA Compatibility guide, "Minor Version Compatibility", table 1.
DriverFloor driver_floor(int runtime_version);

/// driver_floor as text: "driver 580 or later".
std::string driver_floor_text(int runtime_version);

/// None if a driver that supports CUDA `driver_version` is new enough; otherwise why not, one sentence.
/// `driver`: the driver's own version ("535.104.05"), or "".
Problem driver_problem(int driver_version, const std::string& driver, int runtime_version);

}  // namespace trainctl::kernels
