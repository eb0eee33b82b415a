// The control channel for ranks that are threads of one process, for tests.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/run/record/step_assembly.h"
#include "runtime/train/control/control.h"

namespace trainctl::test {

/// Returns one Control for each of `size` ranks. They share a collector that publishes into `checkpoint_dir`
/// and keeps the `keep_last` newest checkpoints. `on_report` is called by rank 0 for each step, under a lock.
/// So is `on_event`, with events of ranks and with the outcomes of saves, as a supervisor writes them. `fs`
/// must outlive the result. `trace`: an order that the ranks have from the beginning; number 0: none.
std::vector<std::unique_ptr<Control>> make_thread_control(
    int size, FileSystem& fs, const std::string& checkpoint_dir, int keep_last,
    std::function<void(const StepRecord&)> on_report,
    std::function<void(EventKind, const std::string&)> on_event = {}, const TraceOrder& trace = {});

}  // namespace trainctl::test
