// TraceSession decides what the supervisor does about one request to trace: which nodes it asks for their
// clocks, and what it answers. Pure: no clock, no files, no messages.
//
//   the order goes to the ranks; each node is asked for its clock --all ranks have handed in-->
//   each node is asked again --answered, or kClockLimitS later--> complete
//   a rank has no recording, or the attempt ends before: failed
#pragma once
#include <string>
#include <vector>

#include "runtime/run/record/trace_request.h"
#include "runtime/spans/clock_alignment.h"
#include "runtime/train/control/control.h"

namespace trainctl {

class TraceSession {
 public:
  /// How often a node is asked before the recording, and after it; and how long the answers after it are
  /// waited for.
  static constexpr int kQuestions = 16;
  static constexpr double kClockLimitS = 1;
  struct Node {
    std::string name;
    int first = 0, count = 0;
  };
  /// `nodes`: of the attempt, in the order of their ranks.
  TraceSession(TraceRequest request, const std::vector<Node>& nodes, uint64_t epoch);

  // ---- inputs
  /// The answer of a node to the question that was asked last.
  void clock(int node, const ClockSample& sample);
  void handed_in(int rank, const TraceResult& result, double now_s);
  /// The attempt ends. `why`: one clause, "the run has ended".
  void attempt_ended(const std::string& why);
  void tick(double now_s);

  // ---- outputs
  /// The nodes to ask for their clock now.
  std::vector<int> take_questions();
  bool is_over() const { return answer_.state != TraceState::recording; }
  /// Without the supervisor's clocks.
  const TraceAnswer& answer() const { return answer_; }
  const TraceRequest& request() const { return request_; }

 private:
  struct Clocks {
    std::vector<ClockSample> samples;  ///< of this round
    bool records = false;              ///< ranks of the node record
  };
  void begin_round();
  void fail(std::string why);
  bool has_answers() const;

  const TraceRequest request_;
  TraceAnswer answer_;
  std::vector<Clocks> clocks_;
  std::vector<bool> has_handed_in_;  // of each rank of the request
  std::vector<int> questions_;
  bool is_closing_ = false;
  double closing_since_s_ = 0;
};

}  // namespace trainctl
