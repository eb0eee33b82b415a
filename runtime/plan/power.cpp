#include "runtime/plan/power.h"

#include <fmt/format.h>

#include <utility>

namespace trainctl {

std::optional<Power> power_of(const DeviceModel& device) {
  if (device.is_host() || !device.cluster || device.cluster->device.board_w <= 0) return std::nullopt;
  const predict::ClusterModel& c = *device.cluster;
  return Power{c.name, c.device.board_w, c.host_share, c.pue, predict::energy_kwh(c, 1)};
}

std::string energy_text(double kwh) {
  const auto [value, unit] = kwh < 1e4   ? std::pair(kwh, "kWh")
                             : kwh < 1e7 ? std::pair(kwh / 1e3, "MWh")
                                         : std::pair(kwh / 1e6, "GWh");
  return value < 100 ? fmt::format("{:.3g} {}", value, unit) : fmt::format("{:.0f} {}", value, unit);
}

std::string power_text(const Power& power) {
  return fmt::format("at the limit of {:g} W a board, {:.0f} % more for hosts, PUE {:g} (cluster {})",
                     power.board_w, 100 * power.host_share, power.pue, power.cluster);
}

OrderedJson energy_json(const Power& power, double device_hours) {
  return {{"kwh", device_hours * power.kwh_of_device_hour},
          {"board_w", power.board_w},
          {"host_share", power.host_share},
          {"pue", power.pue}};
}

}  // namespace trainctl
