// Checkpoints in the memory of a node (tier L0; tier L1 for those of a partner). They survive the rank that
// wrote them, but not the node.
//
// The memory has two slots. A new checkpoint goes into the slot without the newest published one, so the
// newest one is not overwritten, unless its user first removes it to keep the older one (PieceWriter::copy).
// Where there is room for one slot only, each checkpoint goes into that one: the newest is lost when the next
// begins.
//
//     slot:  header 64 bytes | files, one after the other | table of the files
//     header: magic, sequence number, step, epoch, place of the table, number of slots, hash of the header
//
// begin() clears the header of its slot; the write of the header is the commit point. The hash of a partly
// written header is wrong, and the slot then counts as empty. Of two slots with the same step, the one with
// the higher sequence number counts. Nothing is synced: the writes of a killed process remain, in their
// order; a lost node loses all.
//
// A file of at least 1 MiB begins at a page, so that a disk can take it from where it lies.
//
// One process owns the store (the node's agent), and all writers use that process.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "ckpt/store.h"

namespace trainctl::ckpt {

/// Memory that survives the process that writes it. Readers see writes in the order in which they were made.
class NodeMemory {
 public:
  virtual ~NodeMemory() = default;
  virtual uint64_t size() const = 0;
  virtual void write(uint64_t offset, std::span<const std::byte> data) = 0;
  virtual void read(uint64_t offset, std::span<std::byte> data) = 0;
  /// All of it, where it is mapped by this process; empty where it is not.
  virtual std::span<const std::byte> mapped() const { return {}; }
  /// Returns when all writes are in place. Error(kIo) if one of them is not.
  virtual void sync() {}
};

/// Maps the file `path` of a memory file system (/dev/shm). If it is missing or has another size, makes it
/// with `bytes` zero bytes. Reserves all memory at once; Error(kIo) says what is missing.
std::unique_ptr<NodeMemory> shared_memory(const std::string& path, uint64_t bytes);

/// Maps an existing file of a memory file system for reading only, in its size. Error(kIo).
std::unique_ptr<NodeMemory> open_shared_memory(const std::string& path);

/// The memory, in bytes, that memory_store needs for checkpoints with `bytes` bytes of files.
uint64_t memory_for_checkpoints(uint64_t bytes);

/// A store in `memory`, which must outlive it. `where`: its name in messages.
///   slots   1 or 2; 0: as many as a checkpoint that is there says, two where there is none
std::unique_ptr<Store> memory_store(NodeMemory& memory, const std::string& where, int slots = 0);

}  // namespace trainctl::ckpt
