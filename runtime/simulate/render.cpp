#include "runtime/simulate/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace trainctl::simulate {
namespace {

constexpr double kEnough = 0.99;  // of the time, spares are there

double share(Ns part, Ns all) { return all > 0 ? double(part) / double(all) : 0; }

std::string steps_text(int64_t steps, Ns step_time) {
  return fmt::format("{} ({})", count_of(steps, "step"),
                     duration_text(double(steps) * seconds_of(step_time)));
}

std::string saves_text(const SaveSteps& saves, Ns step_time) {
  std::string text;
  const std::pair<const char*, int64_t> tiers[] = {
      {"memory", saves.memory}, {"partner", saves.partner}, {"directory", saves.directory}};
  for (const auto& [tier, steps] : tiers)
    if (steps > 0)
      text += fmt::format("{}{} every {}", text.empty() ? "" : ", ", tier, steps_text(steps, step_time));
  return fmt::format("Saves    {}\n", text.empty() ? "none before the end" : text);
}

std::string time_table(const SimulatedRun& result) {
  std::string text;
  for (size_t i = 0; i < kTimeCauses; ++i)
    if (const Ns time = result.time[Cause(i)]; time > 0)
      text += fmt::format("  {:<13}{:>8.3f} %  {:>10}\n", word_of(Cause(i)), 100 * share(time, result.wall),
                          short_duration(seconds_of(time)));
  return text;
}

std::string failure_table(const SimulationReport& report) {
  std::string text = fmt::format("  {:<14}{:>9}{:>14}{:>10}{:>10}\n", "failures", "number", "ended runs",
                                 "lost", "a failure");
  const auto row = [&](std::string_view name, const KindCost& kind) {
    if (kind.failures == 0 && kind.cost == 0) return;
    text += fmt::format("  {:<14}{:>9}{:>14}{:>8.3f} %{:>10}\n", name, kind.failures, kind.interruptions,
                        100 * share(kind.cost, report.result.wall),
                        duration_text(seconds_of(kind.cost) / double(std::max<int64_t>(1, kind.failures))));
  };
  for (size_t i = 0; i < report.result.kinds.size(); ++i)
    row(report.fleet.failures[i].name, report.result.kinds[i]);
  row("first start", report.result.begin);
  row("other nodes", report.result.regroup);
  return text;
}

std::string survey_line(const char* name, const std::vector<SurveyRow>& rows, int64_t SaveSteps::*steps,
                        const RunModel& run, int64_t now) {
  if (rows.empty()) return "";
  const SurveyRow& best = best_of(rows);
  const auto of_run =
      std::find_if(rows.begin(), rows.end(), [&](const SurveyRow& row) { return row.saves.*steps == now; });
  return fmt::format("  {:<13}{} loses least: {:.3f} % is left; every {}: {:.3f} %\n", name,
                     "every " + steps_text(best.saves.*steps, run.step_time), 100 * best.effective,
                     steps_text(now, run.step_time), of_run == rows.end() ? NAN : 100 * of_run->effective);
}

std::string survey_text(const SimulationReport& report) {
  if (!report.survey || report.survey->failures == 0) return "";
  const Survey& survey = *report.survey;
  const SaveSteps& now = report.result.saves;
  std::string text =
      fmt::format("Intervals on the same {} in {} histories of {}\n", count_of(survey.failures, "failure"),
                  survey.histories, short_duration(seconds_of(survey.length)));
  text += survey_line("memory", survey.memory, &SaveSteps::memory, report.run, now.memory);
  text += survey_line("partner", survey.partner, &SaveSteps::partner, report.run, now.partner);
  text += survey_line("directory", survey.directory, &SaveSteps::directory, report.run, now.directory);
  text += "Spares";
  for (const SurveyRow& row : survey.spares)
    text += fmt::format("{} {}: {:.3f} %", row.spares == survey.spares.front().spares ? "  " : ",",
                        row.spares, 100 * row.effective);
  return text + "\n";
}

std::string cost_text(const SimulationReport& report) {
  if (!report.price || report.result.steps == 0) return "";
  const auto money = [&](double amount) {
    return amount < 1e6 ? fmt::format("{} {:.2f}", report.price->currency, amount)
                        : fmt::format("{} {:.3g} M", report.price->currency, amount / 1e6);
  };
  return fmt::format("Cost     {} for the simulated time, {} per trillion tokens, at {} a GPU-hour ({})\n",
                     money(report.gpu_hours() * report.price->per_gpu_hour),
                     money(report.cost_per_trillion_tokens()), money(report.price->per_gpu_hour),
                     report.price->date);
}

std::string energy_line(const SimulationReport& report) {
  if (!report.power) return "";
  const std::string of_tokens =
      report.result.steps > 0 ? energy_text(report.kwh_per_trillion_tokens()) + " per trillion tokens, " : "";
  return fmt::format("Energy   {} for the simulated time, {}without spare nodes, {}\n",
                     energy_text(report.kwh()), of_tokens, power_text(*report.power));
}

OrderedJson rows_json(const std::vector<SurveyRow>& rows) {
  OrderedJson list = OrderedJson::array();
  for (const SurveyRow& row : rows)
    list.push_back({{"spares", row.spares},
                    {"memory_steps", row.saves.memory},
                    {"partner_steps", row.saves.partner},
                    {"directory_steps", row.saves.directory},
                    {"effective", row.effective}});
  return list;
}

OrderedJson number_or_null(double value) { return std::isfinite(value) ? OrderedJson(value) : OrderedJson(); }

OrderedJson failures_json(const SimulationReport& report) {
  OrderedJson list = OrderedJson::array();
  const auto add = [&](const std::string& name, const std::string& what, const KindCost& kind) {
    list.push_back({{"name", name},
                    {"what", what},
                    {"failures", kind.failures},
                    {"interruptions", kind.interruptions},
                    {"cost_ns", kind.cost}});
  };
  for (size_t i = 0; i < report.result.kinds.size(); ++i)
    add(report.fleet.failures[i].name, report.fleet.failures[i].what, report.result.kinds[i]);
  add("begin", "the first start", report.result.begin);
  add("regroup", "an attempt ended to go on with other nodes", report.result.regroup);
  return list;
}

OrderedJson nodes_out_json(const SimulatedRun& result) {
  // At most so many rows: a picture needs no more.
  constexpr size_t kMost = 2000;
  const size_t every = result.nodes_out.size() / kMost + 1;
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < result.nodes_out.size(); i += every) {
    int most = 0;
    for (size_t k = i; k < std::min(i + every, result.nodes_out.size()); ++k)
      most = std::max(most, result.nodes_out[k].second);
    list.push_back({seconds_of(result.nodes_out[i].first), most});
  }
  return list;
}

}  // namespace

double SimulationReport::gpu_hours() const { return seconds_of(result.wall) / kHourS * fleet_gpus; }

double SimulationReport::days_for_job() const {
  if (result.steps == 0) return NAN;
  return seconds_of(result.wall) / kDayS * double(run.total_steps) / double(result.steps);
}

double SimulationReport::cost_per_trillion_tokens() const {
  return price && result.steps > 0 ? gpu_hours() * price->per_gpu_hour / tokens() * 1e12 : NAN;
}

double SimulationReport::kwh() const {
  return power ? seconds_of(result.wall) / kHourS * run.gpus * power->kwh_of_device_hour : NAN;
}

double SimulationReport::kwh_per_trillion_tokens() const {
  return result.steps > 0 ? kwh() / tokens() * 1e12 : NAN;
}

std::string render_simulation(const SimulationReport& report) {
  const RunModel& run = report.run;
  const SimulatedRun& result = report.result;
  std::string text = fmt::format(
      "Fleet    {} GPUs: {} with {} each and {}; failures of {}, seed {}\n"
      "Time     {}, {} of {} a step: {} tokens{}; all {} of the job take {}\n"
      "Goodput  {:.3f} % of the time is training that counts; {:.3f} % of what a fleet without failures and "
      "saves does\n",
      report.fleet_gpus, count_of(run.nodes, "node"), count_of(run.slots, "rank"),
      count_of(run.spares, "spare"), report.fleet.name, report.seed, short_duration(seconds_of(result.wall)),
      count_of(result.steps, "step"), duration_text(seconds_of(run.step_time)), count_text(report.tokens()),
      result.is_finished ? ", finished" : "",
      count_text(double(run.total_steps) * double(run.tokens_per_step)),
      short_duration(report.days_for_job() * kDayS), 100 * result.goodput(),
      100 * result.effective(run.step_time));
  text += time_table(result);
  if (result.narrowed > 0)
    text += fmt::format("  of training, {:.3f} % by a smaller width\n",
                        100 * share(result.narrowed, result.wall));
  text += failure_table(report);
  text += fmt::format(
      "Restarts {}; from the memory of nodes {}, of partners {}, from the directory {}; {} done again\n",
      count_of(result.attempts, "attempt"), result.loads[size_t(LoadFrom::memory)],
      result.loads[size_t(LoadFrom::partner)], result.loads[size_t(LoadFrom::directory)],
      count_of(result.lost_steps, "step"));
  if (result.persons > 0)
    text += fmt::format("         {} a person had to resume the run, the last time: {}\n",
                        count_of(result.persons, "time"), result.end);
  if (result.wrong_kept > 0)
    text += fmt::format(
        "         {} wrong numbers were found when no checkpoint before them was left: the run goes on with "
        "them; "
        "checkpoint.keep_every_steps keeps some\n",
        count_of(result.wrong_kept, "time"));
  text += saves_text(result.saves, run.step_time);
  text += fmt::format("Nodes    {} spares are enough for {:.0f} % of the time\n", result.spares_for(kEnough),
                      100 * kEnough);
  return text + survey_text(report) + energy_line(report) + cost_text(report);
}

OrderedJson simulation_json(const SimulationReport& report) {
  const SimulatedRun& result = report.result;
  OrderedJson time = OrderedJson::object();
  for (size_t i = 0; i < kTimeCauses; ++i) time[word_of(Cause(i))] = result.time[Cause(i)];
  OrderedJson json{
      {"job", report.run.name},
      {"fleet", report.fleet.name},
      {"source", report.fleet.source},
      {"seed", report.seed},
      {"gpus", report.fleet_gpus},
      {"nodes", report.run.nodes},
      {"spares", report.run.spares},
      {"step_s", seconds_of(report.run.step_time)},
      {"wall_ns", result.wall},
      {"time_ns", std::move(time)},
      {"slowed_ns", result.slowed},
      {"narrowed_ns", result.narrowed},
      {"goodput", result.goodput()},
      {"effective", result.effective(report.run.step_time)},
      {"steps", result.steps},
      {"tokens", report.tokens()},
      {"lost_steps", result.lost_steps},
      {"finished", result.is_finished},
      {"days_for_job", number_or_null(report.days_for_job())},
      {"gpu_hours", report.gpu_hours()},
      {"attempts", result.attempts},
      {"loads",
       {{"memory", result.loads[size_t(LoadFrom::memory)]},
        {"partner", result.loads[size_t(LoadFrom::partner)]},
        {"directory", result.loads[size_t(LoadFrom::directory)]}}},
      {"persons", result.persons},
      {"wrong_kept", result.wrong_kept},
      {"failures", failures_json(report)},
      {"saves",
       {{"memory_steps", result.saves.memory},
        {"partner_steps", result.saves.partner},
        {"directory_steps", result.saves.directory}}},
      {"spares_for_99", result.spares_for(kEnough)},
      {"nodes_out", nodes_out_json(result)},
  };
  if (report.survey)
    json["survey"] = {
        {"histories", report.survey->histories},        {"length_ns", report.survey->length},
        {"failures", report.survey->failures},          {"memory", rows_json(report.survey->memory)},
        {"partner", rows_json(report.survey->partner)}, {"directory", rows_json(report.survey->directory)},
        {"spares", rows_json(report.survey->spares)},   {"grid", rows_json(report.survey->grid)}};
  if (report.power) {
    json["energy"] = energy_json(*report.power, seconds_of(result.wall) / kHourS * report.run.gpus);
    json["energy"]["kwh_per_trillion_tokens"] = number_or_null(report.kwh_per_trillion_tokens());
  }
  if (report.price)
    json["price"] = {{"per_gpu_hour", report.price->per_gpu_hour},
                     {"currency", report.price->currency},
                     {"date", report.price->date},
                     {"total", report.gpu_hours() * report.price->per_gpu_hour},
                     {"per_trillion_tokens", number_or_null(report.cost_per_trillion_tokens())}};
  return json;
}

}  // namespace trainctl::simulate
