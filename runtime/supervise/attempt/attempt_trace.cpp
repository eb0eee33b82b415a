#include "runtime/supervise/attempt/attempt_trace.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"

namespace trainctl {

AttemptTrace::AttemptTrace(FileSystem& fs, Clock& clock, RunLog& log, const RunDirectory& run,
                           Attempt attempt)
    : fs_(fs),
      clock_(clock),
      log_(log),
      run_(run),
      attempt_(std::move(attempt)),
      requests_(std::make_shared<TraceRequests>(fs, clock, run)),
      questions_(int64_t(attempt_.epoch) << 32) {}

void AttemptTrace::turn(bool is_running) {
  try {
    look(is_running);
  } catch (const RunTaken&) {
    throw;
  } catch (const Error& error) {
    log_.console().note(fmt::format("   a request to trace was lost: {}", error.what()));
  }
  if (session_) go_on();
}

void AttemptTrace::look(bool is_running) {
  FileWorker& files = log_.files();
  if (is_running && !files.hangs() && clock_.monotonic_s() - looked_s_ >= TraceRequests::kLookEveryS) {
    looked_s_ = clock_.monotonic_s();
    files.ask([requests = requests_, come = come_] {
      if (const auto request = requests->take()) *come = request;
    });
  }
  if (files.is_idle() && *come_) begin(*std::exchange(*come_, std::nullopt));
}

void AttemptTrace::begin(const TraceRequest& request) {
  session_.emplace(request, attempt_.nodes, attempt_.epoch);
  asked_.clear();
  for (const int rank : request.ranks)
    if (rank < 0 || rank >= attempt_.ranks || request.steps < 1)
      session_->attempt_ended(fmt::format("the run has {} in attempt {}: it changed its width",
                                          count_of(attempt_.ranks, "rank"), attempt_.epoch));
  publish();
  if (!session_ || session_->is_over()) return;
  attempt_.send_ranks({.kind = protocol::Down::trace,
                       .order = {.number = request.number,
                                 .steps = request.steps,
                                 .ranks = request.ranks,
                                 .folder = trace_folder(run_, request.number)}});
}

/// Asks what there is to ask, and answers when it is over.
void AttemptTrace::go_on() {
  ENSURE(session_);
  session_->tick(clock_.monotonic_s());
  for (const int node : session_->take_questions()) {
    asked_[++questions_] = {node, clock_.monotonic_s()};
    attempt_.ask_clock(node, questions_);
  }
  if (!session_->is_over()) return;
  const TraceAnswer& answer = session_->answer();
  if (answer.state == TraceState::complete) {
    log_.event(EventKind::traced, dump_json(Json{{"first_step", answer.first_step},
                                                           {"last_step", answer.last_step},
                                                           {"ranks", session_->request().ranks.size()}}));
    log_.console().note(
        answer.first_step == answer.last_step
            ? fmt::format("   step {} was traced", answer.first_step)
            : fmt::format("   steps {} to {} were traced", answer.first_step, answer.last_step));
  }
  publish();
  session_.reset();
}

void AttemptTrace::publish() {
  ENSURE(session_);
  TraceAnswer answer = session_->answer();
  answer.monotonic_s = clock_.monotonic_s();
  answer.unix_s = clock_.unix_s();
  try {
    const auto is_awaited =
        log_.files().ask([requests = requests_, answer] { return requests->answer(answer); });
    if (!is_awaited.value_or(true)) session_.reset();
  } catch (const RunTaken&) {
    throw;
  } catch (const Error& error) {
    log_.console().note(fmt::format("   a request to trace has no answer: {}", error.what()));
    session_.reset();
  }
}

void AttemptTrace::clock(int node, int64_t question, const std::string& node_s) {
  const double heard_s = clock_.monotonic_s();
  const auto asked = asked_.find(question);
  if (!session_ || asked == asked_.end() || asked->second.node != node) return;
  const ClockSample sample{asked->second.sent_s, std::strtod(node_s.c_str(), nullptr), heard_s};
  asked_.erase(asked);
  if (!std::isfinite(sample.node_s)) return;
  session_->clock(node, sample);
  go_on();
}

void AttemptTrace::handed_in(int rank, const TraceResult& result) {
  if (!session_) return;
  session_->handed_in(rank, result, clock_.monotonic_s());
  go_on();
}

void AttemptTrace::end(const std::string& why) {
  if (!session_ && log_.files().is_idle() && *come_) begin(*std::exchange(*come_, std::nullopt));
  if (!session_) return;
  session_->attempt_ended(why);
  go_on();
}

}  // namespace trainctl
