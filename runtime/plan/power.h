// Power: what a GPU draws with its share of a node and of the data center, and so the energy of a run. Pure.
#pragma once
#include <optional>
#include <string>

#include "runtime/base/json.h"
#include "runtime/plan/device_model.h"

namespace trainctl {

struct Power {
  std::string cluster;  ///< whose file has the numbers
  double board_w = 0, host_share = 0, pue = 1;
  double kwh_of_device_hour = 0;
};

/// nullopt: of CPUs, and where the cluster has no power of a board.
std::optional<Power> power_of(const DeviceModel& device);

/// "301 kWh", "31.4 MWh".
std::string energy_text(double kwh);
/// "at the limit of 700 W a board, 40 % more for hosts, PUE 1.2 (cluster h100)".
std::string power_text(const Power& power);
/// The energy of so many hours of one device, and from what it follows.
OrderedJson energy_json(const Power& power, double device_hours);

}  // namespace trainctl
