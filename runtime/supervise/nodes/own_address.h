// The address at which the nodes of a run reach this machine, and the names of this machine.
#pragma once
#include <string>

namespace trainctl {

/// The address of this machine on the route to `host`: "10.77.0.10". Sends no packet to `host`.
/// Error(kPreflight) if the name does not resolve or there is no route.
std::string own_address_towards(const std::string& host);
/// Whether `host` names this machine.
bool is_this_machine(const std::string& host);

/// The IPv4 address to which the name leads; "": it does not resolve.
std::string address_of(const std::string& host);

}  // namespace trainctl
