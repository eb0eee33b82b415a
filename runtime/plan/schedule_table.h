// The table of `trainctl plan --schedules`: what each schedule of the pipeline would mean for a job.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/device_model.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// A schedule with a number of virtual stages, and what the job does with it or why it cannot have it.
struct ScheduleRow {
  parallel::Schedule schedule = parallel::Schedule::one_f_one_b;
  int virtual_stages = 1;
  bool chosen = false;                ///< the job has it
  std::vector<std::string> settings;  ///< arguments of `-s` with which the job has it
  std::string refused;                ///< why it cannot; "": it can, and only then the rest is known
  std::string overlaps;               ///< what runs while a stage would wait
  /// Of the step's forward and backward passes, in the times of InstructionTimes.
  double bubble_fraction = 0;    ///< mean idle share of a stage
  std::optional<double> pass_s;  ///< nullopt: the device's speed is not known
  double relative_time = 1;      ///< as a multiple of the fastest row's
  size_t activation_bytes = 0;   ///< of the rank that holds most
  size_t total_bytes = 0;        ///< all memory of the rank that needs most
  double sent_bytes = 0;         ///< to other stages in a step, by the rank that sends most of it
  std::optional<bool> fits;      ///< nullopt: the device's memory is not known
};

struct ScheduleTable {
  int stages = 1, micro_batches = 1;
  std::string cluster;            ///< for which the times are predicted; "": an MFU is given or assumed
  double mfu = 0;                 ///< that one
  bool with_transfers = false;    ///< transfers take time
  std::vector<ScheduleRow> rows;  ///< in the order of parallel::schedules()
};

/// `spec`: of the job. Each row is parsed, checked and planned as a job of its own. Those with several
/// virtual stages have 2 of them, 4 where that can be, and what the job has.
ScheduleTable schedule_table(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                             std::optional<double> mfu);

std::string render_schedules(const ScheduleTable& table);
/// {"stages", "micro_batches", "mfu", "cluster", "with_transfers", "schedules": [...]}: as in
/// runtime/observe/schemas/schedules.schema.json.
std::string schedules_json(const ScheduleTable& table);

}  // namespace trainctl
