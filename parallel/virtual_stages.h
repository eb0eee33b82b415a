// Which stage of a pipeline has which virtual stage. Pure.
#pragma once

namespace trainctl::parallel {

/// The virtual stages of a pipeline, numbered in the order of the model. They go down the stages, again and
/// again from the first one on; v_shaped: down and then back up, so that the first stage has the first and
/// the last of them, and the last stage has the two at the turn.
struct VirtualStages {
  int stages = 1, each = 1;  ///< each: of one stage, its local virtual stages 0..each-1
  bool v_shaped = false;     ///< needs each == 2

  int count() const { return stages * each; }
  int stage_of(int c) const { return goes_up(local_of(c)) ? stages - 1 - c % stages : c % stages; }
  int local_of(int c) const { return c / stages; }
  int global_of(int stage, int local) const {
    return local * stages + (goes_up(local) ? stages - 1 - stage : stage);
  }
  /// Virtual stage `c` has its input from one of its own stage, so that it needs no message.
  bool passed_to(int c) const { return c > 0 && stage_of(c) == stage_of(c - 1); }
  /// The same of an input that is sent by another stage; and the output of `c` to another stage.
  bool received_by(int c) const { return c > 0 && !passed_to(c); }
  bool sent_by(int c) const { return c + 1 < count() && received_by(c + 1); }
  int last_stage() const { return stage_of(count() - 1); }

 private:
  bool goes_up(int local) const { return v_shaped && local % 2 == 1; }
};

}  // namespace trainctl::parallel
