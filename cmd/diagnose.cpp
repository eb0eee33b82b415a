// trainctl diagnose: a verdict on a run that hangs or has crashed: who, where, since when, what to do.
#include <algorithm>
#include <memory>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/observe/trace/flight_trace.h"
#include "runtime/observe/trace/trace_file.h"
#include "runtime/run/record/flight_verdict.h"
#include "runtime/run/record/known_status.h"

namespace trainctl::cmd {
namespace {

struct DiagnoseArguments {
  RunArguments run;
  bool merge = false;
  std::string out;
};

/// Of an attempt with so many ranks: its width may be another one than the job's.
parallel::MeshShape mesh_of(FileSystem& fs, const RunDirectory& run, int ranks) {
  const ParsedJob job = parse_job({.text = fs.read_text(run.job()), .file = run.job()});
  if (!job.ok()) throw Error(ErrorCode::kUsage, fmt::format("{} cannot be used by this version", run.job()));
  parallel::MeshShape mesh = job.job.mesh();
  mesh.dp = std::max(1, ranks / (mesh.tp * mesh.cp * mesh.pp));
  return mesh;
}

/// The verdict of all rings, and the file with the last seconds of the ranks.
OrderedJson merged_rings(const FoundRun& found, const RunStatus& status, const DiagnoseArguments& arguments,
                         const Context& context) {
  FileSystem& fs = real_file_system();
  const FoundFlights flights = find_flights(fs, found.run, status);
  if (flights.logs.empty())
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} has no rings of its ranks on this machine, and none of a failed attempt; on a run of "
                    "several nodes, they are left in {} when the attempt has failed",
                    found.run.path, found.run.file("failures")));
  const parallel::MeshShape mesh = mesh_of(fs, found.run, flights.ranks);
  const double began_s = real_clock().monotonic_s();
  const FlightVerdict verdict = merge_flights(flights.logs, mesh.world_size(), mesh.pp);
  const double merged_s = real_clock().monotonic_s() - began_s;
  const std::string path = arguments.out.empty()
                               ? found.run.file(fmt::format("trace/flight-{}.json.gz", flights.epoch).c_str())
                               : arguments.out;
  if (arguments.out.empty()) fs.make_directories(found.run.file("trace"));
  trace::TraceFile file(fs, path);
  trace::write_chrome_trace(trace::flight_trace(flights.logs, verdict, mesh, status.run_id),
                            [&](std::string_view text) { file.write(text); });
  file.commit();
  OrderedJson json = verdict.to_json();
  json["from"] = flights.from;
  json["epoch"] = flights.epoch;
  json["rings"] = flights.logs.size();
  json["trace"] = path;
  if (!context.json)
    fmt::print(
        "rings      {} of {} ranks, of {}, merged in {:.3f} s\n           {}\ntrace      {} (open it with "
        "https://ui.perfetto.dev)\n",
        flights.logs.size(), mesh.world_size(), flights.from, merged_s, verdict.summary(), path);
  return json;
}

int diagnose_run(const DiagnoseArguments& arguments, const Context& context) {
  FileSystem& fs = real_file_system();
  const FoundRun found = find_run(arguments.run);
  const auto known = status_of_run(fs, found.run);
  if (!known)
    throw Error(ErrorCode::kUsage, fmt::format("{} has no status yet: the run never started", found.run.path));
  if (!known->note.empty()) fmt::print(stderr, "warning: {}\n", known->note);
  const Diagnosis d = diagnose(known->status, supervisor_state(fs, found.run), real_clock().unix_s());
  if (context.json) {
    OrderedJson json = parse_ordered_json(to_json(d));
    if (arguments.merge) json["merged"] = merged_rings(found, known->status, arguments, context);
    print_json_text("diagnose", dump_json(json), -1);
    return kExitDone;
  }
  fmt::print("verdict    {}\n           {}\n", d.verdict, d.summary);
  for (const std::string& line : d.details) fmt::print("           {}\n", line);
  if (arguments.merge) merged_rings(found, known->status, arguments, context);
  if (!d.advice.empty()) fmt::print("next       {}\n", d.advice);
  return kExitDone;
}

}  // namespace

void add_diagnose(CommandLine& app, Context& context) {
  auto arguments = std::make_shared<DiagnoseArguments>();
  CommandLine command = app.add_subcommand("diagnose", "report why a run hangs or crashed: which rank, "
                                                       "where, since when");
  add_run_arguments(command, arguments->run, false);
  Option merge =
      command.add_flag("--merge", arguments->merge,
                       "merge what each rank recorded last: who is missing in which exchange, since "
                       "when; and write it as a trace");
  command
      .add_option("--out", arguments->out,
                  "file of the trace (default: trace/flight-N.json.gz in the run's folder)")
      .type_name("FILE")
      .needs(merge);
  when_chosen(command, context, [arguments, &context] { return diagnose_run(*arguments, context); });
}

}  // namespace trainctl::cmd
