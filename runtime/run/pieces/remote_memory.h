// Remote memory: the file with the pieces of a rank (ckpt/pieces.h) that lies in the memory of another node.
// The agent of that node serves it (runtime/run/pieces/piece_server.h).
#pragma once
#include <memory>

#include "ckpt/memory_store.h"
#include "runtime/run/wire/node_wire.h"

namespace trainctl {

/// The file of `rank` of `ranks` on the node that `server` is the address of, for reading. One connection.
/// It and its reads throw Error(kIo) with one sentence that names the node's address: not reached within
/// `limit_s`, refused, or no such file. One thread.
std::unique_ptr<ckpt::NodeMemory> remote_memory(const wire::PieceServerAddress& server, int rank, int ranks,
                                                double limit_s);

}  // namespace trainctl
