#include "runtime/run/agent/held_pieces.h"

#include <fmt/format.h>

#include <cstdio>

#include "ckpt/pieces.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl {
namespace {

/// The number of ranks in the name of a rank's file; 0 for other names.
int ranks_of(const std::string& name) {
  int rank = 0, ranks = 0;
  const bool fits = std::sscanf(name.c_str(), "rank-%d-of-%d.slots", &rank, &ranks) == 2;
  return fits && name == ckpt::piece_file_name(rank, ranks) ? ranks : 0;
}

template <typename Do>
void for_each_file(const std::string& folder, Do with) {
  for (const std::string& name : real_file_system().list(folder))
    if (const int ranks = ranks_of(name); ranks > 0) with(folder + "/" + name, ranks);
}

/// Clears the slots of later steps. A file that cannot be read holds nothing that a load would take.
void set_aside_after(const std::string& path, int64_t step) try {
  const uint64_t bytes = real_file_system().open_read(path)->size();
  if (bytes == 0) return;
  const auto memory = ckpt::shared_memory(path, bytes);
  ckpt::memory_store(*memory, path)->set_aside_after(step, 0);
} catch (const Error&) {
  real_file_system().remove_file(path);
}

}  // namespace

HeldPieces::HeldPieces(std::string run_directory, std::string node)
    : run_directory_(std::move(run_directory)), node_(std::move(node)) {
  try {
    folder_ = ckpt::MemoryFolder::find(run_directory_, node_);
  } catch (const Error&) {
    // begin_epoch tries again and says why.
  }
}

Problem HeldPieces::begin_epoch(const wire::StartOrder& order) {
  try {
    if (!folder_) folder_ = ckpt::MemoryFolder::take(run_directory_, node_);
    for_each_file(folder_->path(), [&](const std::string& path, int ranks) {
      if (ranks == order.world_size || ranks == order.memory_ranks)
        set_aside_after(path, order.from_step);
      else
        real_file_system().remove_file(path);
    });
    return Problem::none();
  } catch (const Error& error) {
    return Problem(error.what());
  }
}

const std::string& HeldPieces::folder() const {
  static const std::string kNone;
  return folder_ ? folder_->path() : kNone;
}

bool HeldPieces::empty() const {
  return !folder_ || wire::held_pieces(real_file_system(), folder_->path()).empty();
}

void HeldPieces::keep_only(int ranks) {
  if (!folder_) return;
  for_each_file(folder_->path(), [&](const std::string& path, int of) {
    if (of != ranks) real_file_system().remove_file(path);
  });
}

void HeldPieces::end() {
  if (keeps_at_end_ && !empty()) return;
  if (folder_) folder_->remove();
  folder_.reset();
}

}  // namespace trainctl
