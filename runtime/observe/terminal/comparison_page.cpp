// The page of a comparison, for people and as JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/observe/report/report_data.h"
#include "runtime/observe/sparkline.h"
#include "runtime/observe/terminal/difference_table.h"
#include "runtime/observe/terminal/run_comparison.h"
#include "runtime/observe/text_table.h"

namespace trainctl::terminal {
namespace {

using report::RunData;
using report::StepRow;

constexpr int kPageLabel = 12;
constexpr const char *kRed = "\033[31m", *kGreen = "\033[32m";

/// The shortest decimals that name the number, so that those of two numbers differ if the numbers do.
std::string exact(double value) { return fmt::format("{}", value); }

/// "4, 8 and 12"; of many the first and the last.
std::string steps_text(const std::vector<int64_t>& steps) {
  if (steps.size() > 6) return fmt::format("{}, {}, {}, ..., {}", steps[0], steps[1], steps[2], steps.back());
  std::string text;
  for (size_t i = 0; i < steps.size(); ++i)
    text += (i == 0 ? "" : i + 1 == steps.size() ? " and " : ", ") + std::to_string(steps[i]);
  return text;
}

std::string names_text() {
  std::vector<std::string> names;
  for (const ComparedNumber& number : compared_numbers()) names.push_back(number.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

/// What was compared and found, one sentence a line.
std::vector<std::string> bits_lines(const RunComparison& c) {
  std::vector<std::string> lines;
  if (!c.compared_anything())
    return {"nothing to compare: the runs have no step and no checkpoint in common"};
  if (c.common_steps > 0) {
    const std::string what = fmt::format("{} of {} in both ({} to {})", names_text(),
                                         count_of(c.common_steps, "step"), c.first_step, c.last_step);
    if (const auto& d = c.first_difference) {
      lines.push_back(
          fmt::format("different from step {} on: {} {} / {}", d->step, d->name, exact(d->a), exact(d->b)));
      if (const auto& most = c.largest_of_losses)
        lines.push_back(fmt::format("the losses differ most at step {}: by {:.3g}", most->step,
                                    std::abs(most->a - most->b)));
      lines.push_back(
          fmt::format("compared bit for bit: {}; {} equal", what, count_of(c.equal_steps, "step")));
    } else {
      lines.push_back("identical, bit for bit: " + what);
    }
  } else {
    lines.push_back("the runs have no step in common");
  }
  const auto add = [&](const std::vector<int64_t>& steps, const char* verdict) {
    if (steps.empty()) return;
    lines.push_back(fmt::format("{}: the root hash, which covers the whole state, of {} ({})", verdict,
                                count_of(int64_t(steps.size()), "checkpoint"), steps_text(steps)));
  };
  add(c.different_checkpoints, "different");
  add(c.equal_checkpoints, "identical");
  if (c.equal_checkpoints.empty() && c.different_checkpoints.empty())
    lines.push_back("the runs have no checkpoint of the same step");
  return lines;
}

/// A curve of both runs over the steps that either has, with one scale.
class Curve {
 public:
  Curve(const char* name, double StepRow::*value, const RunData& a, const RunData& b, int width)
      : name_(name) {
    int64_t last = 1;
    size_t points = 1;
    for (const RunData* run : {&a, &b}) {
      const std::vector<StepRow>& rows = run->steps.rows();
      if (!rows.empty()) last = std::max(last, rows.back().step);
      points = std::max(points, size_t(std::count_if(rows.begin(), rows.end(), [&](const StepRow& row) {
                          return std::isfinite(row.*value);
                        })));
    }
    width = int(std::min(size_t(width), points));  // fewer points leave gaps
    std::vector<double> both;
    for (const RunData* run : {&a, &b}) {
      Side& side = sides_[run == &b];
      std::vector<double> sums(size_t(width), 0.0), counts(size_t(width), 0.0);
      for (const StepRow& row : run->steps.rows()) {
        if (!std::isfinite(row.*value)) continue;
        const size_t column = size_t(double(row.step - 1) / double(last) * width);
        sums[column] += row.*value, counts[column] += 1;
        if (std::isnan(side.first)) side.first = row.*value;
        side.last = row.*value;
      }
      for (size_t c = 0; c < sums.size(); ++c) side.values.push_back(sums[c] / counts[c]);
      both.insert(both.end(), side.values.begin(), side.values.end());
    }
    std::tie(low_, high_) = range_of(both);
  }
  bool known() const { return std::isfinite(low_); }
  std::string line(int side, const std::string& run, int width_of_names) const {
    const Side& s = sides_[side];
    const auto number = [](double v) {
      return std::isnan(v) ? "-" : std::abs(v) >= 1e4 ? short_number(v) : fmt::format("{:.4g}", v);
    };
    std::string blocks = sparkline(s.values, low_, high_);
    return fmt::format("{:<{}}{} {} {} → {}", side == 0 ? name_ : "", kPageLabel,
                       padded_to(run, width_of_names),
                       blocks, number(s.first), number(s.last));
  }

 private:
  struct Side {
    std::vector<double> values;
    double first = NAN, last = NAN;
  };
  const char* name_;
  Side sides_[2];
  double low_ = NAN, high_ = NAN;
};

double at(const OrderedJson& object, const char* key, const char* inner = nullptr) {
  const auto found = object.find(key);
  if (found == object.end()) return NAN;
  if (inner) return found->is_object() ? at(*found, inner) : NAN;
  return found->is_number() ? found->get<double>() : NAN;
}

/// The rows of numbers: name, value of a run.
struct NumberRow {
  const char* name;
  std::string (*text)(const OrderedJson& run);
};
std::string or_dash(double value, std::string (*text)(double)) {
  return std::isnan(value) ? "-" : text(value);
}
const NumberRow kNumbers[] = {
    {"state", [](const OrderedJson& run) { return run.at("state_text").get<std::string>(); }},
    {"steps",
     [](const OrderedJson& run) {
       return fmt::format("{}/{}", run.at("step").dump(), run.at("total_steps").dump());
     }},
    {"tokens", [](const OrderedJson& run) { return or_dash(at(run["summary"], "tokens"), count_text); }},
    {"loss",
     [](const OrderedJson& run) {
       return or_dash(at(run["summary"], "loss", "value"), [](double v) { return fmt::format("{:.4f}", v); });
     }},
    {"best val loss",
     [](const OrderedJson& run) {
       return or_dash(at(run["summary"], "best_val_loss", "value"),
                      [](double v) { return fmt::format("{:.4f}", v); });
     }},
    {"tokens/s",
     [](const OrderedJson& run) { return or_dash(at(run["summary"], "tokens_per_s"), short_number); }},
    {"mfu",
     [](const OrderedJson& run) {
       return or_dash(at(run["summary"], "mfu"), [](double v) { return fmt::format("{:.1f} %", v * 100); });
     }},
    {"goodput",
     [](const OrderedJson& run) {
       return or_dash(at(run["summary"], "goodput"),
                      [](double v) { return fmt::format("{:.1f} %", v * 100); });
     }},
    {"duration",
     [](const OrderedJson& run) { return or_dash(at(run["summary"], "duration_s"), short_duration); }},
    {"attempts", [](const OrderedJson& run) { return run.at("attempts").dump(); }},
};

/// A fact of the report ("Mesh", "Numerics"); "-" if it has none.
std::string fact(const OrderedJson& run, const char* name) {
  for (const OrderedJson& row : run.at("facts"))
    if (row.at(0) == name) return row.at(1).get<std::string>();
  return "-";
}

void add_lines(std::string& text, const char* label, const std::vector<std::string>& lines) {
  for (size_t i = 0; i < lines.size(); ++i)
    text += fmt::format("{:<{}}{}\n", i ? "" : label, kPageLabel, lines[i]);
}

/// null: the run has no such field.
OrderedJson value_of(const report::SpecRow& row) {
  if (row.value.empty()) return {};
  const bool hidden = try_parse_json(row.value).is_discarded();
  return hidden ? OrderedJson(row.value) : parse_ordered_json(row.value);
}

/// The shown data of the report: one place knows what a run's numbers are.
OrderedJson data_of(const RunData& a, const RunData& b, double now_unix_s) {
  return report::report_json({&a, &b}, now_unix_s, {.steps = 2, .events = 1, .rank_cells = 1});
}

}  // namespace

std::string render_comparison(const RunData& a, const RunData& b, const RunComparison& c, double now_unix_s,
                              const ComparisonView& view) {
  const OrderedJson data = data_of(a, b, now_unix_s);
  const OrderedJson &run_a = data["runs"][0], &run_b = data["runs"][1];
  const int room = view.columns > 0 ? std::max(20, view.columns - kPageLabel) : 0;
  std::string text;
  const int most = room > 0 ? std::max(8, (room - 17) / 2) : 0;  // the names of runs may be long
  TextTable numbers({{.name = ""}, {.name = cut_to(a.id, most)}, {.name = cut_to(b.id, most)}});
  for (const NumberRow& row : kNumbers) numbers.add({row.name, row.text(run_a), row.text(run_b)});
  add_lines(text, "numbers", numbers.lines(room, false));
  for (const auto& [label, name] :
       {std::pair{"mesh", "Mesh"}, {"numerics", "Numerics"}, {"machine", "Machine"}})
    if (fact(run_a, name) != fact(run_b, name))
      add_lines(text, label, {cut_to(fact(run_a, name), room), cut_to(fact(run_b, name), room)});
  add_lines(text, "spec",
            c.spec.empty() ? std::vector<std::string>{"no difference"}
                           : difference_table(a.id, b.id, c.spec, room));
  const int names = std::max(columns_of(a.id), columns_of(b.id));
  const int width = std::clamp((view.columns > 0 ? view.columns : 100) - kPageLabel - names - 24, 8, 60);
  for (const auto& [name, value] : {std::pair{"loss", &StepRow::loss},
                                    {"val loss", &StepRow::val_loss},
                                    {"grad norm", &StepRow::grad_norm},
                                    {"tokens/s", &StepRow::tokens_per_s}}) {
    const Curve curve(name, value, a, b, width);
    if (!curve.known()) continue;
    text += cut_to(curve.line(0, a.id, names), view.columns) + "\n";
    text += cut_to(curve.line(1, b.id, names), view.columns) + "\n";
  }
  std::vector<std::string> bits = bits_lines(c);
  if (view.color && c.compared_anything()) bits[0] = (c.identical() ? kGreen : kRed) + bits[0] + kPlainColor;
  add_lines(text, "bits", bits);
  return text;
}

OrderedJson comparison_json(const RunData& a, const RunData& b, const RunComparison& c, double now_unix_s) {
  const auto difference = [](const std::optional<StepDifference>& d) -> OrderedJson {
    if (!d) return {};
    return {{"step", d->step},
            {"number", d->name},
            {"values", {report::number(d->a, 17), report::number(d->b, 17)}}};
  };
  OrderedJson data = data_of(a, b, now_unix_s), runs = OrderedJson::array();
  for (const OrderedJson& run : data["runs"])
    runs.push_back({{"id", run["id"]},
                    {"state", run["state"]},
                    {"step", run["step"]},
                    {"total_steps", run["total_steps"]},
                    {"attempts", run["attempts"]},
                    {"summary", run["summary"]},
                    {"time", run["time"]}});
  OrderedJson compared = OrderedJson::array(), spec = OrderedJson::array();
  for (const ComparedNumber& number : compared_numbers()) compared.push_back(number.name);
  for (const report::SpecDifference& field : c.spec) {
    OrderedJson sides = OrderedJson::array();
    for (const report::SpecRow& row : field.rows)
      sides.push_back({{"value", value_of(row)}, {"origin", row.origin}});
    spec.push_back({{"path", field.path}, {"runs", std::move(sides)}});
  }
  return {{"identical", c.identical()},
          {"compared_anything", c.compared_anything()},
          {"runs", std::move(runs)},
          {"spec", std::move(spec)},
          {"steps",
           {{"compared", std::move(compared)},
            {"common", c.common_steps},
            {"first", c.first_step},
            {"last", c.last_step},
            {"equal", c.equal_steps},
            {"only", {c.only_a, c.only_b}},
            {"first_difference", difference(c.first_difference)},
            {"largest_difference_of_loss", difference(c.largest_of_losses)}}},
          {"checkpoints", {{"equal", c.equal_checkpoints}, {"different", c.different_checkpoints}}}};
}

}  // namespace trainctl::terminal
