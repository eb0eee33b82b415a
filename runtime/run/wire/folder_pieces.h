// The pieces of a run's state that lie in a folder of this machine, as an agent reports them.
#pragma once
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/run/wire/node_wire.h"

namespace trainctl::wire {

/// The pieces in a folder (ckpt::MemoryFolder). Their chunks are not read. Throws nothing.
std::vector<HeldPiece> folder_pieces(FileSystem& fs, const std::string& folder);

}  // namespace trainctl::wire
