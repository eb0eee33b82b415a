// The control channel of ranks that are threads of one process, for tests.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/train/control.h"

namespace trainctl {

/// Ranks as threads of one process: `size` ends that share a publisher writing into `checkpoint_dir`, retention as given;
/// `on_report` is called for every step report, under a lock.
std::vector<std::unique_ptr<Control>> make_thread_control(int size, FileSystem& fs, const std::string& checkpoint_dir,
                                                          int keep_last, std::function<void(const StepReport&)> on_report);

}  // namespace trainctl
