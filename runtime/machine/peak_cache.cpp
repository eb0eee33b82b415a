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

constexpr int kFirstTries = 3, kAllTries = 6;

/// What is remembered under a key.
struct Measured {
  double flops_per_s = 0;
  int tries = 0;
  bool is_sound() const { return flops_per_s > 0 && std::isfinite(flops_per_s) && tries > 0; }
  static void fields(auto& f, auto& r) {
    f("flops_per_s", r.flops_per_s);
    f("tries", r.tries);
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

double remembered_peak(FileSystem& fs, const std::string& path, const std::string& key,
                       const std::function<double()>& measure) {
  Json cache = read_cache(fs, path);
  Measured peak;
  try {
    if (cache.contains(key)) peak = record_of<Measured>(cache[key]);
  } catch (const BadRecord&) {
    // As if it were not there.
  }
  if (!peak.is_sound()) peak = {};
  if (peak.tries >= kAllTries) return peak.flops_per_s;
  for (const int until = std::max(kFirstTries, peak.tries + 1); peak.tries < until; ++peak.tries)
    peak.flops_per_s = std::max(peak.flops_per_s, measure());
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
