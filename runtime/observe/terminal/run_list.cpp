#include "runtime/observe/terminal/run_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/units.h"
#include "runtime/observe/text_table.h"
#include "runtime/run/record/known_status.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl::terminal {
namespace {

void take_status(ListedRun& run, const RunStatus& s) {
  const bool lost = !run.supervised && !s.ended() && s.state != RunState::submitted;
  run.state = lost ? "lost" : std::string(word_of(s.state));
  run.ranks = int(s.ranks.size());
  run.restarts = s.restarts;
  run.exit_code = s.exit_code;
  run.step = s.step;
  run.total_steps = s.total_steps;
  run.saved_step = s.saved_step;
  run.loss = s.last_step.loss;
  run.updated_unix_s = s.updated_unix_s;
}

const char* color_of(const ListedRun& run) {
  if (run.state == "failed" || run.state == "lost" || run.state == "damaged") return "\033[31m";
  if (run.supervised) return "\033[32m";
  return "";
}

OrderedJson known(double value) { return std::isfinite(value) ? OrderedJson(value) : OrderedJson(); }

}  // namespace

ListedRun listed_run(FileSystem& fs, const RunDirectory& run, bool supervised) {
  ListedRun listed{.id = folder_name(run),
                   .directory = run.path,
                   .state = "created",
                   .supervised = supervised,
                   .loss = NAN};
  try {
    if (const auto identity = read_identity(fs, run))
      listed.created_unix_s = listed.updated_unix_s = identity->created_unix_s;
    if (const auto status = status_of_run(fs, run))
      take_status(listed, status->status);
    else if (supervised)
      listed.state = "starting";
  } catch (const Error& error) {
    listed.state = "damaged";
    listed.note = error.what();
  }
  return listed;
}

std::vector<ListedRun> list_runs(FileSystem& fs, const std::string& root,
                                 const std::function<bool(const RunDirectory&)>& supervised) {
  std::vector<ListedRun> runs;
  for (const std::string& id : run_ids(fs, root)) {
    const RunDirectory run{root + "/" + id};
    runs.push_back(listed_run(fs, run, supervised(run)));
  }
  std::stable_sort(runs.begin(), runs.end(), [](const ListedRun& a, const ListedRun& b) {
    return a.updated_unix_s > b.updated_unix_s;
  });
  return runs;
}

std::string render_run_list(const std::vector<ListedRun>& runs, double now, int columns, bool color) {
  const auto ago = [&](double unix_s) {
    return unix_s > 0 ? short_duration(std::max(0.0, now - unix_s)) : std::string("-");
  };
  TextTable table({{.name = "run", .kept = 9},
                   {.name = "state", .kept = 8},
                   {.name = "step", .right = true, .kept = 7},
                   {.name = "loss", .right = true, .kept = 6},
                   {.name = "saved", .right = true, .kept = 3, .only_if_known = true},
                   {.name = "ranks", .right = true, .kept = 1, .only_if_known = true},
                   {.name = "restarts", .right = true, .kept = 0, .only_if_known = true},
                   {.name = "age", .right = true, .kept = 4},
                   {.name = "updated", .right = true, .kept = 5}});
  for (const ListedRun& run : runs)
    table.add({run.id, run.state, fmt::format("{}/{}", run.step, run.total_steps),
               std::isnan(run.loss) ? "-" : fmt::format("{:.4f}", run.loss),
               run.saved_step < 0 ? "-" : std::to_string(run.saved_step),
               run.ranks == 0 ? "-" : std::to_string(run.ranks),
               run.restarts == 0 ? "-" : std::to_string(run.restarts), ago(run.created_unix_s),
               ago(run.updated_unix_s)},
              color_of(run));
  std::string text;
  for (const std::string& line : table.lines(columns, color)) text += line + "\n";
  return text;
}

OrderedJson run_list_json(const std::vector<ListedRun>& runs) {
  OrderedJson list = OrderedJson::array();
  for (const ListedRun& run : runs)
    list.push_back({{"id", run.id},
                    {"directory", run.directory},
                    {"state", run.state},
                    {"supervised", run.supervised},
                    {"step", run.step},
                    {"total_steps", run.total_steps},
                    {"saved_step", run.saved_step},
                    {"loss", known(run.loss)},
                    {"ranks", run.ranks},
                    {"restarts", run.restarts},
                    {"exit_code", run.exit_code},
                    {"created", run.created_unix_s},
                    {"updated", run.updated_unix_s},
                    {"note", run.note}});
  return list;
}

}  // namespace trainctl::terminal
