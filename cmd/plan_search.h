// `plan --alternatives` and `plan --gpus`: the search for meshes and what is printed of it.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cmd/commands.h"
#include "runtime/plan/choice_costs.h"
#include "runtime/plan/price.h"

namespace trainctl::cmd {

struct SearchOptions {
  int alternatives = 0;  ///< 0: not given
  std::string gpus;      ///< a number, or "auto"; "": the job's ranks
  std::string price;     ///< named_price; "": none
  bool is_given() const { return alternatives > 0 || !gpus.empty(); }
};

/// What the search needs of the command.
struct SearchedJob {
  ParseInput input;
  JobSpec job;
  DeviceModel device;
  RanksOnNode ranks_on_node;
  std::function<std::string(const std::vector<std::string>&settings)> plan_command, launch_command;
};

/// The price of --price for this kind of device; nullopt: none is given.
std::optional<Price> price_of(const SearchOptions& options, const DeviceModel& device);
void add_search_options(CommandLine command, SearchOptions& options);
/// Error(kUsage) where a search does not know what it needs of the device.
void refuse_unsearchable(const DeviceUse& use, const DeviceModel& device);
/// The exit status.
int search_and_print(const SearchOptions& options, const SearchedJob& searched, const Context& context);

}  // namespace trainctl::cmd
