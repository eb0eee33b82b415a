// How the nodes of a run reach this machine, and which of their names mean it.
#pragma once
#include <string>

namespace trainctl {

/// The address of this machine on the way to `host`, without sending anything: "10.77.0.10".
/// Error(kPreflight) if the name does not resolve or no way leads there.
std::string own_address_towards(const std::string& host);
/// Whether `host` names this machine.
bool is_this_machine(const std::string& host);

}  // namespace trainctl
