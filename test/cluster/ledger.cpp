#include "test/cluster/ledger.h"

#include <fmt/format.h>

#include "runtime/base/json.h"

namespace trainctl::test {

namespace {

/// Goes through the events of all supervisors of a run. Everything before accounted_t_ has a cause.
class Reader {
 public:
  void take(const Json& event) {
    const std::string kind = event.at("kind");
    const double t = event.at("t");
    if (kind == "supervisor" && !open_) {
      account("unsupervised", accounted_t_ > 0 ? t : accounted_t_);
      accounted_t_ = t;
    } else if (kind == "supervisor") {
      // The one before was killed, perhaps after it had attached; its attempt is not recorded.
      unrecorded_ = true;
      attached_ = false;
    } else if (kind == "start") {
      // A supervisor that was killed has not recorded the times of its attempt.
      if (open_) close("unsupervised", t);
      open_ = true;
    } else if (kind == "ranks_up") {
      up_t_ = t;
    } else if (kind == "attached") {
      // The ranks went on meanwhile.
      close("stepping", t - event.at("seconds").get<double>());
      open_ = attached_ = true;
    } else if (kind == "attempt") {
      take_attempt(event, t);
    } else if (kind == "end") {
      account("closing", t);
    } else if (kind == "restart") {
      lost_steps_ += event.at("lost_steps").get<int64_t>();
    }
  }

  std::map<std::string, double> finish(int64_t steps) {
    const double redone = double(lost_steps_) / double(steps + lost_steps_) * seconds_["stepping"];
    seconds_["stepping"] -= redone;
    seconds_["redoing"] = redone;
    return seconds_;
  }

 private:
  void account(const std::string& cause, double until_t) {
    seconds_[cause] += until_t - accounted_t_;
    accounted_t_ = until_t;
  }
  void close(const std::string& cause, double t) {
    if (up_t_ > accounted_t_) account("starting", up_t_);
    account(cause, t);
    unrecorded_ = true;
  }
  void take_attempt(const Json& event, double t) {
    double sum = 0;
    for (const char* part : {"starting", "first_step", "stepping", "detecting", "ending"}) {
      const double part_s = event.at(std::string(part) + "_s");
      seconds_[part] += part_s;
      sum += part_s;
    }
    // What lies between a killed supervisor's attempt and this one is reported by neither.
    if (unrecorded_ && !attached_) account("unsupervised", t - sum);
    if (!unrecorded_) seconds_["deciding"] += event.at("deciding_s").get<double>();
    open_ = attached_ = unrecorded_ = false;
    accounted_t_ = t;
  }

  std::map<std::string, double> seconds_;
  bool open_ = false;        ///< an attempt has begun
  bool attached_ = false;    ///< by a supervisor that did not begin it
  bool unrecorded_ = false;  ///< what lies before it was recorded by nobody
  double accounted_t_ = 0, up_t_ = 0;
  int64_t lost_steps_ = 0;
};

}  // namespace

double Ledger::sum() const {
  double sum = 0;
  for (const auto& [cause, s] : seconds) sum += s;
  return sum;
}

std::string Ledger::text() const {
  std::string text;
  for (const auto& [cause, s] : seconds)
    text += fmt::format("  {:<14}{:8.2f} s  {:5.1f} %\n", cause, s, 100 * s / wall_s);
  return text + fmt::format("  {:<14}{:8.2f} s of {:.2f} s\n", "sum", sum(), wall_s);
}

Ledger ledger_of(const std::vector<Json>& events) {
  Reader reader;
  for (const Json& event : events) reader.take(event);
  Ledger ledger;
  ledger.wall_s = events.back().at("t").get<double>() - events.front().at("t").get<double>();
  ledger.seconds = reader.finish(events.back().at("step").get<int64_t>());
  return ledger;
}

}  // namespace trainctl::test
