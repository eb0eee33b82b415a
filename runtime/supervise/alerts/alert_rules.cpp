#include "runtime/supervise/alerts/alert_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/record.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

/// What two failures of one cause have in common: they differ in ranks, steps and process ids, and in what
/// was under way.
std::string kind_of_failure(const std::string& cause) {
  std::string plain;
  for (const char c : cause.substr(0, std::min({cause.find(" while"), cause.find(';'), cause.find(" (")}))) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit)
      plain += c;
    else if (plain.empty() || plain.back() != '#')
      plain += '#';
  }
  return plain;
}

std::string key_of(AlertCause cause, const std::string& key) {
  return fmt::format("{} {}", word_of(cause), key);
}

}  // namespace

std::string Alert::sentence() const {
  const std::string at = step > 0 ? fmt::format(" (step {})", step) : "";
  return fmt::format("run {}: {}{}; look: {}", run_id, text, at, look);
}

AlertRules::AlertRules(const AlertsSpec& spec, Run run, std::set<std::string> sent)
    : spec_(spec), run_(std::move(run)), sent_(std::move(sent)) {}

std::optional<Alert> AlertRules::make(AlertCause cause, const std::string& key, std::string text,
                                      double now_s) {
  if (!spec_.exist() || !spec_.has(cause)) return std::nullopt;
  const std::string whole = key_of(cause, key);
  if (!sent_.insert(whole).second) return std::nullopt;
  return Alert{.cause = cause,
               .key = whole,
               .text = std::move(text),
               .run_id = run_.run_id,
               .directory = run_.directory,
               .host = run_.host,
               .step = step_,
               .unix_s = now_s,
               .look = "trainctl diagnose " + run_.name};
}

/// Call it whenever it is known whether the limit is passed.
std::optional<Alert> AlertRules::limit(AlertCause cause, const std::string& key, bool is_passed,
                                       std::string text, double now_s) {
  const std::string whole = key_of(cause, key);
  // Of one that an earlier supervisor sent it is not known since when it is kept.
  double& passed_s = passed_s_.try_emplace(whole, now_s).first->second;
  if (is_passed) {
    passed_s = now_s;
    return make(cause, key, std::move(text), now_s);
  }
  if (now_s - passed_s >= kKeptS) sent_.erase(whole);
  return std::nullopt;
}

std::optional<Alert> AlertRules::event(EventKind kind, const std::string& json, double now_s) {
  const Json fields = try_parse_json(json);
  if (!fields.is_object()) return std::nullopt;
  const auto number = [&](const char* name) {
    return fields.contains(name) && fields[name].is_number() ? dump_json(fields[name]) : std::string();
  };
  switch (kind) {
    case EventKind::start:
      failed_ = false;
      moved_s_ = now_s;
      recent_.clear();
      return std::nullopt;
    case EventKind::failure: failed_ = true; return std::nullopt;
    // A failure is heard of with what follows from it. Another restart is for other nodes, or for the loss.
    case EventKind::restart: {
      if (!failed_) return std::nullopt;
      const std::string cause = fields.value("reason", "");
      return make(AlertCause::failure, "restart " + kind_of_failure(cause),
                  fmt::format("{}; going on from step {}", cause, number("from_step")), now_s);
    }
    case EventKind::end: {
      const std::string state = fields.value("state", ""), reason = fields.value("reason", "");
      if (state == "failed")
        return make(AlertCause::failure, "end " + kind_of_failure(reason), "the run has failed: " + reason,
                    now_s);
      if (state == "finished")
        return make(AlertCause::finished, "", fmt::format("the run has finished step {}", number("step")),
                    now_s);
      return std::nullopt;
    }
    case EventKind::checkpoint_damaged:
      return make(AlertCause::corruption, "checkpoint " + number("step"),
                  fmt::format("checkpoint step {} is damaged and does not count: {}", number("step"),
                              fields.value("first", "")),
                  now_s);
    case EventKind::checkpoint_suspect:
      return make(
          AlertCause::corruption, "suspect " + number("step"),
          fmt::format("checkpoint step {} is not used: {}", number("step"), fields.value("reason", "")),
          now_s);
    // If more follows from it, that is a failure.
    case EventKind::replay_differs:
      if (fields.value("answer", "") != "go_on") return std::nullopt;
      return make(AlertCause::corruption,
                  fmt::format("replay {}", dump_json(fields.value("ranks", Json::array()))),
                  fields.value("text", ""), now_s);
    case EventKind::replicas_judged:
      return make(AlertCause::corruption, "replicas " + number("step"), fields.value("text", ""), now_s);
    case EventKind::state_not_verified:
      return make(AlertCause::corruption, "not verified " + number("step"), fields.value("text", ""), now_s);
    case EventKind::loss_spike:
    case EventKind::loss_divergence:
      return make(kind == EventKind::loss_spike ? AlertCause::spike : AlertCause::divergence,
                  fmt::format("{} {} {}", fields.value("of", ""), number("first"), number("first_value")),
                  fields.value("text", ""), now_s);
    default: return std::nullopt;
  }
}

std::vector<Alert> AlertRules::step(const StepLine& line, double now_s) {
  std::vector<Alert> alerts;
  const auto add = [&](std::optional<Alert> alert) {
    if (alert) alerts.push_back(std::move(*alert));
  };
  step_ = line.step;
  moved_s_ = now_s;
  if (spec_.goodput_below_percent > 0 && line.step > furthest_ && std::isfinite(line.step_s)) {
    furthest_ = line.step;
    counted_.emplace_back(now_s, line.step_s);
    forget_old_steps(now_s);
  }
  if (spec_.loss_above > 0 && !std::isnan(line.loss))
    add(limit(AlertCause::loss, "above", line.loss > spec_.loss_above,
              fmt::format("the loss is {:.4g}, above {:g}", line.loss, spec_.loss_above), now_s));
  if (spec_.temperature_above_c > 0 && line.gpus && line.gpus->temperature_c) {
    const Spread<double>& celsius = *line.gpus->temperature_c;
    add(limit(AlertCause::temperature, "above", celsius.max > spec_.temperature_above_c,
              fmt::format("the GPU of rank {}{} is at {:.0f} degrees Celsius, above {:g}", celsius.max_rank,
                          celsius.max_node.empty() ? "" : " on " + celsius.max_node, celsius.max,
                          spec_.temperature_above_c),
              now_s));
  }
  if (spec_.tokens_per_s_below <= 0 || !std::isfinite(line.unix_s)) return alerts;
  recent_.emplace_back(line.unix_s, line.tokens);
  if (recent_.size() <= kRateSteps) return alerts;
  const double seconds = line.unix_s - recent_.front().first;
  const double rate = double(line.tokens - recent_.front().second) / std::max(1e-9, seconds);
  recent_.pop_front();
  add(limit(AlertCause::rate, "below", rate < spec_.tokens_per_s_below,
            fmt::format("over {} steps the run trained {:.4g} tokens/s, less than {:g}", kRateSteps, rate,
                        spec_.tokens_per_s_below),
            now_s));
  return alerts;
}

void AlertRules::forget_old_steps(double now_s) {
  const auto began_s = [](const auto& step) { return step.first - step.second; };
  while (counted_.size() > kGoodputSteps && began_s(counted_[1]) <= now_s - kGoodputS) counted_.pop_front();
}

std::optional<Alert> AlertRules::too_little_goodput(double now_s) {
  if (spec_.goodput_below_percent <= 0 || counted_.size() < kGoodputSteps) return std::nullopt;
  forget_old_steps(now_s);
  const double began_s = counted_.front().first - counted_.front().second;
  if (now_s - began_s < kGoodputS) return std::nullopt;
  double seconds = 0;
  for (const auto& [ended_s, took_s] : counted_) seconds += took_s;
  const double percent = 100 * std::min(1.0, seconds / (now_s - began_s));
  return limit(AlertCause::goodput, "below", percent < spec_.goodput_below_percent,
               fmt::format("{:.1f} % of the last {} went into steps that count, less than {:g} %", percent,
                           short_duration(now_s - began_s), spec_.goodput_below_percent),
               now_s);
}

std::vector<Alert> AlertRules::tick(bool trains, double now_s) {
  if (!trains || !moved_s_) {
    moved_s_ = trains ? std::optional(now_s) : std::nullopt;
    return {};
  }
  std::vector<Alert> alerts;
  if (auto alert = too_little_goodput(now_s)) alerts.push_back(std::move(*alert));
  if (now_s - *moved_s_ >= spec_.silence_seconds)
    if (auto alert = make(AlertCause::silence, step_ > 0 ? std::to_string(step_) : "",
                          fmt::format("no step has ended for {}", short_duration(now_s - *moved_s_)), now_s))
      alerts.push_back(std::move(*alert));
  return alerts;
}

std::optional<Alert> AlertRules::disk(double free, const std::string& path, double now_s) {
  return limit(AlertCause::disk, path, free * 100 < spec_.disk_free_percent,
               fmt::format("{:.1f} % of the disk of {} is free", free * 100, path), now_s);
}

std::set<std::string> sent_keys(const std::vector<std::string>& events) {
  std::set<std::string> keys;
  bool is_over = false;
  for (const std::string& line : events) {
    const Json event = try_parse_json(line);
    if (!event.is_object()) continue;
    const auto kind = event_kind_of(event);
    if (!kind) continue;
    if (*kind == EventKind::end)
      is_over = event.value("state", "") == "failed" || event.value("state", "") == "finished";
    if (*kind == EventKind::supervisor && std::exchange(is_over, false)) keys.clear();
    if (*kind == EventKind::alert_sent || *kind == EventKind::alert_failed) keys.insert(event.value("key", ""));
  }
  return is_over ? std::set<std::string>() : keys;
}

}  // namespace trainctl
