#include "runtime/observe/terminal/run_logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "runtime/base/digits.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/run/record/crash_record.h"
#include "runtime/run/record/journal.h"
#include "runtime/run/record/run_status.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl::terminal {
namespace {

std::optional<int> number_of(std::string_view text) {
  const auto value = whole_number(text, std::numeric_limits<int>::max());
  return value ? std::optional(int(*value)) : std::nullopt;
}

/// The number in a name such as rank-12.log.
std::optional<int> number_in(std::string_view name, std::string_view before, std::string_view behind) {
  if (!name.starts_with(before) || !name.ends_with(behind) || name.size() < before.size() + behind.size())
    return std::nullopt;
  return number_of(name.substr(before.size(), name.size() - before.size() - behind.size()));
}

/// The time at the beginning of a line, as headings, agents and supervisors write it; 0: none.
double time_at_begin(std::string_view line) {
  for (const std::string_view mark : {"--- ", "t="})
    if (line.starts_with(mark)) {
      line.remove_prefix(mark.size());
      break;
    }
  std::tm time{};
  constexpr size_t kLength = 20;  // 2024-05-03T12:00:00Z
  const std::string text(line.substr(0, kLength));
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  return end && size_t(end - text.c_str()) == kLength ? double(::timegm(&time)) : 0;
}

/// What a file of logs/ or of a failure is the log of; nullopt: it is no log.
std::optional<LogLine> form_of(const std::string& name) {
  if (const auto rank = number_in(name, "rank-", ".log"))
    return LogLine{.source = fmt::format("rank {}", *rank), .rank = *rank};
  for (const char* behind : {".log", ".out"})
    if (name.ends_with(behind)) {
      std::string source = name.substr(0, name.size() - std::string_view(behind).size());
      for (const char* kind : {"node-", "supervisor-", "slurm-"})
        if (source.starts_with(kind)) source[std::string_view(kind).size() - 1] = ' ';
      return LogLine{.source = source};
    }
  return std::nullopt;
}

std::string crash_record_text(const CrashRecord& record) {
  std::string text = fmt::format("{}: {}", name_of(record.code), record.message);
  if (record.activity) text += "; while: " + render(*record.activity);
  if (!record.host.empty()) text += fmt::format(" (pid {} on {})", record.pid, record.host);
  return text;
}

/// The line for an event; nullopt: it is no failure.
std::optional<LogLine> failure_of(std::string_view line) try {
  const Json event = try_parse_json(line);
  if (event_kind_of(event) != EventKind::failure) return std::nullopt;
  const std::string effect = event.value("effect", "");
  return LogLine{.source = "failure",
                 .unix_s = event.value("t", 0.0),
                 .text = event.value("cause", "") + (effect.empty() ? "" : "; " + effect)};
} catch (const JsonError&) {
  return std::nullopt;
}

/// Ranks first, by number; then the others by name.
bool comes_before(const LogLine& a, const LogLine& b) {
  if (a.unix_s != b.unix_s) return a.unix_s < b.unix_s;
  if ((a.rank < 0) != (b.rank < 0)) return b.rank < 0;
  return a.rank != b.rank ? a.rank < b.rank : a.source < b.source;
}

}  // namespace

Problem parse_ranks(std::string_view text, RankRanges& ranges) {
  ranges.clear();
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = text.substr(at, end - at);
    const size_t dash = part.find('-');
    const auto first = number_of(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number_of(part.substr(dash + 1));
    if (!first || !last || *last < *first)
      return Problem(fmt::format("`{}` is not a list of ranks; write for example 0,3-7", text));
    ranges.emplace_back(*first, *last);
    at = end + 1;
  }
  return Problem::none();
}

bool holds(const RankRanges& ranges, int rank) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const auto& range) { return range.first <= rank && rank <= range.second; });
}

int last_of(const RankRanges& ranges) {
  int last = 0;
  for (const auto& range : ranges) last = std::max(last, range.second);
  return last;
}

RunLogs::RunLogs(FileSystem& fs, RunDirectory run, LogSelection selection)
    : fs_(fs), run_(std::move(run)), selection_(std::move(selection)), events_(fs, run_.events()) {}

void RunLogs::add_source(const std::string& path, LogLine form) {
  if (selected(form.rank)) sources_.try_emplace(path, Source{std::move(form), {fs_, path}});
}

/// Logs appear while a run goes on: of nodes that take the place of others.
void RunLogs::find_sources() {
  const std::string folder = selection_.failure > 0
                                 ? fmt::format("{}/failures/{}", run_.path, selection_.failure)
                                 : run_.file("logs");
  if (fs_.is_directory(folder))
    for (const std::string& name : fs_.list(folder))
      if (auto form = form_of(name)) {
        form->failure = selection_.failure;
        add_source(folder + "/" + name, std::move(*form));
      }
  // Of a run that was started with --detach.
  const std::string console = run_.path + ".console.log";
  if (selection_.failure == 0 && fs_.exists(console)) add_source(console, {.source = "supervisor"});
}

/// The causes of the failures, which the records and logs of single ranks do not say.
void RunLogs::read_events(std::vector<LogLine>& lines) {
  if (!selection_.ranks.empty()) return;
  int failures = 0;
  if (!events_.still_there()) events_.rewind();
  events_.read([&](std::string_view line) {
    const auto failure = failure_of(line);
    if (!failure) return;
    ++failures;
    if (selection_.failure == 0 || failures == selection_.failure) lines.push_back(*failure);
  });
}

void RunLogs::read_crash_records(const std::string& folder, int failure, std::vector<LogLine>& lines) {
  if (!fs_.is_directory(folder)) return;
  for (const std::string& name : fs_.list(folder)) {
    const auto rank = number_in(name, "rank-", ".json");
    const std::string path = folder + "/" + name;
    // Those of a failure stay as they are.
    if (!rank || !selected(*rank) || (failure > 0 && kept_records_.contains(path))) continue;
    try {
      const auto record = record_of_text<CrashRecord>(fs_.read_text(path));
      if (failure > 0) kept_records_.insert(path);
      if (!records_.emplace(record.rank, record.epoch).second) continue;
      lines.push_back({.source = fmt::format("rank {}", *rank),
                       .rank = *rank,
                       .failure = failure,
                       .unix_s = record.unix_s,
                       .text = "crash record: " + crash_record_text(record)});
    } catch (const BadRecord&) {
      // It is being written; or the machine went down meanwhile.
    } catch (const Error&) {
      // It was moved to its failure: read there the next time.
    }
  }
}

std::vector<LogLine> RunLogs::read(bool all) {
  find_sources();
  std::vector<LogLine> lines;
  for (auto& [path, source] : sources_) {
    if (!source.follower.still_there()) source.follower.rewind(), source.unix_s = 0;
    const auto take = [&, &source = source](std::string_view line) {
      if (const double time = time_at_begin(line); time > 0) source.unix_s = time;
      LogLine entry = source.form;
      entry.unix_s = source.unix_s;
      if (line.ends_with('\r')) line.remove_suffix(1);
      entry.text = line;
      lines.push_back(std::move(entry));
    };
    source.follower.read(take);
    if (all && !source.follower.incomplete().empty()) take(source.follower.incomplete());
  }
  read_events(lines);
  if (selection_.failure > 0) {
    read_crash_records(fmt::format("{}/failures/{}", run_.path, selection_.failure), selection_.failure,
                       lines);
  } else {
    for (int n = 1; n <= last_failure(fs_, run_); ++n)
      read_crash_records(fmt::format("{}/failures/{}", run_.path, n), n, lines);
    read_crash_records(run_.file("failures"), 0, lines);
  }
  std::stable_sort(lines.begin(), lines.end(), comes_before);
  return lines;
}

int ranks_of(FileSystem& fs, const RunDirectory& run) {
  int most = 0;
  if (const auto status = try_read_status(fs, run.status()).status) most = int(status->ranks.size());
  for (const std::string& line : lines_of(fs, run.events())) try {
      const Json event = try_parse_json(line);
      if (event_kind_of(event) == EventKind::start) most = std::max(most, event.value("ranks", 0));
    } catch (const JsonError&) {
      // Of another version.
    }
  return most;
}

int last_failure(FileSystem& fs, const RunDirectory& run) {
  int last = 0;
  if (fs.is_directory(run.file("failures")))
    for (const std::string& name : fs.list(run.file("failures")))
      last = std::max(last, number_of(name).value_or(0));
  return last;
}

}  // namespace trainctl::terminal
