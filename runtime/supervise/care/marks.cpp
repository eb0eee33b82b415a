#include "runtime/supervise/care/marks.h"

#include <algorithm>

#include "ckpt/manifest.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/record.h"

namespace trainctl {

std::string identity_of(ckpt::StoredFiles& files) { return sha256_hex(files.read_text(ckpt::kCommitName)); }

const CheckpointMark* mark_of(const std::vector<CheckpointMark>& marks, ckpt::StoredFiles& files) {
  const auto step = files.named_step();
  const auto is_of_step = [&](const CheckpointMark& mark) { return mark.step == step; };
  if (!step || std::none_of(marks.begin(), marks.end(), is_of_step)) return nullptr;
  try {
    const std::string identity = identity_of(files);
    const auto found = std::find_if(marks.begin(), marks.end(), [&](const CheckpointMark& mark) {
      return is_of_step(mark) && mark.identity == identity;
    });
    return found == marks.end() ? nullptr : &*found;
  } catch (const Error&) {
    return nullptr;
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
