// What a node has, how much of it is in use, and whether it can take part in a run: what an agent reports to
// its supervisor.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

/// GPUs of one kind.
struct GpuKind {
  std::string name;
  int count = 0;
  uint64_t memory_bytes = 0;  ///< of each
};

struct NodeFacts {
  int cores = 0;  ///< that this process may use
  uint64_t memory_bytes = 0, shared_memory_bytes = 0;
  uint64_t scratch_free_bytes = 0;  ///< of /tmp when the facts were taken; 0: not known
  std::vector<GpuKind> gpus;        ///< none where a run does not use them
  int gpu_count() const;
  std::string to_json() const;
  /// What is missing in the text keeps its default; nothing is thrown.
  static NodeFacts from_json(const std::string& text);
};

/// Of this machine. `with_gpus`: also of its GPUs, through the driver's management library and without a
/// context on any of them.
NodeFacts node_facts(bool with_gpus);
/// "8 cores, 64.0 GiB, 8 x NVIDIA H200 140.4 GiB, /dev/shm 32.0 GiB".
std::string render(const NodeFacts& facts);

/// What changes while a run goes on.
struct NodeUsage {
  uint64_t memory_used_bytes = 0;   ///< 0: not known
  std::optional<double> hottest_c;  ///< of its GPUs
  std::string to_json() const;
  static NodeUsage from_json(const std::string& text);
};
/// Of memory: what the system could not give to a process now.
uint64_t memory_used_here();

/// Writes and removes a small file in each of these folders, as a rank will. "" or one sentence that names
/// the first folder that refuses and why.
std::string folders_problem(const std::vector<std::string>& folders);

}  // namespace trainctl
