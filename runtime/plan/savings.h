// The table of `trainctl plan --savings`: what a job would need with each setting that saves memory, on its own
// mesh, and which of them together are enough where it does not fit. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/device_model.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// The job with one setting, or with several.
struct SavingRow {
  std::string name;
  std::vector<std::string> settings;  ///< arguments of `-s`; none: the job as it is
  std::string accuracy;               ///< what the numbers of the run become; "": the same bits
  std::string refused;           ///< why the job cannot have it; "": it can, and only then the rest is known
  uint64_t bytes = 0;            ///< that a GPU needs, or the machine
  std::optional<bool> fits;      ///< nullopt: the device's memory is not known
  std::optional<double> step_s;  ///< nullopt: the device's speed is not known
};

struct SavingTable {
  bool of_machine = false;      ///< all ranks share the memory of one machine
  uint64_t room = 0;            ///< of the device, for the job; 0: not known
  SavingRow job;                ///< as it is
  std::vector<SavingRow> rows;  ///< one setting each, without those that the job has
  /// Where the job does not fit: as few of the settings as fit together, first those with the same bits; or,
  /// if its `fits` is false, all that help, which are not enough. nullopt: the job fits, or that is not known.
  std::optional<SavingRow> together;
};

/// `spec`: of the job. Each row is parsed, checked, planned and predicted as a job of its own.
SavingTable saving_table(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                         std::optional<double> mfu);

std::string render_savings(const SavingTable& table);
/// {"of", "room_bytes", "job": {...}, "savings": [...], "together"}: as in
/// runtime/observe/schemas/savings.schema.json.
std::string savings_json(const SavingTable& table);

}  // namespace trainctl
