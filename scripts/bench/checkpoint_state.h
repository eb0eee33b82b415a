// What the benchmarks of checkpoints save: the plan of a job, who owns what of its state, and memory for it.
#pragma once
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/spec/parse.h"

namespace trainctl::bench {

constexpr size_t kBlockBytes = size_t(8) << 20, kAlignment = 4096, kHugePage = size_t(2) << 20;

/// A job and its parameters.
struct Planned {
  JobSpec job;
  ModelTables tables;
  std::vector<ckpt::Tensor> tensors;
};

inline Planned planned(const std::string& preset, int tensor, int pipeline, int data) {
  ParsedJob parsed = parse_job(
      {.text = fmt::format(R"({{"version": 1, "name": "bench", "device": "cuda", "model": {{"preset": "{}"}},
         "data": {{"train": [{{"path": "/none.bin", "format": "raw", "dtype": "uint16"}}]}},
         "batch": {{"global_sequences": {}}}, "schedule": {{"total_steps": 10, "lr": 1e-4}},
         "parallelism": {{"tensor": {}, "pipeline": {}, "data": {}, "zero_stage": 1, "sequence_parallel": false}}}})",
                           preset, 16 * data, tensor, pipeline, data),
       .file = "job.json",
       .overrides = {},
       .environment = {}});
  ENSURE(parsed.ok(), "{}", parsed.diagnostics.front().message);
  ModelTables tables = model_tables(parsed.job);
  std::vector<ckpt::Tensor> tensors = checkpoint_tensors(tables.params);
  return {std::move(parsed.job), std::move(tables), std::move(tensors)};
}

using Owned = std::vector<parallel::sharding::OwnedChunk>;

/// What each rank holds of the state. One layout serves a whole data-parallel group.
inline std::vector<Owned> owned_by_rank(const Planned& p) {
  const parallel::MeshShape mesh = p.job.mesh();
  const DeviceModel device = device_of_kind(p.job, DeviceKind::cuda);
  std::vector<Owned> owned(size_t(mesh.world_size()));
  for (int pp = 0; pp < mesh.pp; ++pp)
    for (int tp = 0; tp < mesh.tp; ++tp) {
      const RankParts parts = rank_parts({p.job, device, p.tables}, {.tp = tp, .pp = pp});
      auto layout =
          parallel::sharding::make_layout(parts.uses.uses, p.tables.grids.grids, parts.sharding, parts.lines);
      for (int& dp = layout.shares.front().rank; dp < mesh.dp; ++dp)
        owned[size_t(rank_of(mesh, {.tp = tp, .dp = dp, .pp = pp}))] = layout.owned_chunks();
    }
  return owned;
}

inline ckpt::StateInfo state_at(int64_t step) {
  return {.run_id = "bench-0001",
          .epoch = 1,
          .step = step,
          .spec_hash = "0",
          .program_version = TRAINCTL_VERSION};
}

/// Random bytes: a place for every chunk of a state, whichever rank owns it.
class Memory {
 public:
  explicit Memory(const Planned& p, int advice = MADV_NOHUGEPAGE) {
    for (const auto& grid : p.tables.grids.grids)
      for (int role = 0; role < 3; ++role) {
        offsets_.emplace_back();
        for (const parallel::Box& box : grid) {
          offsets_.back().push_back(bytes_);
          bytes_ += size_t(box.count()) * sizeof(float);
        }
      }
    size_t room = (bytes_ + 16 * kBlockBytes) / kHugePage * kHugePage;  // the plain writer rounds up
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, room)));
    ::madvise(data_.get(), room, advice);
    std::mt19937_64 random(1);
    for (size_t at = 0; at + 8 <= room; at += 8) *reinterpret_cast<uint64_t*>(data_.get() + at) = random();
  }
  size_t bytes() const { return bytes_; }
  std::byte* data() const { return data_.get(); }
  std::byte* place(size_t tensor, int chunk) const { return data() + offsets_[tensor][size_t(chunk)]; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::vector<std::vector<size_t>> offsets_;  // of each tensor's chunks
  size_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

inline std::vector<ckpt::ChunkData> saved_chunks(const Memory* memory, const Owned& owned) {
  std::vector<ckpt::ChunkData> chunks;
  for (const auto& [group, chunk, saved] : owned) {
    if (!saved) continue;
    for (int role = 0; role < 3; ++role) {
      const int tensor = 3 * chunk.where.param + role;
      chunks.push_back(
          {tensor, chunk.where.global, memory ? memory->place(size_t(tensor), chunk.where.chunk) : nullptr});
    }
  }
  return chunks;
}

}  // namespace trainctl::bench
