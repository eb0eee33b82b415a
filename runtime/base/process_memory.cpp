#include "runtime/base/process_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "runtime/base/units.h"

namespace trainctl {
namespace {

/// "" when there is no such file. Files of /proc and /sys have no size, so FileSystem cannot read them.
std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

SystemMemory system_memory_of(const std::string& meminfo) {
  const auto bytes_at = [&](const std::string& key) {
    const size_t at = meminfo.find(key);
    return at == std::string::npos ? 0 : std::strtoull(meminfo.c_str() + at + key.size(), nullptr, 10) * 1024;
  };
  return {.total_bytes = bytes_at("MemTotal:"), .available_bytes = bytes_at("MemAvailable:")};
}

SystemMemory machine_memory() { return system_memory_of(text_of("/proc/meminfo")); }

GroupMemory group_memory_of(const std::string& limit, const std::string& used, const std::string& stat) {
  const auto bytes_of = [](const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); };
  // Version 1 counts the groups below in lines of their own, version 2 in every line.
  const auto cached = [&](const std::string& name) {
    for (const std::string& key : {"\ntotal_" + name + " ", "\n" + name + " "})
      if (const size_t at = ("\n" + stat).find(key); at != std::string::npos)
        return bytes_of(stat.substr(at + key.size() - 1));
    return 0ull;
  };
  const uint64_t taken = bytes_of(used), given_back = cached("inactive_file") + cached("active_file");
  return {.limit_bytes = bytes_of(limit),   // of "max": 0
          .used_bytes = taken - std::min<uint64_t>(taken, given_back)};
}

std::vector<std::string> control_groups_of(const std::string& cgroup, const std::string& controller) {
  const std::string root = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
  std::vector<std::string> groups;
  std::istringstream lines(cgroup);
  for (std::string line; std::getline(lines, line);) {   // "4:memory:/path", "0::/path"
    const size_t names = line.find(':') + 1, path = line.find(':', names) + 1;
    if (names == 0 || path == 0 || line[path] != '/') continue;
    if (line.substr(names, path - 1 - names) != controller) continue;
    for (std::string group = line.substr(path); group.size() > 1; group.resize(group.rfind('/')))
      groups.push_back(root + group);
  }
  groups.push_back(root);   // where a container has its own group
  return groups;
}

std::vector<GroupMemory> memory_groups() {
  std::vector<GroupMemory> groups;
  const std::string cgroup = text_of("/proc/self/cgroup");
  const auto take = [&](const std::string& controller, const char* limit, const char* used) {
    for (const std::string& group : control_groups_of(cgroup, controller)) {
      const GroupMemory memory =
          group_memory_of(text_of(group + limit), text_of(group + used), text_of(group + "/memory.stat"));
      if (memory.limit_bytes > 0) groups.push_back(memory);
    }
  };
  take("", "/memory.max", "/memory.current");
  take("memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes");
  return groups;
}

SystemMemory within_groups(SystemMemory machine, const std::vector<GroupMemory>& groups) {
  const uint64_t total = machine.total_bytes;
  for (const GroupMemory& group : groups) {
    if (group.limit_bytes == 0 || (total > 0 && group.limit_bytes >= total)) continue;   // no limit in effect
    const uint64_t left = group.limit_bytes - std::min(group.limit_bytes, group.used_bytes);
    if (total > 0) machine.total_bytes = std::min(machine.total_bytes, group.limit_bytes);
    // 0 would say that it is not known.
    if (machine.available_bytes > 0)
      machine.available_bytes = std::max<uint64_t>(1, std::min(machine.available_bytes, left));
  }
  return machine;
}

SystemMemory system_memory() { return within_groups(machine_memory(), memory_groups()); }

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

uint64_t resident_bytes() {
  // "size resident shared ...", in pages.
  const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[128] = "";
  const ssize_t n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  unsigned long long resident = 0;
  if (n <= 0 || std::sscanf(text, "%*u %llu", &resident) != 1) return 0;
  return uint64_t(resident) * uint64_t(::sysconf(_SC_PAGESIZE));
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

std::string out_of_descriptors_text(const std::string& what) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  int open = 0;
  for (int fd = 0; fd < int(std::min<rlim_t>(limit.rlim_cur, 1 << 16)); ++fd)
    open += ::fcntl(fd, F_GETFD) != -1;
  return fmt::format(
      "descriptors ran out: {}; this process had {} open and may have {} (ulimit -n), or the machine has no "
      "more",
      what, open, uint64_t(limit.rlim_cur));
}

}  // namespace trainctl
