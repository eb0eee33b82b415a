// ClockAlignment translates times of a node's monotonic clock into times of the supervisor's.
//
// The supervisor asks the node for its time, several times before and after what is to be aligned. The node
// read its clock at some moment between the question and the answer, so the exchange with the shortest round
// trip says the most. Between the two moments the offset is taken to change at a constant rate. Pure.
// Source: the clock filter of NTP, RFC 5905, section 10.
#pragma once
#include <optional>
#include <span>

namespace trainctl {

/// One question to a node: when it was sent and when the answer came, by the supervisor's clock, and the time
/// in the answer, by the node's.
struct ClockSample {
  double sent_s = 0, node_s = 0, heard_s = 0;
};

/// The node's clock minus the supervisor's at a moment of the supervisor's clock. The true offset is at most
/// `error_s` away.
struct ClockOffset {
  double at_s = 0, offset_s = 0, error_s = 0;
  static void fields(auto& f, auto& r) {
    f("at_s", r.at_s);
    f("offset_s", r.offset_s);
    f("error_s", r.error_s);
  }
};

/// From the sample with the shortest round trip; nullopt if there is none.
std::optional<ClockOffset> offset_of(std::span<const ClockSample> samples);

class ClockAlignment {
 public:
  /// The clocks are the same one.
  ClockAlignment() = default;
  /// Of one moment, or of two: earlier and later.
  explicit ClockAlignment(const ClockOffset& only) : before_(only), after_(only) {}
  ClockAlignment(const ClockOffset& before, const ClockOffset& after) : before_(before), after_(after) {}

  /// The supervisor's time at which the node's clock shows `node_s`. Before the first and after the last
  /// moment the offset stays as it is there.
  double own_s(double node_s) const;
  /// The most by which own_s is wrong between the two moments, while the clocks' rates are constant.
  double error_s() const { return before_.error_s > after_.error_s ? before_.error_s : after_.error_s; }

 private:
  ClockOffset before_, after_;
};

}  // namespace trainctl
