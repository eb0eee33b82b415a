// Which part's weights are gathered, waited for and released when (ZeRO-3). Parts take turns in two places,
// that of the even and that of the odd numbers, or have a place each. The weights of the next part are on their
// way while one is computed, where the two have different places; a part that is needed again before another
// has taken its place stays. Pure.
#pragma once
#include <vector>

#include "parallel/step_program.h"

namespace trainctl::parallel {

class WeightTurns {
 public:
  /// schedule: of the stage. Every computation of it needs weights, all parts of its virtual stage in order.
  WeightTurns(const StepShape& shape, const Program& schedule);

  /// Appends what must be done before the next part in the order of the schedule is computed.
  void before_next(StepProgram& program);
  /// Appends the releases after the last one.
  void end(StepProgram& program);

 private:
  struct Turn {
    int virtual_stage = 0, part = 0, place = 0;
    bool operator==(const Turn&) const = default;
  };
  struct Place {
    Turn turn;
    bool taken = false, waited_for = false;
  };
  void add_pass(const StepShape& shape, const Instruction& i);
  Place& place_of(const Turn& turn) { return places_[size_t(turn.place)]; }
  bool has(const Turn& turn) { return place_of(turn).taken && place_of(turn).turn == turn; }
  void gather(const Turn& turn, StepProgram& program);
  static void release(Place& place, StepProgram& program);

  std::vector<Turn> turns_;   // of the whole step
  size_t next_ = 0;
  std::vector<Place> places_;
};

}  // namespace trainctl::parallel
