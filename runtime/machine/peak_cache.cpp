#include "runtime/machine/peak_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/record.h"

namespace trainctl {
namespace {

constexpr int kFirstTries = 3, kSoonTries = 6;
constexpr double kLaterS = 600;

/// What is remembered under a key.
struct Measured {
  double flops_per_s = 0;
  int tries = 0;
  double unix_s = 0;  ///< of the last try
  bool is_sound() const { return flops_per_s > 0 && std::isfinite(flops_per_s) && tries > 0; }
  static void fields(auto& f, auto& r) {
    f("flops_per_s", r.flops_per_s);
    f("tries", r.tries);
    f.later("unix_s", r.unix_s);
  }
};

Json read_cache(FileSystem& fs, const std::string& path) {
  try {
    if (!path.empty() && fs.exists(path))
      if (Json cache = try_parse_json(fs.read_text(path)); cache.is_object()) return cache;
  } catch (const Error&) {
    // As if it were not there.
  }
  return Json::object();
}

/// Nothing where it is damaged.
Measured measured_in(const Json& cache, const std::string& key) {
  try {
    if (cache.contains(key))
      if (const auto peak = record_of<Measured>(cache[key]); peak.is_sound()) return peak;
  } catch (const BadRecord&) {
    // As if it were not there.
  }
  return {};
}

void write_cache(FileSystem& fs, const std::string& path, const Json& cache) {
  if (path.empty()) return;
  try {
    fs.make_directories(path.substr(0, path.rfind('/')));
    fs.replace_text(path, dump_json(cache, 1) + "\n");
  } catch (const Error&) {
    // The next command measures again.
  }
}

}  // namespace

std::string peak_cache_path() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text ? text : "");
  };
  const std::string cache = value("XDG_CACHE_HOME"), home = value("HOME");
  if (!cache.empty() && cache.front() == '/')
    return cache + "/trainctl/peaks.json";  // others are to be ignored, says the XDG specification
  return home.empty() ? "" : home + "/.cache/trainctl/peaks.json";
}

double known_peak(FileSystem& fs, const std::string& path, const std::string& key) {
  return measured_in(read_cache(fs, path), key).flops_per_s;
}

double remembered_peak(FileSystem& fs, const std::string& path, const std::string& key, double now_unix_s,
                       const std::function<double()>& measure) {
  Json cache = read_cache(fs, path);
  Measured peak = measured_in(cache, key);
  if (peak.tries >= kSoonTries && now_unix_s - peak.unix_s < kLaterS) return peak.flops_per_s;
  const int until = std::max(kFirstTries, peak.tries + 1);
  for (; peak.tries < until; ++peak.tries) peak.flops_per_s = std::max(peak.flops_per_s, measure());
  peak.tries = std::min(peak.tries, kSoonTries);
  peak.unix_s = now_unix_s;
  cache[key] = record_json(peak);
  write_cache(fs, path, cache);
  return peak.flops_per_s;
}

std::string host_processor() {
  std::string model = "unknown processor", line;
  for (std::ifstream file("/proc/cpuinfo"); std::getline(file, line);)
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      model = line.substr(line.find(": ") + 2);
      break;
    }
  return model + ", " + std::to_string(std::max(1u, std::thread::hardware_concurrency())) + " cores";
}

}  // namespace trainctl
