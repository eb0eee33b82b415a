#include "runtime/machine/node_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/device.h"
#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

using nlohmann::json;

/// A folder that takes no page takes no log, socket or memory segment of a rank either.
constexpr size_t kProbeBytes = 4096;

int usable_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void add_gpu(std::vector<GpuKind>& kinds, const kernels::GpuFacts& gpu) {
  for (GpuKind& kind : kinds)
    if (kind.name == gpu.name && kind.memory_bytes == gpu.total_bytes) {
      ++kind.count;
      return;
    }
  kinds.push_back({gpu.name, 1, gpu.total_bytes});
}

/// The error of the system.
Problem write_problem(const std::string& folder) {
  std::string path = folder + "/trainctl.probe.XXXXXX";
  const int fd = ::mkstemp(path.data());
  if (fd < 0) return Problem(std::strerror(errno));
  const std::string page(kProbeBytes, 'x');
  const ssize_t written = ::write(fd, page.data(), page.size());
  std::string problem = written == ssize_t(page.size()) ? ""
                        : written < 0                   ? std::strerror(errno)
                                                        : "it is full";
  if (::close(fd) != 0 && problem.empty()) problem = std::strerror(errno);  // NFS says it here
  ::unlink(path.c_str());
  return Problem::of(std::move(problem));
}

json object_of(const std::string& text) {
  json j = try_parse_json(text);
  return j.is_object() ? j : json::object();
}

}  // namespace

int NodeFacts::gpu_count() const {
  int count = 0;
  for (const GpuKind& kind : gpus) count += kind.count;
  return count;
}

std::string NodeFacts::to_json() const {
  json list = json::array();
  for (const GpuKind& kind : gpus)
    list.push_back({{"name", kind.name}, {"count", kind.count}, {"memory_bytes", kind.memory_bytes}});
  return dump_json(json{{"cores", cores},
                        {"memory_bytes", memory_bytes},
                        {"shared_memory_bytes", shared_memory_bytes},
                        {"scratch_free_bytes", scratch_free_bytes},
                        {"gpus", list}});
}

NodeFacts NodeFacts::from_json(const std::string& text) try {
  const json j = object_of(text);
  NodeFacts f{.cores = j.value("cores", 0),
              .memory_bytes = j.value("memory_bytes", uint64_t(0)),
              .shared_memory_bytes = j.value("shared_memory_bytes", uint64_t(0)),
              .scratch_free_bytes = j.value("scratch_free_bytes", uint64_t(0))};
  for (const json& kind : j.value("gpus", json::array()))
    f.gpus.push_back(
        {kind.value("name", ""), kind.value("count", 0), kind.value("memory_bytes", uint64_t(0))});
  return f;
} catch (const json::exception&) {
  return {};
}

NodeFacts node_facts(bool with_gpus) {
  NodeFacts facts{.cores = usable_cores(), .memory_bytes = system_memory().total_bytes};
  struct statvfs s;
  if (::statvfs("/dev/shm", &s) == 0) facts.shared_memory_bytes = uint64_t(s.f_blocks) * s.f_frsize;
  if (::statvfs("/tmp", &s) == 0) facts.scratch_free_bytes = uint64_t(s.f_bavail) * s.f_frsize;
  if (!with_gpus) return facts;
  const int devices = kernels::cuda_status().devices;
  for (int i = 0; i < devices; ++i) try {
      add_gpu(facts.gpus, kernels::gpu_facts(i, false));
    } catch (const Error&) {
      // One that does not answer is not counted.
    }
  return facts;
}

std::string render(const NodeFacts& f) {
  std::string text = fmt::format("{}, {}", count_of(f.cores, "core"), memory_text(double(f.memory_bytes)));
  for (const GpuKind& kind : f.gpus)
    text += fmt::format(", {} x {} {}", kind.count, kind.name, memory_text(double(kind.memory_bytes)));
  return text + fmt::format(", /dev/shm {}", memory_text(double(f.shared_memory_bytes)));
}

std::string NodeUsage::to_json() const {
  json j = {{"memory_used_bytes", memory_used_bytes}};
  if (hottest_c) j["hottest_c"] = *hottest_c;
  return dump_json(j);
}

NodeUsage NodeUsage::from_json(const std::string& text) try {
  const json j = object_of(text);
  NodeUsage usage{.memory_used_bytes = j.value("memory_used_bytes", uint64_t(0))};
  if (j.contains("hottest_c")) usage.hottest_c = j["hottest_c"].get<double>();
  return usage;
} catch (const json::exception&) {
  return {};
}

uint64_t memory_used_here() {
  const SystemMemory memory = system_memory();
  return memory.total_bytes > memory.available_bytes ? memory.total_bytes - memory.available_bytes : 0;
}

Problem folders_problem(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    if (const Problem problem = write_problem(folder); problem.exists())
      return Problem(fmt::format("cannot write {}: {}; make room or repair it, or leave the node out", folder,
                         problem.text()));
  return Problem::none();
}

}  // namespace trainctl
