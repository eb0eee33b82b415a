// WaitNotice decides when people read why a run waits for nodes: once for each reason, and not for a wait
// that is soon over. Pure.
#pragma once
#include <string>

namespace trainctl {

class WaitNotice {
 public:
  /// A shorter wait is not worth a line.
  static constexpr double kSilentS = 1;

  /// Call it in each turn of a wait. `why`: one sentence, "" for a wait without a line; `now_s`:
  /// monotonic. Returns true if `why` is to be printed now.
  bool turn(const std::string& why, double now_s) {
    if (why != why_) {
      since_s_ = now_s;
      is_printed_ = false;
    }
    why_ = why;
    if (is_printed_ || why.empty() || now_s - since_s_ <= kSilentS) return false;
    return is_printed_ = true;
  }
  /// Whether the reason of the last turn was printed. Then the records show it, too.
  bool is_printed() const { return is_printed_; }

 private:
  std::string why_;
  double since_s_ = 0;
  bool is_printed_ = false;
};

}  // namespace trainctl
