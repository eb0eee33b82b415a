// Which interval of saves and how many spares lose least: runs on the same failures that differ in one number.
// Pure; any number of threads gives the same result.
#pragma once
#include <vector>

#include "runtime/simulate/simulator.h"

namespace trainctl::simulate {

struct SurveyRow {
  SaveSteps saves;
  int spares = 0;
  double effective = 0;  ///< SimulatedRun::effective
};

struct Survey {
  int histories = 0;  ///< of failures; each row is their mean
  Ns length = 0;      ///< of each
  int failures = 0;   ///< of all
  /// One tier's interval varies, the others' are those of the run. A tier that is not made has no rows.
  std::vector<SurveyRow> memory, partner, directory;
  std::vector<SurveyRow> spares;  ///< the intervals are the run's
  std::vector<SurveyRow> grid;    ///< spares and interval of the directory
};

struct SurveyOptions {
  FailureSource source;
  Ns end = 0;
  SaveSteps saves;  ///< around which is looked
  int most_spares = 8;
  int threads = 1;
};

Survey make_survey(const RunModel& run, const FleetModel& fleet, const SurveyOptions& options);
/// The row that loses least; of equals the first. There must be one.
const SurveyRow& best_of(const std::vector<SurveyRow>& rows);

}  // namespace trainctl::simulate
