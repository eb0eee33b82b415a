#include "runtime/observe/terminal/top_frame.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "runtime/base/error.h"
#include "runtime/run/record/journal.h"

namespace trainctl::terminal {
namespace {

using report::RunData;
using report::StepRow;

/// Parts of a step are means over so many steps.
constexpr size_t kMeanOver = StepPace::kMeanOver;
/// Enough lines to find some that concern a person.
constexpr int kEventLines = 60;

/// NaN: not known.
double mean_step_s(const std::vector<StepRow>& rows) {
  const double mean_s = report::pace_of(rows).mean_s();
  return std::isnan(mean_s) && !rows.empty() ? rows.back().step_s : mean_s;
}

/// Means over the newest steps whose lines say their parts.
std::vector<std::pair<const char*, double>> mean_phases(const std::vector<StepRow>& rows) {
  std::vector<std::pair<const char*, double>> phases;
  for (const auto& [name, phase] : report::kPhases) {
    double sum = 0;
    int steps = 0;
    bool known = false;
    for (size_t r = rows.size(); r-- > 0 && rows.size() - r <= kMeanOver;) {
      if (!std::isfinite(rows[r].phases.forward_s)) continue;
      ++steps;
      if (!std::isfinite(rows[r].phases.*phase)) continue;
      sum += rows[r].phases.*phase;
      known = true;
    }
    if (known) phases.emplace_back(name, sum / steps);
  }
  return phases;
}

void take_rows(const std::vector<StepRow>& rows, TopFrame& frame) {
  const size_t first = rows.size() > TopFrame::kMostLosses ? rows.size() - TopFrame::kMostLosses : 0;
  for (size_t i = first; i < rows.size(); ++i) frame.losses.push_back(rows[i].loss);
  for (auto row = rows.rbegin(); row != rows.rend(); ++row)
    if (row->evaluated) {
      frame.val_loss = row->val_loss;
      frame.val_step = row->step;
      break;
    }
  frame.phases = mean_phases(rows);
  frame.step_s = mean_step_s(rows);
}

}  // namespace

TopFrame top_frame(const RunData& run, report::RankColumn ranks, double now_unix_s) {
  TopFrame frame{.id = run.id, .supervised = run.supervised, .now_unix_s = now_unix_s};
  if (run.status) frame.status = *run.status;
  frame.last = with_times(frame.status.last_step, run.steps.newest_timed());
  const std::vector<StepRow>& rows = run.steps.rows();
  take_rows(rows, frame);
  const bool goes_on = run.supervised && run.status && !run.status->ended();
  frame.goodput = ledger_of(run.time, goes_on ? now_unix_s : NAN).goodput();
  if (goes_on) frame.left_s = double(frame.status.total_steps - frame.status.step) * frame.step_s;
  if (run.job) frame.stages = run.job->parallelism.pipeline;
  if (run.identity) frame.numerics = run.identity->numerics;
  frame.ranks = std::move(ranks);
  frame.notes = run.notes;
  return frame;
}

report::RankColumn newest_ranks(FileSystem& fs, const RunDirectory& run) {
  const std::string path = run.file("metrics.ranks.jsonl");
  if (!fs.exists(path)) return {};
  const auto file = fs.open_read(path);
  const uint64_t size = file->size();
  constexpr uint64_t kFirst = 64 << 10, kMost = 64 << 20;
  for (uint64_t window = kFirst; window <= kMost; window *= 4) {
    const uint64_t begin = size > window ? size - window : 0;
    std::string text(size - begin, '\0');
    file->read_at(begin, std::as_writable_bytes(std::span(text)));
    const size_t end = text.rfind('\n');
    const size_t before =
        end == std::string::npos || end == 0 ? std::string::npos : text.rfind('\n', end - 1);
    if (end == std::string::npos || (before == std::string::npos && begin > 0)) {
      if (begin == 0) break;
      continue;
    }
    report::RankGrid grid;
    const size_t first = before == std::string::npos ? 0 : before + 1;
    grid.take(std::string_view(text).substr(first, end - first));
    return grid.columns().empty() ? report::RankColumn{} : grid.columns().begin()->second;
  }
  return {};
}

TopFrame TopReader::read(bool supervised, double now_unix_s) {
  const RunData& run = reader_.read(supervised);
  report::RankColumn ranks;
  std::string problem;
  try {
    ranks = newest_ranks(fs_, run_);
  } catch (const Error& error) {
    problem = error.what();  // it was replaced meanwhile
  }
  TopFrame frame = top_frame(run, std::move(ranks), now_unix_s);
  if (!problem.empty()) frame.notes.push_back(problem);
  const std::string events = tail_of(run_.events(), kEventLines);
  for (size_t begin = 0; begin < events.size();) {
    const size_t end = std::min(events.find('\n', begin), events.size());
    frame.events.push_back(events.substr(begin, end - begin));
    begin = end + 1;
  }
  return frame;
}

}  // namespace trainctl::terminal
