// What the kernel's log says of GPUs: the NVIDIA driver reports each error of a GPU there, by a number (XID).
#pragma once
#include <map>
#include <string>

#include "kernels/device.h"

namespace trainctl {

/// The last XID of each GPU in a text of the kernel's log, by PCI bus id ("0000:1b:00"). Those that a
/// program causes (13, 31, 43, 45) are left out. Pure. Source: NVIDIA, "XID Errors".
std::map<std::string, long long> xids_in(const std::string& log);
/// The kernel's log as far as this user may read it; "" if not at all. Does not wait.
std::string kernel_log();
/// gpu_facts(index), with last_xid where the log can be read.
kernels::GpuFacts gpu_facts_with_log(int index);

}  // namespace trainctl
