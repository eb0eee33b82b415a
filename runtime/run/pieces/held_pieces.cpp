#include "runtime/run/pieces/held_pieces.h"

#include <fmt/format.h>

#include <cstdio>

#include "ckpt/pieces.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/run/pieces/remote_memory.h"
#include "runtime/run/wire/folder_pieces.h"

namespace trainctl {
namespace {

/// Calls with(path, rank, ranks) for the file of each rank.
template <typename Do>
void for_each_file(const std::string& folder, Do with) {
  for (const std::string& name : real_file_system().list(folder)) {
    int rank = 0, ranks = 0;
    const bool fits = std::sscanf(name.c_str(), "rank-%d-of-%d.slots", &rank, &ranks) == 2;
    if (fits && name == ckpt::piece_file_name(rank, ranks)) with(folder + "/" + name, rank, ranks);
  }
}

std::string other_memories_file(const std::string& folder) { return folder + "/other-memories.json"; }

wire::OtherMemories other_memories(FileSystem& fs, const std::string& folder) {
  return wire::OtherMemories::from_json(fs.read_text(other_memories_file(folder)));
}

bool is_in(const wire::RankRange& range, int rank) {
  return rank >= range.first && rank < range.first + range.count;
}

/// Clears the slots of later steps. A file that cannot be read holds nothing that a load would take.
void set_aside_after(const std::string& path, int64_t step) try {
  const uint64_t bytes = real_file_system().open_read(path)->size();
  if (bytes == 0) return;
  const auto memory = ckpt::shared_memory(path, bytes);
  ckpt::memory_store(*memory, path)->set_aside_after({.step = step});
} catch (const Error&) {
  real_file_system().remove_file(path);
}

}  // namespace

HeldPieces::HeldPieces(std::string run_directory, std::string node)
    : run_directory_(std::move(run_directory)), node_(std::move(node)) {
  try {
    folder_ = ckpt::MemoryFolder::find(run_directory_, node_);
  } catch (const Error&) {
    // begin_epoch tries again and says why.
  }
}

Problem HeldPieces::begin_epoch(const wire::StartOrder& order) {
  try {
    if (!folder_) folder_ = ckpt::MemoryFolder::take(run_directory_, node_);
    here_ = order.ranks[size_t(order.this_host)];
    partner_of_ = order.partner_of;
    for_each_file(folder_->path(), [&](const std::string& path, int rank, int ranks) {
      if ((ranks == order.world_size && is_here(rank)) || ranks == order.memory_ranks)
        set_aside_after(path, order.from_step);
      else
        real_file_system().remove_file(path);
    });
    real_file_system().replace_text(other_memories_file(folder_->path()),
                                    wire::OtherMemories{order.holders, order.partner}.to_json());
    return Problem::none();
  } catch (const Error& error) {
    return Problem(error.what());
  }
}

const std::string& HeldPieces::folder() const {
  static const std::string kNone;
  return folder_ ? folder_->path() : kNone;
}

wire::PiecesAnswer HeldPieces::list() const {
  return {folder_ ? wire::folder_pieces(real_file_system(), folder_->path())
                  : std::vector<wire::HeldPiece>{}};
}

void HeldPieces::keep_only(int ranks) {
  if (!folder_) return;
  for_each_file(folder_->path(), [&](const std::string& path, int rank, int of) {
    if (of != ranks || !is_here(rank)) real_file_system().remove_file(path);
  });
}

bool HeldPieces::is_here(int rank) const {
  return here_.count == 0 || is_in(here_, rank) || is_in(partner_of_, rank);
}

void HeldPieces::end() {
  if (keeps_at_end_ && !list().pieces.empty()) return;
  if (folder_) folder_->remove();
  folder_.reset();
}

ckpt::OtherPieces pieces_elsewhere(FileSystem& fs, const std::string& folder, int ranks, double limit_s,
                                   std::shared_ptr<std::atomic<uint64_t>> read_bytes) {
  return [holders = other_memories(fs, folder).holders, ranks, limit_s, read_bytes = std::move(read_bytes)](
             int rank, size_t copy) -> std::vector<ckpt::FoundPiece> {
    size_t number = 0;
    for (const wire::PieceHolder& holder : holders)
      for (const wire::RankRange& range : holder.ranks)
        if (is_in(range, rank) && number++ == copy)
          return ckpt::pieces_in(remote_memory(holder.server, rank, ranks, limit_s, read_bytes),
                                 fmt::format("rank {} on {}", rank, holder.server.text()), rank, ranks);
    if (number == 0) throw Error(ErrorCode::kIo, fmt::format("no node holds the piece of rank {}", rank));
    return {};
  };
}

std::function<std::unique_ptr<ckpt::NodeMemory>(uint64_t bytes)> partner_memory(FileSystem& fs,
                                                                                const std::string& folder,
                                                                                const PieceOfRank& piece,
                                                                                double limit_s) {
  const wire::PieceServerAddress partner = other_memories(fs, folder).partner;
  if (!partner.exists()) return {};
  return [partner, piece, limit_s](uint64_t bytes) {
    return remote_memory_to_write(partner, piece, bytes, limit_s);
  };
}

}  // namespace trainctl
