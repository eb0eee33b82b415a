// choose_source decides from which state an attempt goes on: the newest step that can be had, from the
// nearest tier that has it. Pure.
//
// Tiers, nearest first: the memory of the nodes (ckpt/pieces.h), of each rank the piece that it kept
// itself, then the second copies; the run directory; the store. Of the store a checkpoint is copied into
// the directory first, where store_newer_than says so.
//
// A set is what the ranks of one epoch kept in memory of one step: piece 0 .. ranks - 1 of (step, epoch,
// ranks). It can be used if
//   - it is whole: a node holds each of its pieces, and none of them is damaged;
//   - it is of this run and of its present line: no later epoch began before its step (the run went back, and
//     what was computed beyond that step before is no part of it any more);
//   - it did not fail before: a load of it was not refused;
//   - it is not doubted (loaded, it misbehaved again and again), unless there is nothing older;
//   - the ranks of the next attempt reach it: every node that holds a piece is there (the caller sees to it).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/words.h"
#include "runtime/run/record/doubted_state.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/wire/node_wire.h"

namespace trainctl {

/// Where a state is kept, nearest first. One of the store is copied into the directory before it is chosen.
enum class Tier { memory, directory, store };
template <>
struct Words<Tier> {
  static constexpr std::string_view list[] = {"memory", "directory", "store"};
};

/// The state after a step, as an epoch computed it.
struct StateId {
  int64_t step = 0;
  uint64_t epoch = 0;
  auto operator<=>(const StateId&) const = default;
};

/// What a node keeps in its memory.
struct NodePieces {
  std::string node;
  std::vector<wire::HeldPiece> pieces;
};

struct SourceQuestion {
  std::string run_id;
  std::vector<Beginning> beginnings;  ///< of the run's epochs, see AttemptFile
  std::optional<int64_t> at_most;     ///< no later step; nullopt: any
  std::vector<StateId> refused;       ///< sets that could not be loaded
  std::vector<DoubtedState> doubted;
  std::vector<NodePieces> memory;
  std::optional<int64_t> directory_step;  ///< newest usable checkpoint of at most that step; nullopt: none
};

struct Source {
  Tier tier = Tier::directory;
  StateId state;                   ///< epoch 0 for the directory
  int ranks = 0;                   ///< of the set in memory
  std::vector<std::string> nodes;  ///< that hold its pieces; [ranks] in order of rank
  /// Other nodes that hold a whole piece of a rank, for chunks that are damaged where it is taken from.
  std::vector<std::pair<int, std::string>> others;
  uint64_t bytes = 0;  ///< of the pieces
};

struct SourceChoice {
  std::optional<Source> source;  ///< nullopt: there is none
  /// Newer sets that were not taken, one sentence each, newest first.
  std::vector<std::string> passed_over;
  std::vector<int64_t> doubted_steps;  ///< of whole sets among them that are doubted
};
SourceChoice choose_source(const SourceQuestion& question);
/// The step beyond which a checkpoint of the store is worth copying, before a state is chosen; -1: any;
/// nullopt: the store is not asked. `directory_step`: of the newest checkpoint of the directory that opens.
/// `is_resume`: no supervisor and no rank has watched over the directory, so that the store may have newer
/// ones.
std::optional<int64_t> store_newer_than(std::optional<int64_t> directory_step, bool is_resume);

/// The state from which an attempt begins.
struct BeginFrom {
  int64_t step = 0;
  std::string folder;            ///< of the checkpoint; "": a fresh start, or a state in memory
  bool of_parent = false;        ///< it is the checkpoint of the run from which this one was branched
  bool from_store = false;       ///< it was copied from the store for this attempt
  std::optional<Source> memory;  ///< where it is in memory
  /// "step 41, from the memory of 1 node", "checkpoint step 40"
  std::string text() const;
  /// "memory", "directory", "store"; "" for a fresh start.
  std::string tier() const;
};

/// Whether what `epoch` computed up to `step` is part of the run's present line.
bool in_line(const std::vector<Beginning>& beginnings, StateId state);
/// `beginnings` with one more epoch. Entries that the new one makes needless are left out, so the list grows
/// by one for each epoch that went on from a later step than all before.
std::vector<Beginning> with_beginning(std::vector<Beginning> beginnings, Beginning next);

}  // namespace trainctl
