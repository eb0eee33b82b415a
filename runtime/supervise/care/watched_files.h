// Files of a checkpoint whose reading can be interrupted, slowed down and counted.
#pragma once
#include <functional>
#include <memory>

#include "ckpt/store.h"

namespace trainctl {

struct FileWatch {
  /// Called after every read with its number of bytes; may sleep, and may throw to end the reading.
  std::function<void(uint64_t bytes)> on_read;
  bool from_medium = false;  ///< read from the medium where the system can do that, not from its cache
};

std::unique_ptr<ckpt::StoredFiles> watched_files(std::unique_ptr<ckpt::StoredFiles> files, FileWatch watch);

}  // namespace trainctl
