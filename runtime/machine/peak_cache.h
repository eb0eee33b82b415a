// Keeps the measured speed of this machine's matrix products between commands. A single measurement on busy
// cores is too low, and MFU and predicted times would then differ from run to run.
#pragma once
#include <functional>
#include <string>

#include "runtime/base/file_system.h"

namespace trainctl {

/// The file of the measurements: $XDG_CACHE_HOME/trainctl/peaks.json, or ~/.cache/trainctl/peaks.json; "" if
/// no home folder is known.
std::string peak_cache_path();

/// The best of all measurements under `key`, in FLOP/s. `key` names all that the number depends on:
/// processor, cores, libraries, threads, format. The first call measures three times, each of the next three
/// calls once more, later ones only if the last measurement is ten minutes old: the cores may be quiet now.
/// If the file `path` is damaged or cannot be written, each call measures three times; that is not an error.
double remembered_peak(FileSystem& fs, const std::string& path, const std::string& key, double now_unix_s,
                       const std::function<double()>& measure);
/// What is remembered under `key`; 0: nothing.
double known_peak(FileSystem& fs, const std::string& path, const std::string& key);

/// The processor's model and the number of cores of this machine, as part of a key.
std::string host_processor();

}  // namespace trainctl
