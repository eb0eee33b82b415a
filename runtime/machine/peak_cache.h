// The speed of this machine's matrix products, remembered between commands: a single measurement on busy
// cores is too low, and MFU and predicted times would change with it from run to run.
#pragma once
#include <functional>
#include <string>

#include "runtime/base/file_system.h"

namespace trainctl {

/// Where measurements are kept: $XDG_CACHE_HOME/trainctl/peaks.json, or the same below ~/.cache; "" where
/// neither is known.
std::string peak_cache_path();

/// FLOP/s under `key` (what the number depends on: processor, cores, libraries, threads, format): the best
/// of all measurements so far. Measures three times when nothing is remembered, and once in each of the
/// next three calls. A cache that is missing, damaged or cannot be written is no failure: then the best of
/// three is measured each time.
double remembered_peak(FileSystem& fs, const std::string& path, const std::string& key,
                       const std::function<double()>& measure);

/// Of the host: the processor's model and the number of cores.
std::string host_processor();

}  // namespace trainctl
