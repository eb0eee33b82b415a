#include "runtime/observe/report/step_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "runtime/base/json.h"

namespace trainctl::report {
namespace {

using Column = std::function<OrderedJson(const StepRow&)>;

constexpr int kExact = 7;  // digits of a float
/// Texts on numbers that are not finite: a run of many is one stretch to the eye.
constexpr size_t kMostOdd = 200;

/// Adds a column, unless all of it is null.
void add(OrderedJson& columns, const char* name, const std::vector<StepRow>& rows,
         const std::vector<size_t>& shown, const Column& value) {
  OrderedJson column = OrderedJson::array();
  bool known = false;
  for (const size_t i : shown) {
    column.push_back(value(rows[i]));
    known |= !column.back().is_null();
  }
  if (known) columns[name] = std::move(column);
}

/// The columns that place a step on the axes.
void add_axes(OrderedJson& columns, const std::vector<StepRow>& rows, const std::vector<size_t>& shown,
              double begin_unix_s) {
  columns["step"] = OrderedJson::array();
  for (const size_t i : shown) columns["step"].push_back(rows[i].step);
  add(columns, "tokens", rows, shown, [](const StepRow& r) { return number(r.tokens, 15); });
  add(columns, "t", rows, shown, [&](const StepRow& r) -> OrderedJson {
    return std::isnan(r.unix_s) ? OrderedJson()
                                : number(std::round((r.unix_s - begin_unix_s) * 100) / 100, 12);
  });
}

const char* name_of_odd(double value) { return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

/// Losses and gradient norms that are not finite: [[step, "loss", "nan"], ...].
OrderedJson odd_numbers(const std::vector<StepRow>& rows) {
  OrderedJson odd = OrderedJson::array();
  const auto note = [&](const StepRow& row, const char* name, double value) {
    if (!std::isfinite(value) && odd.size() < kMostOdd) odd.push_back({row.step, name, name_of_odd(value)});
  };
  for (const StepRow& row : rows) {
    note(row, "loss", row.loss);
    note(row, "grad_norm", row.grad_norm);
    if (row.evaluated) note(row, "val_loss", row.val_loss);
  }
  return odd;
}

/// {"web": column}, each as long as the other columns.
OrderedJson source_columns(const StepRows& steps, const std::vector<size_t>& shown) {
  OrderedJson columns = OrderedJson::object();
  for (size_t i = 0; i < steps.sources().size(); ++i)
    add(columns, steps.sources()[i].c_str(), steps.rows(), shown, [i](const StepRow& r) {
      return i < r.source_losses.size() ? number(double(r.source_losses[i]), kExact) : OrderedJson();
    });
  return columns;
}

OrderedJson evaluations(const std::vector<StepRow>& all, double begin_unix_s, size_t most) {
  std::vector<StepRow> rows;
  for (const StepRow& row : all)
    if (row.evaluated) rows.push_back(row);
  // The rule for steps looks at the training loss.
  for (StepRow& row : rows) row.loss = row.val_loss;
  const std::vector<size_t> shown = shown_rows(rows, most);
  OrderedJson columns;
  add_axes(columns, rows, shown, begin_unix_s);
  add(columns, "loss", rows, shown, [](const StepRow& r) { return number(r.val_loss, kExact); });
  return columns;
}

/// {"hellaswag_val.bin": columns}
OrderedJson task_curves(const std::vector<ScoredStep>& scored, double begin_unix_s, size_t most) {
  std::vector<std::pair<std::string, std::vector<StepRow>>> curves;
  for (const ScoredStep& step : scored)
    for (const TaskScore& task : step.tasks) {
      auto curve = std::find_if(curves.begin(), curves.end(),
                                [&](const auto& known) { return known.first == task.name; });
      if (curve == curves.end()) curve = curves.insert(curve, {task.name, {}});
      curve->second.push_back(step.row);
      // The rule for steps looks at the loss.
      curve->second.back().loss = task.accuracy, curve->second.back().val_loss = task.accuracy_of_sums;
    }
  OrderedJson all;
  for (const auto& [name, rows] : curves) {
    const std::vector<size_t> shown = shown_rows(rows, most);
    OrderedJson& columns = all[name];
    add_axes(columns, rows, shown, begin_unix_s);
    add(columns, "accuracy", rows, shown, [](const StepRow& r) { return number(r.loss, kExact); });
    add(columns, "accuracy_of_sums", rows, shown,
        [](const StepRow& r) { return number(r.val_loss, kExact); });
  }
  return all;
}

}  // namespace

StepRow row_of(std::string_view text) { return row_of(step_view(text)); }

StepRow row_of(const StepLine& line) {
  StepRow row{.step = line.step,
              .attempt = line.attempt,
              .skipped = line.skipped,
              .evaluated = line.val_loss.has_value(),
              .unix_s = line.unix_s,
              .tokens = double(line.tokens),
              .loss = line.loss,
              .val_loss = line.val_loss.value_or(StepRow::kAbsent),
              .grad_norm = line.grad_norm,
              .lr = line.lr,
              .step_s = line.step_s,
              .tokens_per_s = line.tokens_per_s,
              .mfu = line.mfu};
  if (!line.state_digest.empty()) row.state_digest = std::strtoull(line.state_digest.c_str(), nullptr, 16);
  if (line.phases) row.phases = *line.phases;
  for (const double part : {row.phases.experts_s, row.phases.context_s})
    if (std::isfinite(part)) row.phases.communication_s -= part;
  if (const Spread<double>* compute = line.compute()) {
    row.compute_median_s = compute->median;
    row.compute_max_s = compute->max;
    row.compute_max_rank = compute->max_rank;
  }
  if (line.ranks && line.ranks->peak_memory_bytes)
    row.peak_memory_bytes = double(line.ranks->peak_memory_bytes->max);
  return row;
}

std::vector<float> StepRows::losses_of(const std::vector<SourceLoss>& sources) {
  std::vector<float> losses;
  for (const SourceLoss& source : sources) {
    const auto known = std::find(sources_.begin(), sources_.end(), source.name);
    const auto at = size_t(known - sources_.begin());
    if (known == sources_.end()) sources_.push_back(source.name);
    if (losses.size() <= at) losses.resize(at + 1, std::numeric_limits<float>::quiet_NaN());
    losses[at] = float(source.loss);
  }
  return losses;
}

void StepRows::take(const StepLine& line) {
  StepRow row = row_of(line);
  if (row.step <= 0) {
    ++damaged_;
    return;
  }
  for (; !rows_.empty() && rows_.back().step >= row.step; rows_.pop_back()) ++replaced_;
  row.source_losses = losses_of(line.sources);
  rows_.push_back(row);
  while (!scored_.empty() && scored_.back().row.step >= row.step) scored_.pop_back();
  if (!line.tasks.empty()) scored_.push_back({row, line.tasks});
  if (line.ranks) newest_timed_ = line;
}

StepPace pace_of(const std::vector<StepRow>& rows) {
  StepPace pace;
  const size_t first = rows.size() > StepPace::kMeanOver ? rows.size() - StepPace::kMeanOver - 1 : 0;
  for (size_t i = first; i < rows.size(); ++i) pace.step(rows[i].attempt, rows[i].unix_s);
  return pace;
}

std::vector<size_t> shown_rows(const std::vector<StepRow>& rows, size_t most) {
  std::vector<size_t> shown;
  constexpr size_t kOfStretch = 5;
  if (rows.size() <= most || most < 2 * kOfStretch) {
    for (size_t i = 0; i < rows.size(); ++i) shown.push_back(i);
    return shown;
  }
  const size_t stretches = most / kOfStretch;
  for (size_t s = 0; s < stretches; ++s) {
    const size_t begin = rows.size() * s / stretches, end = rows.size() * (s + 1) / stretches;
    const auto take_most = [&](auto of) {
      size_t best = begin;
      for (size_t i = begin; i < end; ++i)
        if (of(rows[i]) > of(rows[best]) || std::isnan(of(rows[best]))) best = i;
      shown.push_back(best);
    };
    shown.push_back(begin);
    take_most([](const StepRow& r) { return r.loss; });
    take_most([](const StepRow& r) { return -r.loss; });
    take_most([](const StepRow& r) { return r.grad_norm; });
    take_most([](const StepRow& r) { return r.step_s; });
  }
  shown.push_back(rows.size() - 1);
  std::sort(shown.begin(), shown.end());
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  return shown;
}

OrderedJson number(double value, int digits) {
  if (!std::isfinite(value)) return {};
  const double rounded = std::strtod(fmt::format("{:.{}g}", value, digits).c_str(), nullptr);
  if (rounded == std::floor(rounded) && std::abs(rounded) < 9e15) return int64_t(rounded);
  return rounded;
}

OrderedJson curves_json(const StepRows& steps, double begin_unix_s, size_t most) {
  const std::vector<StepRow>& rows = steps.rows();
  const std::vector<size_t> shown = shown_rows(rows, most);
  OrderedJson columns;
  add_axes(columns, rows, shown, begin_unix_s);
  const auto value = [&](const char* name, double StepRow::*member, int digits = 5) {
    add(columns, name, rows, shown, [=](const StepRow& r) { return number(r.*member, digits); });
  };
  add(columns, "attempt", rows, shown,
      [](const StepRow& r) { return r.attempt ? OrderedJson(r.attempt) : OrderedJson(); });
  value("loss", &StepRow::loss, kExact);
  value("grad_norm", &StepRow::grad_norm, kExact);
  value("lr", &StepRow::lr, kExact);
  value("tokens_per_s", &StepRow::tokens_per_s);
  value("mfu", &StepRow::mfu);
  value("step_s", &StepRow::step_s);
  value("compute_median_s", &StepRow::compute_median_s);
  value("compute_max_s", &StepRow::compute_max_s);
  add(columns, "compute_max_rank", rows, shown, [](const StepRow& r) {
    return r.compute_max_rank < 0 ? OrderedJson() : OrderedJson(r.compute_max_rank);
  });
  value("peak_memory_bytes", &StepRow::peak_memory_bytes, 6);
  for (const auto& [name, phase] : kPhases)
    add(columns, (std::string(name) + "_s").c_str(), rows, shown,
        [phase = phase](const StepRow& r) { return number(r.phases.*phase, 4); });
  OrderedJson result{{"steps", rows.size()}, {"columns", std::move(columns)}};
  if (OrderedJson val = evaluations(rows, begin_unix_s, most); !val["step"].empty())
    result["evaluations"] = val;
  if (OrderedJson sources = source_columns(steps, shown); !sources.empty())
    result["sources"] = std::move(sources);
  if (OrderedJson tasks = task_curves(steps.scored(), begin_unix_s, most); !tasks.empty())
    result["tasks"] = std::move(tasks);
  if (OrderedJson odd = odd_numbers(rows); !odd.empty()) result["not_finite"] = std::move(odd);
  OrderedJson skipped = OrderedJson::array();
  for (const StepRow& row : rows)
    if (row.skipped && skipped.size() < kMostOdd) skipped.push_back(row.step);
  if (!skipped.empty()) result["skipped"] = std::move(skipped);
  return result;
}

}  // namespace trainctl::report
