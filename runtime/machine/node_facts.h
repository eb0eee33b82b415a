// Facts about a node that its agent reports to the supervisor: its hardware, the use of it, and whether the
// node can take part in a run.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/problem.h"

namespace trainctl {

/// GPUs of one kind.
struct GpuKind {
  std::string name;
  int count = 0;
  uint64_t memory_bytes = 0;  ///< memory of one GPU
  static void fields(auto& f, auto& r) {
    f.later("name", r.name);
    f.later("count", r.count);
    f.later("memory_bytes", r.memory_bytes);
  }
};

struct NodeFacts {
  int cores = 0;                                       ///< cores that this process may use
  uint64_t memory_bytes = 0, shared_memory_bytes = 0;  ///< total memory; size of /dev/shm
  uint64_t scratch_free_bytes = 0;  ///< free bytes of /tmp when the facts were taken; 0: not known
  std::vector<GpuKind> gpus;        ///< usable GPUs; empty if the run does not use GPUs
  int gpu_count() const;
  std::string to_json() const;
  /// Does not throw: fields that are missing in the text keep their defaults, and so do all fields if the
  /// text is damaged.
  static NodeFacts from_json(const std::string& text);
  static void fields(auto& f, auto& r) {
    f.later("cores", r.cores);
    f.later("memory_bytes", r.memory_bytes);
    f.later("shared_memory_bytes", r.shared_memory_bytes);
    f.later("scratch_free_bytes", r.scratch_free_bytes);
    f.later("gpus", r.gpus);
  }
};

/// The facts of this machine. `with_gpus`: also those of its GPUs, from the driver's management library,
/// without a context on any GPU.
NodeFacts node_facts(bool with_gpus);
/// "8 cores, 64.0 GiB, 8 x NVIDIA H200 140.4 GiB, /dev/shm 32.0 GiB".
std::string render(const NodeFacts& facts);

/// The use of a node, which changes during a run.
struct NodeUsage {
  uint64_t memory_used_bytes = 0;   ///< 0: not known
  std::optional<double> hottest_c;  ///< temperature of the hottest GPU, degrees Celsius; nullopt: not known
  std::string to_json() const;
  static NodeUsage from_json(const std::string& text);
  static void fields(auto& f, auto& r) {
    f.later("memory_used_bytes", r.memory_used_bytes);
    f.maybe("hottest_c", r.hottest_c);
  }
};
/// The memory of this machine that is not available to a new process, in bytes; 0: not known.
uint64_t memory_used_here();

/// Writes and removes a small file in each of the folders, because ranks will write there. Returns none or one
/// sentence with the first folder that fails and why.
Problem folders_problem(const std::vector<std::string>& folders);

}  // namespace trainctl
