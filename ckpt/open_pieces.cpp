#include "ckpt/open_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ckpt/fail.h"
#include "ckpt/folders.h"
#include "ckpt/manifest.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

std::string set_text(const PieceSet& set) {
  return fmt::format("step {} of attempt {} in memory", set.step, set.epoch);
}

bool is_of(const FoundPiece& piece, const PieceSet& set) {
  return piece.piece && piece.ranks == set.ranks && piece.piece->state.step == set.step &&
         piece.piece->state.epoch == set.epoch;
}

/// The shards of several pieces, each in the slot of its rank.
class PieceFiles final : public StoredFiles {
 public:
  PieceFiles(std::string where, const PieceSet& set, OtherPieces others)
      : where_(std::move(where)), set_(set), others_(std::move(others)) {}
  void add(const FoundPiece& piece) {
    const ShardReceipt& receipt = piece.piece->receipt;
    if (receipt.file.empty()) return;
    shards_[receipt.file] = piece.open();
    owners_[receipt.file] = {piece.rank, receipt.to_json()};
  }

  std::string where() const override { return where_; }
  std::optional<int64_t> named_step() const override { return set_.step; }
  bool has(const std::string& name) override { return shards_.contains(name); }
  std::unique_ptr<File> open(const std::string& name) override {
    const auto at = shards_.find(name);
    if (at == shards_.end()) throw Error(ErrorCode::kIo, fmt::format("there is no {}/{}", where_, name));
    return at->second->open(name);
  }
  std::unique_ptr<File> open_other(const std::string& name, size_t copy) override {
    const auto owner = owners_.find(name);
    if (owner == owners_.end() || !others_) return nullptr;
    const auto& [rank, receipt] = owner->second;
    const std::vector<FoundPiece> found = others_(rank, copy);
    if (found.empty()) return nullptr;
    for (const FoundPiece& one : found)
      if (is_of(one, set_) && one.piece && one.piece->receipt.to_json() == receipt) {
        // Its chunks have not been checked: that is the reader's part.
        others_open_.push_back(one.open());
        return others_open_.back()->open(name);
      }
    throw Error(ErrorCode::kIo, fmt::format("that copy has no {}/{}", where_, name));
  }
  std::vector<std::string> names() override {
    std::vector<std::string> result;
    for (const auto& [name, files] : shards_) result.push_back(name);
    return result;
  }

 private:
  const std::string where_;
  const PieceSet set_;
  const OtherPieces others_;
  std::map<std::string, std::unique_ptr<StoredFiles>> shards_;
  std::map<std::string, std::pair<int, std::string>> owners_;  // rank and receipt
  std::vector<std::unique_ptr<StoredFiles>> others_open_;
};

/// The pieces of the set by rank. A damaged one is named, since it may be the one that is missing.
std::map<int, const FoundPiece*> pieces_of(const std::vector<FoundPiece>& found, const PieceSet& set,
                                           Pieces need) {
  std::map<int, const FoundPiece*> pieces;
  std::map<int, std::string> damaged;
  for (const FoundPiece& one : found) {
    if (is_of(one, set))
      pieces.try_emplace(one.rank, &one);
    else if (!one.piece && one.ranks == set.ranks && (one.step == set.step || one.step < 0))
      damaged[one.rank] = one.problem;
  }
  for (int rank = 0; rank < set.ranks && need == Pieces::all; ++rank)
    if (!pieces.contains(rank))
      fail(damaged.contains(rank)
               ? fmt::format("{}: the piece of rank {} is damaged: {}", set_text(set), rank, damaged[rank])
               : fmt::format("{}: the piece of rank {} of {} is missing", set_text(set), rank, set.ranks));
  if (pieces.empty()) fail(fmt::format("{}: there is no piece of it on this node", set_text(set)));
  return pieces;
}

void check_alike(const FoundPiece& first, const FoundPiece& other) {
  const StateInfo &a = first.piece->state, &b = other.piece->state;
  if (a.run_id != b.run_id || a.tokens != b.tokens || a.seed != b.seed || a.spec_hash != b.spec_hash ||
      first.piece->tensors != other.piece->tensors)
    fail(fmt::format("{} and {} are of different states", first.path, other.path));
}

}  // namespace

std::unique_ptr<Checkpoint> open_pieces(const std::vector<FoundPiece>& found, const PieceSet& set,
                                        Pieces need, const OtherPieces& others) {
  const auto pieces = pieces_of(found, set, need);
  const FoundPiece& first = *pieces.begin()->second;
  auto files = std::make_unique<PieceFiles>(
      fmt::format("{}/step-{:08}.e{}", parent_of(first.path), set.step, set.epoch), set, others);
  Manifest manifest{.state = first.piece->state, .tensors = first.piece->tensors, .files = {}, .root = ""};
  for (const auto& [rank, piece] : pieces) {
    check_alike(first, *piece);
    if (piece->piece->receipt.file.empty()) continue;
    files->add(*piece);
    manifest.files.push_back(piece->piece->receipt);
    manifest.bytes += piece->piece->receipt.file_bytes;
  }
  if (need == Pieces::all) check_tiling(manifest.tensors, manifest.files);
  manifest.root = root_hash(manifest.files);
  return open_with_manifest(std::move(files), std::move(manifest));
}

}  // namespace trainctl::ckpt
