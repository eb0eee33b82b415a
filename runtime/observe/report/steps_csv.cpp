#include "runtime/observe/report/steps_csv.h"

#include <fmt/format.h>

#include <cmath>

namespace trainctl::report {
namespace {

/// In quotes where the text would end the cell.
std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string known(double value) { return std::isnan(value) ? "" : fmt::format("{}", value); }

/// Of a number that every step has: what is not finite is a fact.
std::string fact(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

std::string csv_row(const std::string& run, const StepRow& r) {
  std::string row = fmt::format("{},{},{},{},{},{},{},{},{}", run, r.step, known(r.unix_s),
                                r.attempt > 0 ? std::to_string(r.attempt) : "", known(r.tokens), fact(r.loss),
                                r.evaluated ? fact(r.val_loss) : "", fact(r.grad_norm), known(r.lr));
  row += fmt::format(",{},{},{},{},{},{},{},{}", known(r.step_s), known(r.tokens_per_s), known(r.mfu),
                     int(r.skipped), known(r.compute_median_s), known(r.compute_max_s),
                     r.compute_max_rank < 0 ? "" : std::to_string(r.compute_max_rank),
                     known(r.peak_memory_bytes));
  for (const auto& [name, phase] : kPhases) row += "," + known(r.phases.*phase);
  return row + "\n";
}

}  // namespace

std::string steps_csv(const std::vector<const RunData*>& runs) {
  std::string csv =
      "run,step,unix_s,attempt,tokens,loss,val_loss,grad_norm,lr,step_s,tokens_per_s,mfu,skipped,"
      "compute_median_s,compute_max_s,compute_max_rank,peak_memory_bytes";
  for (const auto& [name, phase] : kPhases) csv += fmt::format(",{}_s", name);
  csv += "\n";
  for (const RunData* run : runs)
    for (const StepRow& row : run->steps.rows()) csv += csv_row(cell(run->id), row);
  return csv;
}

}  // namespace trainctl::report
