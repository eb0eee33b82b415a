// CheckpointMarks records what was found out about the checkpoints of a run after they were saved: which have
// been read again with every byte good, in the run's folder and in its store.
//
// The record is checkpoints.json in the run directory, outside of the checkpoints and their hashes. It is a
// hint: without it every checkpoint is read again, and none is removed before that.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/store.h"
#include "runtime/base/file_system.h"
#include "runtime/base/record_fields.h"

namespace trainctl {

/// A checkpoint whose bytes are good.
struct CheckpointMark {
  int64_t step = 0;
  std::string identity;     ///< see identity_of
  uint64_t not_finite = 0;  ///< values of the state that are NaN or infinite: it is of no use
  bool is_finite() const { return not_finite == 0; }
  bool operator==(const CheckpointMark&) const = default;
  static void fields(auto& f, auto& r) {
    f("step", r.step);
    f("identity", r.identity);
    f.when(r.not_finite > 0, "not_finite", r.not_finite);
  }
};

struct CheckpointMarks {
  std::vector<CheckpointMark> folder, store;
  std::string place;  ///< of the store to which `store` applies
  static void fields(auto& f, auto& r) {
    f.written("v", 1);
    f("folder", r.folder);
    f("store", r.store);
    f("place", r.place);
  }
};

/// SHA-256 of COMMIT, which names the manifest, which names every byte: equal for copies, different for
/// another save of the same step. Error(kIo).
std::string identity_of(ckpt::StoredFiles& files);

/// The mark of this checkpoint; null: it has none.
const CheckpointMark* mark_of(const std::vector<CheckpointMark>& marks, ckpt::StoredFiles& files);
/// The largest step; -1 without.
int64_t newest_of(const std::vector<CheckpointMark>& marks);

/// Empty if the file is missing or damaged.
CheckpointMarks read_marks(FileSystem& fs, const std::string& path);
/// Replaces the file durably. Error(kIo).
void write_marks(FileSystem& fs, const std::string& path, const CheckpointMarks& marks);

}  // namespace trainctl
