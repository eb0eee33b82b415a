#include "runtime/machine/node_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/device.h"
#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/machine/binding.h"

namespace trainctl {
namespace {

/// A folder that takes no page takes no log, socket or memory segment of a rank either.
constexpr size_t kProbeBytes = 4096;

int usable_cores() { return std::max(1, int(usable_cpus().size())); }

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

/// Defaults where `text` is no such record.
template <typename R>
R lenient(const std::string& text) try {
  return record_of_text<R>(text);
} catch (const BadRecord&) {
  return {};
}

}  // namespace

int NodeFacts::gpu_count() const {
  int count = 0;
  for (const GpuKind& kind : gpus) count += kind.count;
  return count;
}

std::string NodeFacts::to_json() const { return record_text(*this); }
NodeFacts NodeFacts::from_json(const std::string& text) { return lenient<NodeFacts>(text); }

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

std::string NodeUsage::to_json() const { return record_text(*this); }
NodeUsage NodeUsage::from_json(const std::string& text) { return lenient<NodeUsage>(text); }

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
