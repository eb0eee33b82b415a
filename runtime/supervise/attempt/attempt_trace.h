// AttemptTrace serves the requests to trace (`trainctl trace`) of one attempt: it takes them from the run's
// directory, orders the ranks to record, asks the nodes for their clocks, and answers. What it decides is in
// TraceSession. One thread: that of the attempt. A disk that fails costs the trace, not the run.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/run/record/trace_request.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/decide/trace_session.h"

namespace trainctl {

class AttemptTrace {
 public:
  /// What it needs from its attempt. All are called on its thread, within a call of this class.
  struct Attempt {
    std::function<void(const protocol::Down&)> send_ranks;      ///< to every rank
    std::function<void(int node, int64_t question)> ask_clock;  ///< index of the attempt's node
    std::vector<TraceSession::Node> nodes;
    int ranks = 1;
    uint64_t epoch = 0;
  };
  AttemptTrace(FileSystem& fs, Clock& clock, RunLog& log, const RunDirectory& run, Attempt attempt);

  /// Call it in each turn of the attempt. Requests are taken while `is_running`: every rank is there.
  void turn(bool is_running);
  /// A node's monotonic time, in answer to a question.
  void clock(int node, int64_t question, const std::string& node_s);
  void handed_in(int rank, const TraceResult& result);
  /// The attempt ends; see TraceSession::attempt_ended.
  void end(const std::string& why);

 private:
  struct Question {
    int node = 0;
    double sent_s = 0;
  };
  void look(bool is_running);
  void begin(const TraceRequest& request);
  void go_on();
  void publish();
  FileSystem& fs_;
  Clock& clock_;
  RunLog& log_;
  const RunDirectory run_;
  const Attempt attempt_;
  // Of the thread that writes the run's files, but while it is idle.
  const std::shared_ptr<TraceRequests> requests_;
  const std::shared_ptr<std::optional<TraceRequest>> come_ = std::make_shared<std::optional<TraceRequest>>();
  double looked_s_ = -1e9;
  std::optional<TraceSession> session_;
  std::map<int64_t, Question> asked_;
  int64_t questions_;  ///< the number of the newest; those of another epoch are not answers to these
};

}  // namespace trainctl
