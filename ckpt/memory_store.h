// Checkpoints in the memory of a node (tier L0, and L1 for a partner's): they outlive the rank that wrote
// them, not the node.
//
// The memory is cut into two slots. A new checkpoint goes into the slot that does not hold the newest one, so
// the newest published one is never touched:
//
//     slot:  header 64 bytes | files, one after the other | table of the files
//     header: magic, sequence number, step, epoch, place of the table, hash of the header
//
// begin() wipes the header of its slot; the commit point is the write of the header. A header that was
// written in part does not have its hash, and the slot counts as empty. Of two slots with the same step the
// higher sequence number wins. Nothing is synced: a process that is killed leaves what it wrote, in its
// order, and a lost node loses all.
//
// One process owns the store (the node's agent): all writers put through it.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "ckpt/store.h"

namespace trainctl::ckpt {

/// Memory that outlives the process that writes it. Writes are seen in the order in which they were made.
class NodeMemory {
 public:
  virtual ~NodeMemory() = default;
  virtual uint64_t size() const = 0;
  virtual void write(uint64_t offset, std::span<const std::byte> data) = 0;
  virtual void read(uint64_t offset, std::span<std::byte> data) = 0;
};

/// The file `path` of a memory file system (/dev/shm), mapped; made with `bytes` zero bytes where it is
/// absent or has another size. All of it is reserved at once. Error(kIo) says what is missing.
std::unique_ptr<NodeMemory> shared_memory(const std::string& path, uint64_t bytes);

/// What memory_store needs for checkpoints whose files have `bytes` bytes in all.
uint64_t memory_for_checkpoints(uint64_t bytes);

/// `memory` outlives the store; `where` names it in messages.
std::unique_ptr<Store> memory_store(NodeMemory& memory, const std::string& where);

}  // namespace trainctl::ckpt
