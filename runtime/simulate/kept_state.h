// KeptStates: which states of the run are kept where, as nodes are lost, and from which one the next attempt
// goes on: choose_source decides it, as in a run. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "runtime/supervise/decide/source.h"

namespace trainctl::simulate {

enum class LoadFrom { nothing, memory, partner, directory };

class KeptStates {
 public:
  struct Options {
    std::vector<int> partners;  ///< of each place of the mesh; empty: no second copies are made
    int keep_last = 3;          ///< checkpoints
    int64_t keep_every = 0;     ///< and all of steps divisible by it; 0: none
  };
  explicit KeptStates(Options options) : options_(std::move(options)) {}

  void begins(uint64_t epoch, int64_t step);
  /// The state after a step is in the memory of all nodes; `second`: in that of their partners, too.
  void copied(StateId state, bool second);
  /// What the node at that place had in memory is gone.
  void lose(int place);
  /// The memory of all nodes is gone.
  void forget_memory();
  void published(int64_t step);
  bool was_saved() const { return !published_.empty(); }

  struct Choice {
    LoadFrom from = LoadFrom::nothing;
    StateId state;
  };
  Choice choose(std::optional<int64_t> at_most, const std::vector<StateId>& refused) const;

 private:
  struct Copies {
    StateId state;
    bool second = false;
    std::set<int> lost;  ///< places
  };
  std::vector<NodePieces> pieces() const;
  Options options_;
  std::vector<Copies> copies_;  ///< at most one with and one without second copies
  std::vector<Beginning> beginnings_;
  std::vector<int64_t> published_;  ///< that are kept, ascending; those that are kept
};

}  // namespace trainctl::simulate
