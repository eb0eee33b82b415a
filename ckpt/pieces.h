// Pieces: what each rank copies of the state into the memory of its node (tier L0), so that it outlives the
// rank. The pieces of all ranks of one step and epoch together are a checkpoint.
//
//     <folder>/run                            the path of the run's directory
//     <folder>/rank-00003-of-00008.slots      a memory store (memory_store.h); this rank alone writes it
//
// A slot of that store is a piece. Its files are
//
//     shard-00003-of-00008.safetensors   the shard of a checkpoint, byte for byte; absent if it is empty
//     piece.json                         Piece, as below: state, rank, tensors of all ranks, receipt
//     COMMIT                             the SHA-256 of piece.json, a newline
//
// Sealing the slot is the commit of the piece. Nothing here communicates; publishing needs no message,
// because a reader looks for a step of which every rank's piece is there. The state of rank 0's piece
// describes the checkpoint (that of other ranks lacks the fingerprints of the data).
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/memory_store.h"
#include "ckpt/store.h"

namespace trainctl::ckpt {

inline constexpr const char* kPieceName = "piece.json";

struct Piece {
  StateInfo state;
  int rank = 0, ranks = 1;
  std::vector<Tensor> tensors;  ///< of the whole checkpoint, the same in every piece
  ShardReceipt receipt;         ///< no file name: the rank owns nothing
  int slots = 2;  ///< of the memory of its writer, and of the second copy; not a part of piece.json
};

/// <memory_root>/trainctl-<uid>-<16 hex digits>: the folder of a run's pieces on a node. `run`: absolute path
/// of the run directory.
std::string pieces_folder(const std::string& memory_root, unsigned uid, const std::string& run,
                          const std::string& node);
/// rank-00003-of-00008.slots
std::string piece_file_name(int rank, int ranks);
/// The most bytes that the texts of a state take in a piece.
uint64_t text_bytes(const StateInfo& state);
/// The bytes of a rank's file with `slots` slots, for a shard of `bytes` bytes of data in `chunks` chunks and
/// a state with `text_bytes` bytes of texts.
uint64_t memory_for_pieces(uint64_t bytes, size_t chunks, size_t tensors, uint64_t text_bytes = 0,
                           int slots = 2);

/// Writes the pieces of one rank. One thread, except open().
class PieceWriter {
 public:
  /// `memory` must outlive it and what open() returns. `where`: its name in messages. `slots`: 1 or 2.
  PieceWriter(NodeMemory& memory, const std::string& where, int rank, int ranks, int slots = 2);
  ~PieceWriter();

  /// Copies the chunks into the slot that does not hold the newest piece, or into the only one, and takes
  /// their hashes from the source on the way. On return the source may change. Error(kIo) if the slot is too
  /// small.
  ///   keep_step   of a piece to keep instead of the newest one; where it is not there, the newest is kept
  void copy(const StateInfo& state, std::span<const Tensor> tensors, std::span<const ChunkData> chunks,
            ChunkSource& source = host_chunks(), std::optional<int64_t> keep_step = std::nullopt);
  /// Completes the copied piece; this is the commit point.
  const Piece& seal();
  /// Discards the copied piece. The other slot stays as it is.
  void drop();
  /// Reads the newest piece back. If a chunk differs from what its hash says, removes the piece;
  /// Error(kCheckpoint) names the chunk.
  void check();
  /// The files of a sealed piece; null if it is not there. Any thread, but not while copy(), seal() or
  /// check() run.
  std::unique_ptr<StoredFiles> open(int64_t step);

 private:
  struct Copy;
  void keep_only(int64_t step, uint64_t epoch);
  NodeMemory& memory_;
  const std::string where_;
  const int rank_, ranks_, slots_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Copy> copy_;  ///< from copy() to seal() or drop()
  Piece newest_;
};

/// Writes the shard of a piece to a checkpoint that is being saved; its chunks are checked on the way.
/// Errors as write_shard.
///   do_read   does the reads from the piece, each of at most kPieceReadBytes, from two threads; it may throw
///             instead. Where the piece is mapped, the file takes its bytes from there outside of do_read: the
///             slot may be overwritten once do_read throws, and then the shard is void
inline constexpr size_t kPieceReadBytes = size_t(1) << 20;
ShardReceipt write_piece(StoredFiles& files, const Piece& piece, SavingFiles& to,
                         const std::function<void(const std::function<void()>& read)>& do_read);

/// Copies a sealed piece into the slot of `to` that does not hold the newest one, with the files that it has;
/// its seal comes last. `to` is used by nobody else meanwhile. Error(kIo). `where`: its name in messages.
/// `do_read` as above.
void copy_piece(StoredFiles& files, const Piece& piece, NodeMemory& to, const std::string& where,
                const std::function<void(const std::function<void()>& read)>& do_read);

/// A sealed piece in a folder, or a file that holds none that can be used.
struct FoundPiece {
  std::string path;                    ///< of the file with the slots
  int rank = -1, ranks = 0;            ///< by the name of the file
  int64_t step = -1;                   ///< -1: the file cannot be read
  std::optional<Piece> piece;          ///< nullopt: it is damaged
  std::string problem;                 ///< one sentence why; "" if `piece` is there
  std::shared_ptr<NodeMemory> memory;  ///< keeps the mapping
  /// The files of the piece, which keep the mapping. Their chunks have not been checked.
  std::unique_ptr<StoredFiles> open() const;
};
/// The pieces in the file of a rank, newest step first. `path`: its name in messages. Throws nothing.
std::vector<FoundPiece> pieces_in(std::shared_ptr<NodeMemory> memory, const std::string& path, int rank,
                                  int ranks);
/// All pieces in a folder, in the order of rank and then of step, newest first. Checks piece.json and that
/// the shard is there in its size, but no chunk. Throws nothing: what cannot be read is in `problem`. An
/// absent folder has no pieces.
std::vector<FoundPiece> list_pieces(FileSystem& fs, const std::string& folder);

}  // namespace trainctl::ckpt
