// Saver saves the state of a rank while training goes on: first a copy in the memory of the node, then from
// that copy a second one in the memory of another node (the partner) and the shard of a checkpoint in the
// run's directory.
//
//     step S ──optimizer──┐ stage                     step S+1: fence ──optimizer
//     main thread         └── forward and backward of S+1 ──┘
//     copying thread      copy and hash ─ seal ─┤ read back and compare
//     writing thread                               └─ partner ─ write ─ sync ─ Control::hand_in
//
// A copy goes into the slot of the node's memory (ckpt/pieces.h) that does not hold the newest copy. While
// some rank still writes from that slot, copies go over each other in the other one (copies_over_newest): a
// run that loses a rank between two copies then goes back one step as always, and one that loses it during a
// copy goes back to the state that is being written. Without these copies it would go back that far each
// time. A write that has begun is never given up for a newer one, or slow disks would never get a whole
// checkpoint. With one slot, no copies are made while it is being written from. Without slots, stage() writes
// to the directory before it returns.
//
// The calls are made by the rank's main thread. The supervisor publishes when all ranks have handed in.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/pieces.h"
#include "runtime/base/file_system.h"
#include "runtime/spans/recorder.h"
#include "runtime/train/control/control.h"
#include "runtime/train/save/save_targets.h"

namespace trainctl {

class Saver {
 public:
  struct Options {
    int rank = 0, ranks = 1;
    std::string checkpoint_dir;
    double write_timeout_s = 600;   ///< a write that moves nothing for so long has failed: its slot is free
    double partner_timeout_s = 60;  ///< the same for a copy to the partner
    int slots = 2;                  ///< of the memory, for copies: 1 or 2
    double write_bytes_per_s = 0;   ///< most of a write to the directory behind the training; 0: no limit
    double let_go_s = 1;  ///< the destructor waits so long for a write to end that is not wanted any more
    Clock& clock = real_clock();
    std::shared_ptr<SpanRecorder> spans = {};  ///< records the parts of saves in traced steps; may be null
  };
  /// The rank's part of the state. `chunks` and `source` are used by the copying thread between stage() and
  /// the end of fence(), else by the main thread.
  struct State {
    std::vector<ckpt::Tensor> tensors;  ///< of all ranks
    std::function<std::vector<ckpt::ChunkData>()> chunks;
    ckpt::ChunkSource* source = nullptr;
    /// Called in finish() and write_now() as long as bytes are written, with their number so far; may be
    /// empty.
    std::function<void(uint64_t)> written = {};
  };
  /// `control` and `fs` must outlive it, and all threads that a disk does not let go: see ~Saver. `memory`:
  /// the rank's slots; null: none. `partner`: opens the memory of the partner, with the same number of
  /// bytes, or throws Error(kIo); it is called again after a failure. Empty: there is no partner.
  using OpenPartner = std::function<std::unique_ptr<ckpt::NodeMemory>(uint64_t bytes)>;
  Saver(Options options, State state, Control& control, FileSystem& fs,
        std::unique_ptr<ckpt::NodeMemory> memory, OpenPartner partner = {});
  /// Ends both threads. A write that hangs is left to itself; it does not use `control` any more.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  bool has_memory() const;
  bool has_partner() const;
  SavesUnderWay under_way() const;
  /// Begins to save `state` where `due` says, as far as decide() allows. Returns where it is saved. Every
  /// rank makes the same calls.
  ///   any_rank   under_way() of all ranks together, taken in this step
  SaveTargets stage(const ckpt::StateInfo& state, const SaveTargets& due, const SavesUnderWay& any_rank);
  /// Waits until the copy is done. Call it before the state changes.
  void fence();
  /// The state changes now. A copy that is still being made is void: save_failed.
  void state_changes();
  /// Waits for the writes under way, at most `limit_s`, and gives up one that is not done by then or does not
  /// get on. False: one was given up, now or before.
  bool finish(double limit_s);
  /// Writes `state` to the directory before it returns, and hands it in; first calls finish(limit_s). Every
  /// rank makes the same calls. Returns the number of the save for Control::await_saved.
  int64_t write_now(const ckpt::StateInfo& state, double limit_s);

  /// The number of the newest save to the directory, for Control; -1: none. The same on every rank.
  int64_t newest_save() const;
  /// The step of the newest copy that is whole on this rank; -1: none.
  int64_t newest_copy() const;
  /// The step of the newest copy that stage() began, the same on every rank; -1: none.
  int64_t newest_staged() const;

  /// The steps of two second copies, newest first; -1: none.
  using TwoSteps = std::array<int64_t, 2>;
  /// Those of this rank that are whole in the memory of the partner, as far as this rank knows.
  TwoSteps second_copies() const;
  /// Those that stage() began last, the same on every rank.
  TwoSteps second_copies_begun() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace trainctl
