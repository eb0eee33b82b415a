#include "runtime/machine/binding.h"

#include <hwloc.h>

#include <cstdlib>
#include <memory>

namespace trainctl {
namespace {

struct Topology {
  Topology() {
    loaded = hwloc_topology_init(&handle) == 0 && hwloc_topology_load(handle) == 0;
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

/// One set a rank, or none where they do not fit.
std::vector<Bitmap> distribute(const Topology& topology, int ranks, int threads) {
  std::vector<Bitmap> sets;
  if (!topology.loaded || ranks < 1 || threads < 1) return sets;
  const int cores = hwloc_get_nbobjs_by_type(topology.handle, HWLOC_OBJ_CORE);
  if (cores < 1 || int64_t(ranks) * threads > cores) return sets;
  std::vector<hwloc_bitmap_t> raw(static_cast<size_t>(ranks), nullptr);
  hwloc_obj_t root = hwloc_get_root_obj(topology.handle);
  const int depth = hwloc_get_type_or_below_depth(topology.handle, HWLOC_OBJ_CORE);
  if (hwloc_distrib(topology.handle, &root, 1, raw.data(), unsigned(ranks), depth, 0) != 0) return sets;
  for (hwloc_bitmap_t set : raw) sets.emplace_back(set);
  return sets;
}

std::string text_of(const Bitmap& set) {
  char* text = nullptr;
  hwloc_bitmap_list_asprintf(&text, set.get());
  const std::unique_ptr<char, void (*)(void*)> owner(text, std::free);
  return text ? text : "";
}

}  // namespace

std::vector<std::string> cores_for(int ranks, int threads) {
  const Topology topology;
  std::vector<std::string> texts;
  for (const Bitmap& set : distribute(topology, ranks, threads)) texts.push_back(text_of(set));
  return texts;
}

std::string bind_rank(int local_rank, int local_ranks, int threads) {
  const Topology topology;
  const std::vector<Bitmap> sets = distribute(topology, local_ranks, threads);
  if (local_rank < 0 || size_t(local_rank) >= sets.size()) return "";
  const Bitmap& own = sets[size_t(local_rank)];
  return hwloc_set_cpubind(topology.handle, own.get(), HWLOC_CPUBIND_PROCESS) == 0 ? text_of(own) : "";
}

}  // namespace trainctl
