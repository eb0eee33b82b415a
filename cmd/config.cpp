// trainctl config: the effective spec of a job file or of a run, where each value comes from, and the
// difference of two.
#include "cmd/config.h"

#include <memory>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "cmd/runs.h"
#include "cmd/watch.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/observe/terminal/difference_table.h"
#include "runtime/observe/text_table.h"

namespace trainctl::cmd {

std::vector<report::SpecRow> rows_of(const ParsedJob& job) {
  std::vector<report::SpecRow> rows;
  for (const EffectiveValue& value : job.values)
    rows.push_back({.path = value.path,
                    .value = value.value,
                    .origin = value.origin,
                    .meaning = value.value == value.meaning ? "" : value.meaning});
  return rows;
}

void print_rows(const std::vector<report::SpecRow>& rows, bool with_origin) {
  for (const report::SpecRow& row : rows) {
    const std::string field = fmt::format("{} {}", padded_to(row.path, 44), row.shown());
    fmt::print("{}\n", with_origin ? padded_to(field, 73) + " " + row.origin : field);
  }
}

namespace {

struct ConfigOptions {
  JobArguments job;
  std::string other, root = default_run_root();
  bool show_origin = false, given = false;
};

/// A spec and the name it is shown by.
struct NamedSpec {
  std::string name;
  std::vector<report::SpecRow> rows;
};

/// Of a run: the spec that it had when it was started or resumed last, with the origins from then.
std::optional<NamedSpec> spec_of_run(const std::string& name, const std::vector<std::string>& overrides,
                                     const ConfigOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  const RunDirectory run = find_run({name, options.root}).run;
  const auto identity = read_identity(fs, run);
  const auto job = load_job_text(fs.read_text(run.job()), run.job(), overrides, context,
                                 identity ? identity->working_directory : "");
  if (!job) return std::nullopt;
  NamedSpec spec{folder_name(run), rows_of(*job)};
  const Json origins = fs.exists(run.file("origins.json"))
                                     ? try_parse_json(fs.read_text(run.file("origins.json")))
                                     : Json();
  for (report::SpecRow& row : spec.rows)
    if (row.origin != "--set" && origins.is_object())
      row.origin = origins.contains(row.path) && origins[row.path].is_string()
                       ? origins[row.path].get<std::string>()
                       : "default";
  return spec;
}

/// A job file, or else a run.
std::optional<NamedSpec> spec_of(const std::string& name, const std::vector<std::string>& overrides,
                                 const ConfigOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  if (fs.exists(name) && !fs.is_directory(name)) {
    const auto job = load_job({.path = name, .overrides = overrides}, context);
    if (!job) return std::nullopt;
    return NamedSpec{name, rows_of(*job)};
  }
  if (name.find('/') == std::string::npos && name.ends_with(".json"))
    throw Error(ErrorCode::kUsage, fmt::format("there is no job spec {}", name));
  return spec_of_run(name, overrides, options, context);
}

/// {"value": ..., "meaning": ..., "origin": ..., "origin_kind": ...}; the value null: the spec has none.
OrderedJson value_json(const report::SpecRow& row) {
  OrderedJson j{{"value", nullptr}};
  if (!row.value.empty()) j["value"] = parse_ordered_json(row.value);
  if (!row.meaning.empty()) j["meaning"] = parse_ordered_json(row.meaning);
  j["origin"] = row.origin;
  j["origin_kind"] = report::kind_of_origin(row.origin);
  return j;
}

int show(const NamedSpec& spec, const ConfigOptions& options, const Context& context) {
  std::vector<report::SpecRow> rows = spec.rows;
  if (options.given) std::erase_if(rows, [](const report::SpecRow& row) { return row.origin == "default"; });
  if (!context.json) {
    print_rows(rows, options.show_origin);
    return kExitDone;
  }
  OrderedJson fields = OrderedJson::array();
  for (const report::SpecRow& row : rows) {
    fields.push_back({{"path", row.path}});
    fields.back().update(value_json(row));
  }
  print_json("config", {{"spec", spec.name}, {"fields", std::move(fields)}});
  return kExitDone;
}

int diff(const NamedSpec& a, const NamedSpec& b, const Context& context) {
  const auto differences = report::spec_differences({a.rows, b.rows});
  if (context.json) {
    OrderedJson fields = OrderedJson::array();
    for (const report::SpecDifference& field : differences) {
      OrderedJson sides = OrderedJson::array();
      for (const report::SpecRow& row : field.rows) sides.push_back(value_json(row));
      fields.push_back({{"path", field.path}, {"specs", std::move(sides)}});
    }
    print_json("config-diff",
               {{"specs", {a.name, b.name}}, {"identical", differences.empty()}, {"fields", fields}});
    return differences.empty() ? kExitDone : kExitDifferences;
  }
  if (differences.empty()) {
    fmt::print("no difference\n");
    return kExitDone;
  }
  for (const std::string& line :
       terminal::difference_table({a.name, b.name}, differences, terminal_room().columns))
    fmt::print("{}\n", line);
  return kExitDifferences;
}

int config(const ConfigOptions& options, const Context& context) {
  const auto spec = spec_of(options.job.path, options.job.overrides, options, context);
  if (!spec) return exit_status(ErrorCode::kSpec);
  if (options.other.empty()) return show(*spec, options, context);
  const auto other = spec_of(options.other, {}, options, context);
  return other ? diff(*spec, *other, context) : exit_status(ErrorCode::kSpec);
}

}  // namespace

void add_config(CommandLine& app, Context& context) {
  auto options = std::make_shared<ConfigOptions>();
  CommandLine command = app.add_subcommand(
      "config", "print the effective values of a job spec or a run, their origins, or the difference of two");
  command
      .add_option("JOB|RUN", options->job.path,
                  "a job spec, or a run: id, unique beginning of one, path, or `latest`")
      .required()
      .type_name("");
  add_set_option(command, options->job.overrides);
  command.add_flag("--show-origin", options->show_origin, "also print where each value comes from");
  command.add_flag("--given", options->given, "leave out the fields that have their default value");
  command
      .add_option("--diff", options->other,
                  "print the fields that differ in this job spec or run (except names and places of runs); "
                  "exit status 0: none, 20: some")
      .type_name("JOB|RUN");
  command.add_option("--run-dir", options->root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)")
      .type_name("DIR");
  when_chosen(command, context, [options, &context] { return config(*options, context); });
}

}  // namespace trainctl::cmd
