#include "runtime/supervise/decide/trace_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/ensure.h"

namespace trainctl {

TraceSession::TraceSession(TraceRequest request, const std::vector<Node>& nodes, uint64_t epoch)
    : request_(std::move(request)), has_handed_in_(request_.ranks.size(), false) {
  answer_.number = request_.number;
  answer_.epoch = epoch;
  for (const Node& node : nodes) {
    answer_.nodes.push_back({.name = node.name, .first = node.first, .count = node.count});
    const auto from = std::lower_bound(request_.ranks.begin(), request_.ranks.end(), node.first);
    clocks_.push_back(
        {.samples = {}, .records = from != request_.ranks.end() && *from < node.first + node.count});
  }
  begin_round();
}

void TraceSession::begin_round() {
  questions_.clear();
  for (size_t i = 0; i < clocks_.size(); ++i) {
    clocks_[i].samples.clear();
    if (clocks_[i].records) questions_.push_back(int(i));
  }
}

std::vector<int> TraceSession::take_questions() { return std::exchange(questions_, {}); }

void TraceSession::clock(int node, const ClockSample& sample) {
  if (is_over() || node < 0 || size_t(node) >= clocks_.size() || !clocks_[size_t(node)].records) return;
  std::vector<ClockSample>& samples = clocks_[size_t(node)].samples;
  if (samples.size() >= kQuestions) return;
  samples.push_back(sample);
  if (samples.size() < kQuestions) questions_.push_back(node);
  TraceAnswer::Node& of = answer_.nodes[size_t(node)];
  (is_closing_ ? of.after : of.before) = offset_of(samples);
}

void TraceSession::handed_in(int rank, const TraceResult& result, double now_s) {
  if (is_over() || result.number != request_.number) return;
  const auto place = std::lower_bound(request_.ranks.begin(), request_.ranks.end(), rank);
  if (place == request_.ranks.end() || *place != rank) return;
  if (!result.problem.empty()) return fail(fmt::format("rank {} has no recording: {}", rank, result.problem));
  if (result.last_step < result.first_step)
    return fail(
        fmt::format("the run ended with step {}, before the first step to record", result.first_step - 1));
  const size_t index = size_t(place - request_.ranks.begin());
  if (has_handed_in_[index]) return;
  has_handed_in_[index] = true;
  const bool is_first = answer_.handed_in++ == 0;
  ENSURE(size_t(answer_.handed_in) <= request_.ranks.size());
  answer_.first_step = is_first ? result.first_step : std::max(answer_.first_step, result.first_step);
  answer_.last_step = is_first ? result.last_step : std::min(answer_.last_step, result.last_step);
  answer_.spans += result.spans;
  answer_.overwritten += result.overwritten;
  if (size_t(answer_.handed_in) < request_.ranks.size()) return;
  is_closing_ = true;
  closing_since_s_ = now_s;
  begin_round();
}

bool TraceSession::has_answers() const {
  return std::all_of(clocks_.begin(), clocks_.end(),
                     [](const Clocks& c) { return !c.records || c.samples.size() >= kQuestions; });
}

void TraceSession::tick(double now_s) {
  if (is_over() || !is_closing_) return;
  if (has_answers() || now_s - closing_since_s_ > kClockLimitS) answer_.state = TraceState::complete;
}

void TraceSession::attempt_ended(const std::string& why) {
  if (is_over()) return;
  // The clocks were known before; what is missing is a better knowledge of their rates.
  if (is_closing_) {
    answer_.state = TraceState::complete;
    return;
  }
  fail(fmt::format("{} while {} recorded; nothing was kept", why,
                   request_.ranks.size() == 1 ? "a rank" : fmt::format("{} ranks", request_.ranks.size())));
}

void TraceSession::fail(std::string why) {
  answer_.state = TraceState::failed;
  answer_.reason = std::move(why);
  questions_.clear();
}

}  // namespace trainctl
