#include "runtime/observe/report/run_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/observe/report/plan_view.h"
#include "runtime/run/record/known_status.h"
#include "runtime/run/record/line_follower.h"
#include "runtime/run/record/time_reader.h"

namespace trainctl::report {
namespace {

std::string text_of(FileSystem& fs, const std::string& path) try {
  return fs.exists(path) ? fs.read_text(path) : "";
} catch (const Error&) {
  return "";
}

OrderedJson object_of(const std::string& text) try {
  return parse_ordered_json(text);
} catch (const JsonError&) {
  return {};
}

}  // namespace

/// The files with a line for each thing that happened, and what was read of the others.
struct RunReader::Files {
  Files(FileSystem& fs, const RunDirectory& run)
      : metrics(fs, run.metrics()),
        events(fs, run.events()),
        earlier_ranks(fs, run.file("metrics.ranks.1.jsonl")),
        ranks(fs, run.file("metrics.ranks.jsonl")),
        earlier_experts(fs, run.file("metrics.experts.1.jsonl")),
        experts(fs, run.file("metrics.experts.jsonl")) {}
  LineFollower metrics, events, earlier_ranks, ranks, earlier_experts, experts;
  std::string job, origins;
  std::vector<std::string> lost;  ///< names of the files with steps that were given up
  std::vector<std::string> spec_notes;
};

RunReader::RunReader(FileSystem& fs, RunDirectory run, Parts parts)
    : fs_(fs), run_(std::move(run)), parts_(parts), files_(std::make_unique<Files>(fs_, run_)) {
  data_.id = folder_name(run_);
  data_.directory = run_.path;
}
RunReader::~RunReader() = default;

void RunReader::read_spec() {
  const std::string job = text_of(fs_, run_.job()), origins = text_of(fs_, run_.file("origins.json"));
  if (job == files_->job && origins == files_->origins) return;
  files_->job = job, files_->origins = origins;
  files_->spec_notes.clear();
  data_.spec = spec_rows(object_of(job), object_of(origins));
  data_.plan = {};
  data_.job.reset();
  const ParsedJob parsed = parse_job({.text = job, .file = run_.job()});
  if (!parsed.ok()) {
    files_->spec_notes.push_back(
        job.empty() ? "job.json is missing: the report has no spec, plan or mesh."
                    : "job.json cannot be used by this version: the report has no plan and no mesh.");
    return;
  }
  data_.job = parsed.job;
  if (!parts_.plan) return;
  try {
    data_.plan = plan_view(parsed);
  } catch (const Error& error) {
    files_->spec_notes.push_back(fmt::format("There is no plan of this job: {}.", error.what()));
  }
}

void RunReader::read_lines() {
  Files& f = *files_;
  const std::vector<std::string> lost = given_up_metrics(fs_, run_);
  const bool went_back = !f.metrics.still_there() || lost != f.lost;
  if (went_back) {
    f.metrics.rewind();
    data_.steps = {};
    data_.time.forget_steps();
    for (const std::string& name : lost)
      LineFollower(fs_, run_.path + "/" + name).read([&](std::string_view line) {
        data_.time.step(step_view(line), false);
      });
    f.lost = lost;
  }
  f.metrics.read([&](std::string_view line) {
    const StepLine step = step_view(line);
    data_.steps.take(step);
    data_.time.step(step, true);
  });
  if (!f.events.still_there()) f.events.rewind(), data_.happenings = {}, data_.time.forget_events();
  f.events.read([&](std::string_view line) {
    if (const Json* event = data_.happenings.take(line)) data_.time.event(*event);
  });
  if (!parts_.ranks) return;
  if (!f.ranks.still_there() || !f.earlier_ranks.still_there()) {
    f.ranks.rewind(), f.earlier_ranks.rewind();
    data_.ranks = {};
  }
  f.earlier_ranks.read([&](std::string_view line) { data_.ranks.take(line); });
  f.ranks.read([&](std::string_view line) { data_.ranks.take(line); });
  if (!f.experts.still_there() || !f.earlier_experts.still_there()) {
    f.experts.rewind(), f.earlier_experts.rewind();
    data_.experts = {};
  }
  f.earlier_experts.read([&](std::string_view line) { data_.experts.take(line); });
  f.experts.read([&](std::string_view line) { data_.experts.take(line); });
}

const RunData& RunReader::read(bool supervised) {
  data_.supervised = supervised;
  data_.notes.clear();
  read_spec();
  data_.notes = files_->spec_notes;
  const auto note = [&](std::string text) { data_.notes.push_back(std::move(text)); };
  try {
    data_.identity = read_identity(fs_, run_);
    if (const auto known = status_of_run(fs_, run_)) {
      data_.status = known->status;
      if (!known->note.empty()) note(known->note + ".");
    }
  } catch (const Error& error) {
    note(fmt::format("The state of the run is not known: {}.", error.what()));
  }
  read_lines();
  const Files& f = *files_;
  if (!f.metrics.exists()) note("metrics.jsonl is missing: no step has ended, or the file was removed.");
  if (f.metrics.incomplete_bytes() > 0) {
    const char* why = supervised ? "it is being written" : "a crash cut it off";
    note(fmt::format("The last line of metrics.jsonl is incomplete ({}) and left out.", why));
  }
  const auto damaged = [&](const char* file, int64_t lines) {
    if (lines > 0)
      note(fmt::format("{} of {} cannot be read and {} left out.", count_of(lines, "line"), file,
                       lines == 1 ? "is" : "are"));
  };
  damaged("metrics.jsonl", data_.steps.damaged());
  damaged("events.jsonl", data_.happenings.damaged());
  damaged("metrics.ranks.jsonl", data_.ranks.damaged());
  damaged("metrics.experts.jsonl", data_.experts.damaged());
  return data_;
}

}  // namespace trainctl::report
