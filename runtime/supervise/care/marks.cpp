#include "runtime/supervise/care/marks.h"

#include <algorithm>

#include "ckpt/manifest.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/record.h"

namespace trainctl {

std::string identity_of(ckpt::StoredFiles& files) { return sha256_hex(files.read_text(ckpt::kCommitName)); }

bool has_mark(const std::vector<CheckpointMark>& marks, ckpt::StoredFiles& files) {
  const auto step = files.named_step();
  if (!step || std::none_of(marks.begin(), marks.end(), [&](const auto& m) { return m.step == *step; }))
    return false;
  try {
    return std::count(marks.begin(), marks.end(), CheckpointMark{*step, identity_of(files)}) > 0;
  } catch (const Error&) {
    return false;
  }
}

int64_t newest_of(const std::vector<CheckpointMark>& marks) {
  int64_t newest = -1;
  for (const CheckpointMark& mark : marks) newest = std::max(newest, mark.step);
  return newest;
}

CheckpointMarks read_marks(FileSystem& fs, const std::string& path) {
  try {
    if (fs.exists(path)) return read_record<CheckpointMarks>(fs.read_text(path), path);
  } catch (const Error&) {
    // Every checkpoint is read again.
  }
  return {};
}

void write_marks(FileSystem& fs, const std::string& path, const CheckpointMarks& marks) {
  fs.replace_text(path, record_text(marks) + "\n");
}

}  // namespace trainctl
