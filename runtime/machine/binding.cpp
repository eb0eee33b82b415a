#include "runtime/machine/binding.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

namespace trainctl {
namespace {

struct Topology {
  /// devices: also where they are.
  explicit Topology(bool devices) {
    loaded =
        hwloc_topology_init(&handle) == 0 &&
        (!devices || hwloc_topology_set_io_types_filter(handle, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0) &&
        hwloc_topology_load(handle) == 0;
    if (!loaded) return;
    // Slurm, a container or taskset may have left this process a part of the machine.
    hwloc_bitmap_t own = hwloc_bitmap_alloc();
    if (hwloc_get_cpubind(handle, own, HWLOC_CPUBIND_PROCESS) == 0) hwloc_topology_restrict(handle, own, 0);
    hwloc_bitmap_free(own);
  }
  ~Topology() { hwloc_topology_destroy(handle); }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  hwloc_topology_t handle = nullptr;
  bool loaded = false;
};

struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

/// One set for each rank within `part` of the machine, or none where they do not fit.
std::vector<Bitmap> distribute(const Topology& topology, hwloc_obj_t part, int ranks, int threads) {
  std::vector<Bitmap> sets;
  const int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology.handle, part->cpuset, HWLOC_OBJ_CORE);
  if (cores < 1 || int64_t(ranks) * threads > cores) return sets;
  std::vector<hwloc_bitmap_t> raw(static_cast<size_t>(ranks), nullptr);
  const int depth = hwloc_get_type_or_below_depth(topology.handle, HWLOC_OBJ_CORE);
  if (hwloc_distrib(topology.handle, &part, 1, raw.data(), unsigned(ranks), depth, 0) != 0) return sets;
  for (hwloc_bitmap_t set : raw) sets.emplace_back(set);
  return sets;
}

/// The part of the machine that each GPU is attached to; none where one is not known, or parts overlap.
std::vector<hwloc_obj_t> parts_of(const Topology& topology, const std::vector<std::string>& gpus) {
  std::vector<hwloc_obj_t> parts;
  for (const std::string& gpu : gpus) {
    hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology.handle, gpu.c_str());
    hwloc_obj_t part = device ? hwloc_get_non_io_ancestor_obj(topology.handle, device) : nullptr;
    if (!part || !part->cpuset) return {};
    for (hwloc_obj_t other : parts)
      if (other != part && hwloc_bitmap_intersects(other->cpuset, part->cpuset)) return {};
    parts.push_back(part);
  }
  return parts;
}

/// One set a rank, each near its GPU, or none.
std::vector<Bitmap> distribute_near(const Topology& topology, const std::vector<std::string>& gpus,
                                    int threads) {
  const std::vector<hwloc_obj_t> parts = parts_of(topology, gpus);
  std::vector<Bitmap> sets(parts.size());
  for (size_t first = 0; first < parts.size(); ++first) {
    if (sets[first]) continue;
    const auto ranks = std::count(parts.begin(), parts.end(), parts[first]);
    std::vector<Bitmap> of_part = distribute(topology, parts[first], int(ranks), threads);
    if (of_part.empty()) return {};
    for (size_t rank = first, next = 0; rank < parts.size(); ++rank)
      if (parts[rank] == parts[first]) sets[rank] = std::move(of_part[next++]);
  }
  return sets;
}

std::vector<Bitmap> sets_for(const Topology& topology, int ranks, int threads,
                             const std::vector<std::string>& gpus) {
  if (!topology.loaded || ranks < 1 || threads < 1) return {};
  std::vector<Bitmap> sets;
  if (gpus.size() == size_t(ranks)) sets = distribute_near(topology, gpus, threads);
  return sets.empty() ? distribute(topology, hwloc_get_root_obj(topology.handle), ranks, threads)
                      : std::move(sets);
}

/// A cpu_set_t has room for 1024 CPUs; kernels may be built for more, and refuse sets that are too small.
class CpuSet {
 public:
  explicit CpuSet(int most)
      : most_(most), set_(static_cast<cpu_set_t*>(std::calloc(1, CPU_ALLOC_SIZE(size_t(most)))), std::free) {}
  bool of_this_process() { return set_ && ::sched_getaffinity(0, bytes(), set_.get()) == 0; }
  bool bind() { return set_ && ::pthread_setaffinity_np(::pthread_self(), bytes(), set_.get()) == 0; }
  void add(int cpu) {
    if (set_) CPU_SET_S(size_t(cpu), bytes(), set_.get());
  }
  std::vector<int> members() const {
    std::vector<int> cpus;
    for (int cpu = 0; cpu < most_; ++cpu)
      if (CPU_ISSET_S(size_t(cpu), bytes(), set_.get())) cpus.push_back(cpu);
    return cpus;
  }

 private:
  size_t bytes() const { return CPU_ALLOC_SIZE(size_t(most_)); }
  int most_;
  std::unique_ptr<cpu_set_t, void (*)(void*)> set_;
};
constexpr int kMostCpus = 1 << 20;

std::string text_of(const Bitmap& set) {
  char* text = nullptr;
  hwloc_bitmap_list_asprintf(&text, set.get());
  const std::unique_ptr<char, void (*)(void*)> owner(text, std::free);
  return text ? text : "";
}

}  // namespace

std::vector<std::string> cores_for(int ranks, int threads, const std::vector<std::string>& gpus) {
  const Topology topology(!gpus.empty());
  std::vector<std::string> texts;
  for (const Bitmap& set : sets_for(topology, ranks, threads, gpus)) texts.push_back(text_of(set));
  return texts;
}

std::string bind_rank(int local_rank, int local_ranks, int threads, const std::vector<std::string>& gpus) {
  const Topology topology(!gpus.empty());
  const std::vector<Bitmap> sets = sets_for(topology, local_ranks, threads, gpus);
  if (local_rank < 0 || size_t(local_rank) >= sets.size()) return "";
  const Bitmap& own = sets[size_t(local_rank)];
  return hwloc_set_cpubind(topology.handle, own.get(), HWLOC_CPUBIND_PROCESS) == 0 ? text_of(own) : "";
}

std::vector<int> usable_cpus() {
  for (int most = CPU_SETSIZE; most <= kMostCpus; most *= 2) {
    CpuSet set(most);
    if (set.of_this_process()) return set.members();
    if (errno != EINVAL) break;
  }
  return {};
}

bool bind_thread(int cpu) {
  if (cpu < 0 || cpu >= kMostCpus) return false;
  CpuSet set(std::max(CPU_SETSIZE, cpu + 1));
  set.add(cpu);
  return set.bind();
}

}  // namespace trainctl
