#include "runtime/run/record/time_reader.h"

namespace trainctl {

std::vector<std::string> given_up_metrics(FileSystem& fs, const RunDirectory& run) {
  std::vector<std::string> names;
  for (const std::string& name : fs.list(run.path))
    if (name.starts_with("metrics.superseded-")) names.push_back(name);
  return names;
}

bool TimeReader::read(uint64_t most_bytes) {
  if (!events_.still_there()) events_.rewind(), records_.forget_events();
  bool is_whole =
      events_.read([&](std::string_view line) { records_.event(try_parse_json(line)); }, most_bytes);
  std::vector<std::string> given_up = given_up_metrics(fs_, run_);
  if (!metrics_.still_there() || given_up != given_up_) {  // the run went back
    metrics_.rewind();
    records_.forget_steps();
    for (const std::string& name : given_up)
      LineFollower(fs_, run_.path + "/" + name).read([&](std::string_view line) {
        records_.step(step_view(line), false);
      });
    given_up_ = std::move(given_up);
  }
  return metrics_.read([&](std::string_view line) { records_.step(step_view(line), true); }, most_bytes) &&
         is_whole;
}

TimeLedger read_ledger(FileSystem& fs, const RunDirectory& run, double now_unix_s) {
  TimeReader reader(fs, run);
  reader.read();
  return ledger_of(reader.records(), now_unix_s);
}

}  // namespace trainctl
