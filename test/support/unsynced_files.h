// The files of this machine without their way to its disk: for runs that no test cuts off by a loss of power.
#pragma once
#include "runtime/base/file_system.h"

namespace trainctl::test {

/// real_file_system() whose syncs do nothing: they were half of the time of a tiny run. What is synced, and in
/// which order, is tested with PowerLossFileSystem (test/ckpt), and with real disks in test/end_to_end.
FileSystem& unsynced_files();

}  // namespace trainctl::test
