// Stragglers decides which ranks hold up a run, and by what: a rank that computes longer, one whose disk
// gives its data late or takes its saves slowly, and links over which the others wait. It compares the
// numbers that every rank records of a step with those of the other ranks of its stage, over many steps, so
// that noise of single steps names none. Pure; one thread.
//
// A rank that computes longer waits less than the others, who wait for it. Where a link is slow all compute
// alike, and the ranks at its ends wait longer: in a pipeline those of one column (the ranks of one place
// in each stage). A slow link among the ranks of a data-parallel group makes all of them wait alike: it is
// seen by waits that grew, which no rank's computing explains, and no rank is named.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/words.h"
#include "runtime/train/measure/rank_spread.h"

namespace trainctl {

enum class StragglerKind { compute, data, save, link };
template <>
struct Words<StragglerKind> {
  static constexpr std::string_view list[] = {"compute", "data", "save", "link"};
};

/// Ranks of one node (or of the run where nodes are not known), or the column of a pipeline.
struct Straggler {
  StragglerKind kind = StragglerKind::compute;
  std::string node = {};        ///< "": not known, or ranks of several
  std::vector<int> ranks = {};  ///< the first of them; none: links that cannot be named
  int count = 0;                ///< all of them
  double share = 0;             ///< so much of a step it is longer, of the worst
  static constexpr size_t kMostRanks = 8;
  /// "node3, rank 5" or "ranks 4, 5, 6 and 3 more".
  std::string who() const;
  std::string text() const;  ///< one sentence, without a full stop
  /// The same trouble at the same place.
  bool is_like(const Straggler& other) const {
    return kind == other.kind && node == other.node && (!node.empty() || ranks == other.ranks);
  }
};

class Stragglers {
 public:
  /// Takes the numbers of all ranks of a step; those that did not come are left out.
  ///   stages  as of StepWork
  void step(std::span<const RankTimes> ranks, int stages);
  /// Whether enough is known, and something came since the last judgement.
  bool is_due() const { return reports_ >= kLeastReports && since_ >= kEvery; }
  /// Who holds up the run by the steps so far.
  ///   nodes  the ranks of each; empty: one machine
  std::vector<Straggler> judge(std::span<const NodeRanks> nodes);
  void forget() { *this = {}; }

  /// A judgement is of at most kWindow reports, at least kLeastReports, and made after every kEvery. Saves
  /// are rarer: it is of at most kSaves of them, and of half as many at least.
  static constexpr size_t kWindow = 64, kLeastReports = 16, kEvery = 8, kSaves = 16;
  /// What is longer by less than this share of a step is no trouble. Few ranks say little of what is usual.
  static constexpr double kLeastShare = 0.05, kLeastShareOfFew = 0.15;
  static constexpr int kFewRanks = 16;
  /// And it lies so many deviations, over the ranks, above the others.
  static constexpr double kDeviations = 5;

 private:
  enum Number { compute, data, save, pipeline };
  static constexpr size_t kNumbers = 4;
  /// The newest numbers of a rank, each less the median of its stage, as a share of a step.
  struct Ring {
    std::array<float, kWindow> values{};
    uint32_t count = 0;
    void add(double value, size_t window) { values[count++ % window] = float(value); }
    std::span<const float> known(size_t window) const {
      return {values.data(), std::min<size_t>(count, window)};
    }
  };
  static size_t window_of(Number number) { return number == save ? kSaves : kWindow; }
  struct Excess {
    double middle = 0;  ///< the median over the steps; NaN: not known
    double error = 0;   ///< how far it may be from the truth, one standard deviation
    bool is_out = false;
  };
  std::vector<Excess> excess_of(Number number) const;
  void add_number(Number number, std::span<const RankTimes> ranks, double RankTimes::*member, double step_s);
  void add_group(std::vector<Straggler>& found, StragglerKind kind, const std::vector<Excess>& all,
                 std::span<const NodeRanks> nodes) const;
  void add_columns(std::vector<Straggler>& found, const std::vector<Excess>& waits,
                   const std::vector<Excess>& computing, const std::vector<Excess>& reading) const;
  void add_grown_waits(std::vector<Straggler>& found) const;

  int stages_ = 1;
  size_t reports_ = 0, since_ = 0;
  std::array<std::vector<Ring>, kNumbers> rings_;  ///< [number][rank]
  /// What even the rank that waits least waited, as a share of the step without it: the first kWindow, and
  /// the newest.
  std::deque<double> first_waits_, newest_waits_;
};

}  // namespace trainctl
