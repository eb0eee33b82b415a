#include "runtime/base/process_memory.h"

#include <malloc.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "runtime/base/units.h"

namespace trainctl {

SystemMemory system_memory_of(const std::string& meminfo) {
  const auto bytes_at = [&](const std::string& key) {
    const size_t at = meminfo.find(key);
    return at == std::string::npos ? 0 : std::strtoull(meminfo.c_str() + at + key.size(), nullptr, 10) * 1024;
  };
  return {.total_bytes = bytes_at("MemTotal:"), .available_bytes = bytes_at("MemAvailable:")};
}

SystemMemory system_memory() {
  std::ifstream file("/proc/meminfo");  // has no size, so FileSystem cannot read it
  return system_memory_of({std::istreambuf_iterator<char>(file), {}});
}

uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    if (key == "VmHWM:") {
      uint64_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
    status.ignore(1 << 20, '\n');
  }
  return 0;
}

void limit_heaps(int heaps) { mallopt(M_ARENA_MAX, heaps); }

std::string out_of_memory_text() {
  std::string text = "memory ran out: this process held " + memory_text(double(peak_resident_bytes())) + " and the system gave no more";
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    text += ", its limit on address space being " + memory_text(double(limit.rlim_cur)) + " (ulimit -v)";
  return text + "; make the job smaller (fewer or shorter sequences a micro-batch, a smaller model, more ranks on other machines), or use a "
                "machine with more memory";
}

}  // namespace trainctl
