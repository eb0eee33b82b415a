// Decides where a due save goes (memory, partner, disk), and which targets are skipped while an older save runs.
// Pure.
#pragma once

namespace trainctl {

/// Where a state is saved.
struct SaveTargets {
  bool memory = false, partner = false, directory = false;
  bool any() const { return memory || partner || directory; }
  bool leaves_node() const { return partner || directory; }
  bool operator==(const SaveTargets&) const = default;
};

/// What one rank, or any rank of all, has under way when the next save is due.
struct SavesUnderWay {
  bool writing = false;     ///< a copy is being written to the partner or the directory
  bool holds = false;       ///< and its slot must not be overwritten: the write gets on
  bool lost = false;        ///< the copy that others may still write is not whole on this rank
  bool no_partner = false;  ///< the last copy to the partner failed
  /// Whether it is so on either rank.
  void add(const SavesUnderWay& other) {
    writing |= other.writing;
    holds |= other.holds;
    lost |= other.lost;
    no_partner |= other.no_partner;
  }
};

/// The save that was begun last of those that leave the node; the same on every rank.
struct LeavingSave {
  bool is_newest = false;     ///< its copy is the newest, so the other slot is free
  bool to_directory = false;  ///< false: only to the partner; it makes way for a checkpoint
  int slots = 2;              ///< that each rank has for its copies
};

/// The targets of the save that is due now. Pure: every rank decides the same from the same inputs, so that
/// the slots of all ranks hold the same steps.
///   under_way   of any rank
SaveTargets decide(const SaveTargets& due, const SavesUnderWay& under_way, const LeavingSave& leaving);

/// Whether a copy in memory takes the place of the newest one, because the other slot is being written from.
bool copies_over_newest(const SavesUnderWay& under_way, const LeavingSave& leaving);

}  // namespace trainctl
