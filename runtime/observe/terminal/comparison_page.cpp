// The page of a comparison, for people and as JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

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
          fmt::format("different from step {} on: {} {} / {}", d->step, d->name, d->text_a(), d->text_b()));
      if (const auto& most = c.largest_of_losses)
        lines.push_back(fmt::format("the losses differ most at step {}: by {:.3g}", most->step,
                                    std::abs(most->a - most->b)));
      lines.push_back(
          fmt::format("compared bit for bit: {}; {} equal", what, count_of(c.equal_steps, "step")));
    } else {
      lines.push_back("identical, bit for bit: " + what);
    }
    if (c.equal_digests > 0)
      lines.push_back(fmt::format("identical: the digest of the whole state after {}",
                                  count_of(c.equal_digests, "step")));
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

/// A curve of each run over the steps that any has, with one scale.
class Curve {
 public:
  Curve(const char* name, double StepRow::*value, const std::vector<const RunData*>& runs, int width)
      : name_(name), sides_(runs.size()) {
    int64_t last = 1;
    size_t points = 1;
    for (const RunData* run : runs) {
      const std::vector<StepRow>& rows = run->steps.rows();
      if (!rows.empty()) last = std::max(last, rows.back().step);
      points = std::max(points, size_t(std::count_if(rows.begin(), rows.end(), [&](const StepRow& row) {
                          return std::isfinite(row.*value);
                        })));
    }
    width = int(std::min(size_t(width), points));  // fewer points leave gaps
    std::vector<double> all;
    for (size_t i = 0; i < runs.size(); ++i) {
      const RunData* run = runs[i];
      Side& side = sides_[i];
      std::vector<double> sums(size_t(width), 0.0), counts(size_t(width), 0.0);
      for (const StepRow& row : run->steps.rows()) {
        if (!std::isfinite(row.*value)) continue;
        const size_t column = size_t(double(row.step - 1) / double(last) * width);
        sums[column] += row.*value, counts[column] += 1;
        if (std::isnan(side.first)) side.first = row.*value;
        side.last = row.*value;
      }
      for (size_t c = 0; c < sums.size(); ++c) side.values.push_back(sums[c] / counts[c]);
      all.insert(all.end(), side.values.begin(), side.values.end());
    }
    std::tie(low_, high_) = range_of(all);
  }
  bool known() const { return std::isfinite(low_); }
  std::string line(size_t side, const std::string& run, int width_of_names) const {
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
  std::vector<Side> sides_;
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
  /// What the better of two runs has more of, negative where it has less; null: neither is better.
  double (*merit)(const OrderedJson& run) = nullptr;
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
     },
     [](const OrderedJson& run) { return -at(run["summary"], "loss", "value"); }},
    {"best val loss",
     [](const OrderedJson& run) {
       return or_dash(at(run["summary"], "best_val_loss", "value"),
                      [](double v) { return fmt::format("{:.4f}", v); });
     },
     [](const OrderedJson& run) { return -at(run["summary"], "best_val_loss", "value"); }},
    {"tokens/s",
     [](const OrderedJson& run) { return or_dash(at(run["summary"], "tokens_per_s"), short_number); },
     [](const OrderedJson& run) { return at(run["summary"], "tokens_per_s"); }},
    {"mfu",
     [](const OrderedJson& run) {
       return or_dash(at(run["summary"], "mfu"), [](double v) { return fmt::format("{:.1f} %", v * 100); });
     },
     [](const OrderedJson& run) { return at(run["summary"], "mfu"); }},
    {"goodput",
     [](const OrderedJson& run) {
       return or_dash(at(run["summary"], "goodput"),
                      [](double v) { return fmt::format("{:.1f} %", v * 100); });
     },
     [](const OrderedJson& run) { return at(run["summary"], "goodput"); }},
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
OrderedJson data_of(const std::vector<const RunData*>& runs, double now_unix_s) {
  return report::report_json(runs, now_unix_s, {.steps = 2, .events = 1, .rank_cells = 1});
}

}  // namespace

namespace {

/// The run that is better than all others in a number; -1: there is none.
int best_of(const NumberRow& row, const OrderedJson& runs) {
  std::vector<std::pair<double, int>> merits;
  for (size_t i = 0; row.merit && i < runs.size(); ++i)
    if (const double merit = row.merit(runs[i]); std::isfinite(merit)) merits.emplace_back(merit, int(i));
  std::sort(merits.rbegin(), merits.rend());
  return merits.size() < 2 || merits[0].first == merits[1].first ? -1 : merits[0].second;
}

/// A row for each number and a column for each run; on a narrow terminal a line for each number.
std::vector<std::string> number_lines(const OrderedJson& data, const std::vector<std::string>& names,
                                      int room) {
  std::vector<TextColumn> columns{{.name = ""}};
  std::vector<int> widths{0};
  for (const std::string& name : names) {
    columns.push_back({.name = name});
    widths.push_back(columns_of(name));
  }
  std::vector<std::vector<std::string>> rows;
  for (const NumberRow& row : kNumbers) {
    rows.push_back({row.name});
    for (const OrderedJson& run : data["runs"]) rows.back().push_back(row.text(run));
    if (const int best = best_of(row, data["runs"]); best >= 0) rows.back()[size_t(best) + 1] += " ✓";
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], columns_of(rows.back()[i]));
  }
  const int wide = std::accumulate(widths.begin(), widths.end(), 2 * int(names.size()));
  std::vector<std::string> lines;
  if (room > 0 && wide > room) {
    lines.push_back(cut_to(fmt::format("{}", fmt::join(names, " / ")), room));
    for (const auto& row : rows)
      lines.push_back(
          cut_to(fmt::format("{} {}", row[0], fmt::join(row.begin() + 1, row.end(), " / ")), room));
    return lines;
  }
  TextTable table(std::move(columns));
  for (auto& row : rows) table.add(std::move(row));
  return table.lines(room, false);
}

/// A fact where the runs differ in it.
void add_fact(std::string& text, const char* label, const char* name, const OrderedJson& data, int room) {
  std::vector<std::string> facts;
  for (const OrderedJson& run : data["runs"]) facts.push_back(cut_to(fact(run, name), room));
  if (std::any_of(facts.begin(), facts.end(), [&](const std::string& f) { return f != facts[0]; }))
    add_lines(text, label, facts);
}

}  // namespace

std::string render_comparison(const std::vector<const RunData*>& runs, double now_unix_s,
                              const ComparisonView& view) {
  const OrderedJson data = data_of(runs, now_unix_s);
  const int room = view.columns > 0 ? std::max(20, view.columns - kPageLabel) : 0;
  const int most = room > 0 ? std::max(8, (room - 17) / int(runs.size())) : 0;  // names of runs may be long
  std::vector<std::string> ids, shown;
  std::vector<std::vector<report::SpecRow>> specs;
  int names = 0;
  for (const RunData* run : runs) {
    ids.push_back(run->id);
    shown.push_back(cut_to(run->id, most));
    specs.push_back(run->spec);
    names = std::max(names, columns_of(run->id));
  }
  std::string text;
  add_lines(text, "numbers", number_lines(data, shown, room));
  for (const auto& [label, name] :
       {std::pair{"mesh", "Mesh"}, {"numerics", "Numerics"}, {"machine", "Machine"}})
    add_fact(text, label, name, data, room);
  const std::vector<report::SpecDifference> spec = report::spec_differences(specs);
  add_lines(text, "spec",
            spec.empty() ? std::vector<std::string>{"no difference"} : difference_table(ids, spec, room));
  const int width = std::clamp((view.columns > 0 ? view.columns : 100) - kPageLabel - names - 24, 8, 60);
  for (const auto& [name, value] : {std::pair{"loss", &StepRow::loss},
                                    {"val loss", &StepRow::val_loss},
                                    {"grad norm", &StepRow::grad_norm},
                                    {"tokens/s", &StepRow::tokens_per_s}}) {
    const Curve curve(name, value, runs, width);
    if (!curve.known()) continue;
    for (size_t i = 0; i < runs.size(); ++i)
      text += cut_to(curve.line(i, ids[i], names), view.columns) + "\n";
  }
  for (size_t i = 1; i < runs.size(); ++i) {
    const RunComparison c = compare_runs(*runs[0], *runs[i]);
    std::vector<std::string> bits = bits_lines(c);
    if (runs.size() > 2) bits[0] = fmt::format("{} and {}: {}", ids[0], ids[i], bits[0]);
    if (view.color && c.compared_anything())
      bits[0] = (c.identical() ? kGreen : kRed) + bits[0] + kPlainColor;
    add_lines(text, i == 1 ? "bits" : "", bits);
  }
  return text;
}

OrderedJson comparison_json(const RunData& a, const RunData& b, const RunComparison& c, double now_unix_s) {
  const auto difference = [](const std::optional<StepDifference>& d) -> OrderedJson {
    if (!d) return {};
    OrderedJson json = {{"step", d->step},
                        {"number", d->name},
                        {"values", {report::number(d->a, 17), report::number(d->b, 17)}}};
    if (d->digests) json["values"] = {OrderedJson(), OrderedJson()};
    if (d->digests) json["digests"] = {d->text_a(), d->text_b()};
    return json;
  };
  OrderedJson data = data_of({&a, &b}, now_unix_s), runs = OrderedJson::array();
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
  for (const report::SpecDifference& field : report::spec_differences({a.spec, b.spec})) {
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
            {"equal_digests", c.equal_digests},
            {"only", {c.only_a, c.only_b}},
            {"first_difference", difference(c.first_difference)},
            {"largest_difference_of_loss", difference(c.largest_of_losses)}}},
          {"checkpoints", {{"equal", c.equal_checkpoints}, {"different", c.different_checkpoints}}}};
}

}  // namespace trainctl::terminal
