#include "runtime/plan/savings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/base/units.h"
#include "runtime/plan/fit.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/search.h"

namespace trainctl {
namespace {

/// A setting that saves memory, or might.
struct Saving {
  const char *name, *setting;
  bool (*has)(const JobSpec&);  ///< the job has it, or what saves more
  const char* accuracy;         ///< "": the same bits
};

bool has_zero(const JobSpec& job, int stage) { return job.parallelism.zero_stage >= stage; }

// In the order in which they are tried together: the cheapest first, and last what costs accuracy.
const Saving kSavings[] = {
    {"selective recomputation", "memory.activation_recompute=selective",
     [](const JobSpec& job) { return job.recompute != Recompute::none; }, ""},
    {"ZeRO-1", "parallelism.zero_stage=1", [](const JobSpec& job) { return has_zero(job, 1); }, ""},
    {"ZeRO-2", "parallelism.zero_stage=2", [](const JobSpec& job) { return has_zero(job, 2); }, ""},
    {"ZeRO-3", "parallelism.zero_stage=3", [](const JobSpec& job) { return has_zero(job, 3); }, ""},
    {"full recomputation", "memory.activation_recompute=full",
     [](const JobSpec& job) { return job.recompute == Recompute::full; }, ""},
    {"optimizer on the host", "optimizer.offload=host",
     [](const JobSpec& job) { return job.optimizer.offload != StateOffload::none; }, ""},
    {"optimizer on disk", "optimizer.offload=disk",
     [](const JobSpec& job) { return job.optimizer.offload == StateOffload::disk; }, ""},
    {"bf16", "precision.compute=bf16", [](const JobSpec& job) { return job.compute != DType::f32; },
     "products of numbers with 8 significant bits"},
    {"FP8 products", "precision.fp8.recipe=block", [](const JobSpec& job) { return job.fp8.exists(); },
     "products of numbers with 4 significant bits: within 1 % of the loss after 500 steps of a tiny model"},
    {"moments in bf16", "optimizer.moments=bf16",
     [](const JobSpec& job) { return job.optimizer.moments != kernels::Moments::f32; },
     "moments in bf16, rounded at random"},
    {"moments in 8 bits", "optimizer.moments=int8",
     [](const JobSpec& job) { return job.optimizer.moments == kernels::Moments::int8; },
     "moments of 8 bits with a scale for each 256, rounded at random"},
    {"no master weights", "optimizer.master_weights=none",
     [](const JobSpec& job) { return job.optimizer.master_weights == MasterWeights::none; },
     kCostOfNoMasters},
};

std::string field_of(const std::string& setting) { return setting.substr(0, setting.find('=')); }

/// Later settings replace earlier ones of the same field.
void add_setting(std::vector<std::string>& settings, const std::string& setting) {
  std::erase_if(settings, [&](const std::string& earlier) { return field_of(earlier) == field_of(setting); });
  settings.push_back(setting);
}

class Savings {
 public:
  Savings(const ParseInput& spec, const JobSpec& job, const DeviceModel& device, std::optional<double> mfu)
      : spec_(spec), job_(job), device_(device), mfu_(mfu) {}

  SavingTable table() const {
    SavingTable result{.of_machine = device_.is_host(),
                       .room = device_.room(job_),
                       .job = row_of({}),
                       .rows = {},
                       .together = {}};
    for (const Saving& saving : kSavings)
      if (!saving.has(job_)) result.rows.push_back(row_of({&saving}));
    if (result.job.fits == false) result.together = together(result);
    return result;
  }

 private:
  using Chosen = std::vector<const Saving*>;

  SavingRow row_of(const Chosen& chosen) const {
    SavingRow row;
    std::vector<const char*> names, accuracies;
    ParseInput input = spec_;
    for (const Saving* saving : chosen) {
      add_setting(row.settings, saving->setting);
      add_setting(input.overrides, saving->setting);
      if (*saving->accuracy) accuracies.push_back(saving->accuracy);
    }
    for (const Saving* saving : chosen)
      if (std::count(row.settings.begin(), row.settings.end(), saving->setting))
        names.push_back(saving->name);
    row.name = fmt::format("{}", fmt::join(names, " + "));
    row.accuracy = fmt::format("{}", fmt::join(accuracies, "; "));
    ParsedJob parsed = parse_job(input);
    for (const Diagnostic& d : parsed.diagnostics)
      if (row.refused.empty() && d.is_error()) row.refused = fmt::format("{} {}", d.code, d.message);
    if (!row.refused.empty()) return row;
    parsed.job.data = job_.data;  // what the sources decide was decided there
    plan(row, parsed.job);
    return row;
  }

  void plan(SavingRow& row, const JobSpec& job) const {
    const JobPlan plan = make_plan(job, device_);
    const Fit fit = fit_of(job, plan, device_);
    row.bytes = fit.needed();
    if (fit.known()) row.fits = fit.fits();
    if (const auto time = estimate_time(job, plan, device_, mfu_)) row.step_s = time->step_s;
  }

  /// Adds one setting after the other while that helps, until the job fits; then leaves out what it does not
  /// need, the dearest first.
  SavingRow together(const SavingTable& table) const {
    Chosen chosen;
    SavingRow best = table.job;
    for (const Saving& saving : kSavings) {
      if (best.fits == true) break;
      if (saving.has(job_)) continue;
      Chosen more = chosen;
      more.push_back(&saving);
      SavingRow row = row_of(more);
      if (!row.refused.empty() || row.bytes >= best.bytes) continue;
      chosen = std::move(more);
      best = std::move(row);
    }
    for (size_t i = chosen.size(); best.fits == true && i-- > 0;) {
      Chosen fewer = chosen;
      fewer.erase(fewer.begin() + int64_t(i));
      SavingRow row = row_of(fewer);
      if (!row.refused.empty() || row.fits != true) continue;
      chosen = std::move(fewer);
      best = std::move(row);
    }
    return best;
  }

  const ParseInput& spec_;
  const JobSpec& job_;
  const DeviceModel& device_;
  const std::optional<double> mfu_;
};

std::string line_of(const SavingRow& row, const SavingRow& job, const char* name) {
  const double saved = job.bytes > 0 ? 1 - double(row.bytes) / double(job.bytes) : 0;
  return fmt::format("  {:<24}{:>12}{:>8}{:>11}{:>9}  {:<5} {}\n", name, brief_memory_text(row.bytes),
                     row.settings.empty() ? "" : fmt::format("{:.1f}%", 100 * saved),
                     row.step_s ? fmt::format("{:.4g} s", *row.step_s) : "?",
                     row.step_s && job.step_s ? fmt::format("{:.3f}x", *row.step_s / *job.step_s) : "",
                     !row.fits   ? "?"
                     : *row.fits ? "yes"
                                 : "no",
                     row.accuracy.empty() ? "the same bits" : row.accuracy);
}

OrderedJson json_of(const SavingRow& row) {
  OrderedJson json{{"name", row.name}, {"settings", row.settings}};
  if (!row.refused.empty()) {
    json["refused"] = row.refused;
    return json;
  }
  json["bytes"] = row.bytes;
  json["fits"] = row.fits ? OrderedJson(*row.fits) : OrderedJson();
  json["step_s"] = row.step_s ? OrderedJson(*row.step_s) : OrderedJson();
  json["same_bits"] = row.accuracy.empty();
  json["accuracy"] = row.accuracy;
  return json;
}

}  // namespace

SavingTable saving_table(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                         std::optional<double> mfu) {
  return Savings(spec, job, device, mfu).table();
}

std::string render_savings(const SavingTable& table) {
  const char* const of = table.of_machine ? "the machine" : "a GPU";
  std::string out = fmt::format("What saves memory, on the mesh of the job; {} has {} for it\n", of,
                                table.room > 0 ? brief_memory_text(table.room) : "an unknown amount");
  out += fmt::format("  {:<24}{:>12}{:>8}{:>11}{:>9}  {:<5} {}\n", "",
                     table.of_machine ? "it needs" : "a GPU needs", "less", "step", "time", "fits",
                     "what the run computes");
  out += line_of(table.job, table.job, "the job as it is");
  for (const SavingRow& row : table.rows)
    if (row.refused.empty()) out += line_of(row, table.job, row.name.c_str());
  for (const SavingRow& row : table.rows)
    if (!row.refused.empty()) out += fmt::format("  {:<24}not possible: {}\n", row.name, row.refused);
  if (!table.together) return out;
  const SavingRow& together = *table.together;
  if (together.fits == true)
    out += fmt::format("These together fit: {}\n", together.name);
  else if (together.settings.empty())
    out += "None of these makes the job smaller: it needs more GPUs or another mesh (--alternatives 3)\n";
  else
    out += fmt::format("All that help are not enough, {} more is needed: {}\n",
                       brief_memory_text(together.bytes - table.room), together.name);
  if (!together.settings.empty()) out += line_of(together, table.job, "together");
  return out;
}

std::string savings_json(const SavingTable& table) {
  OrderedJson rows = OrderedJson::array();
  for (const SavingRow& row : table.rows) rows.push_back(json_of(row));
  return OrderedJson{{"of", table.of_machine ? "machine" : "gpu"},
                     {"room_bytes", table.room > 0 ? OrderedJson(table.room) : OrderedJson()},
                     {"job", json_of(table.job)},
                     {"savings", std::move(rows)},
                     {"together", table.together ? json_of(*table.together) : OrderedJson()}}
      .dump();
}

}  // namespace trainctl
