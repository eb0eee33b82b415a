#include "runtime/observe/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/units.h"
#include "runtime/observe/sparkline.h"

namespace trainctl {
namespace {

/// A restart goes back to a checkpoint; steps before that many are not done again.
constexpr size_t kMostRecent = 1 << 17;
constexpr int kLeastBar = 8, kMostBar = 30;

/// Of a part of a step; 0 where the line does not say it.
double seconds(const StepLine& line, double Phases::*phase) {
  const double value = line.phases ? (*line.phases).*phase : 0;
  return std::isfinite(value) ? value : 0;
}

}  // namespace

void Goodput::step(const StepLine& line, double unix_s) {
  if (line.step <= 0) return;
  const bool is_next = !recent_.empty() && recent_.back().first + 1 == line.step && attempt_ == line.attempt;
  if (begun_unix_s_ == 0) begun_unix_s_ = unix_s - (std::isfinite(line.step_s) ? line.step_s : 0);
  for (; !recent_.empty() && recent_.back().first >= line.step; recent_.pop_back())
    counted_s_ -= recent_.back().second;
  const double training_s = is_next ? unix_s - ended_unix_s_ - seconds(line, &Phases::evaluation_s) -
                                          seconds(line, &Phases::checkpoint_s)
                                    : line.step_s;
  recent_.emplace_back(line.step, std::isfinite(training_s) ? std::max(0.0, training_s) : 0.0);
  counted_s_ += recent_.back().second;
  ended_unix_s_ = unix_s;
  attempt_ = line.attempt;
  if (recent_.size() >= 2 * kMostRecent) recent_.erase(recent_.begin(), recent_.begin() + kMostRecent);
}

double Goodput::value() const {
  const double all_s = ended_unix_s_ - begun_unix_s_;
  return recent_.empty() || all_s <= 0 ? Progress::kUnknown : std::clamp(counted_s_ / all_s, 0.0, 1.0);
}

std::string progress_line(const Progress& p, int columns, bool color) {
  struct Part {
    int order;  ///< of fitting: the lowest is kept longest
    std::string text;
    bool shown = false;
  };
  const auto number = [](double value, const char* format) {
    return std::isnan(value) ? std::string("-") : fmt::format(fmt::runtime(format), value);
  };
  const double share = p.total > 0 ? double(p.step) / double(p.total) : 0;
  const std::string head = fmt::format(" {}/{}", p.step, p.total);
  std::vector<Part> parts{{1, "  loss " + number(p.loss, "{:.4f}")}};
  if (!std::isnan(p.tokens_per_s))
    parts.push_back({4, fmt::format("  {} tok/s", short_number(p.tokens_per_s))});
  if (!std::isnan(p.mfu)) parts.push_back({5, fmt::format("  mfu {:.1f} %", p.mfu * 100)});
  if (!std::isnan(p.goodput)) parts.push_back({6, fmt::format("  goodput {:.1f} %", p.goodput * 100)});
  parts.push_back({0, "  eta " + short_duration(p.left_s)});
  parts.push_back({3, ""});  // the bar, at its least
  int room = columns > 0 ? columns - 1 : 1 << 20;
  if (int(head.size()) > room) return head.substr(0, size_t(room));
  room -= int(head.size());
  bool with_bar = false;
  for (int order = 0; order <= 6; ++order)
    for (Part& part : parts) {
      const int needed = part.text.empty() ? kLeastBar + 3 : int(part.text.size());
      if (part.order != order || needed > room) continue;
      room -= needed;
      part.shown = true;
      with_bar |= part.text.empty();
    }
  std::string line = head;
  if (with_bar)
    line += fmt::format(" [{}{}{}]", color ? "\033[36m" : "",
                        bar(share, std::min(kLeastBar + room, kMostBar)), color ? "\033[0m" : "");
  for (const Part& part : parts)
    if (part.shown) line += part.text;
  return line;
}

}  // namespace trainctl
