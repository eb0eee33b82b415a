// The steps of runs as CSV (RFC 4180), for spreadsheets and data frames. Pure.
#pragma once
#include <string>
#include <vector>

#include "runtime/observe/report/run_data.h"

namespace trainctl::report {

/// A header and one row for each step, as its newest attempt computed it:
///
///   run,step,unix_s,attempt,tokens,loss,val_loss,grad_norm,lr,step_s,tokens_per_s,mfu,skipped,
///   compute_median_s,compute_max_s,compute_max_rank,peak_memory_bytes,forward_s,...,checkpoint_s
///
/// Numbers have as many digits as they need to be read back as the same bits. An empty cell: not known. A
/// loss or gradient norm that is not finite is nan, inf or -inf.
std::string steps_csv(const std::vector<const RunData*>& runs);

}  // namespace trainctl::report
