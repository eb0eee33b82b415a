// Remote memory: the file with the pieces of a rank (ckpt/pieces.h) that lies in the memory of another node.
// The agent of that node serves it (runtime/run/pieces/piece_server.h). One connection each; one thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "ckpt/memory_store.h"
#include "runtime/run/wire/node_wire.h"

namespace trainctl {

/// The file of `rank` of `ranks` on the node that `server` is the address of, for reading. It and its reads
/// throw Error(kIo) with one sentence that names the node's address: not reached within `limit_s`, refused,
/// or no such file.
///   read_bytes   counts what is read; may be null
std::unique_ptr<ckpt::NodeMemory> remote_memory(const wire::PieceServerAddress& server, int rank, int ranks,
                                                double limit_s,
                                                std::shared_ptr<std::atomic<uint64_t>> read_bytes = nullptr);

/// A rank that keeps pieces.
struct PieceOfRank {
  int rank = 0, ranks = 1;
  uint64_t epoch = 0;
};
/// The same file for writing; made with `bytes` bytes unless it is there in that size. The node must hold the
/// second copies of this rank in this epoch. Writes are not answered: sync() waits until they are in place,
/// or throws why one is not.
std::unique_ptr<ckpt::NodeMemory> remote_memory_to_write(const wire::PieceServerAddress& server,
                                                         const PieceOfRank& piece, uint64_t bytes,
                                                         double limit_s);

}  // namespace trainctl
