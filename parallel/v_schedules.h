// The schedules whose virtual stages go down the stages and back up, two on each stage. The first stage has
// the loss at hand, so that a backward begins where the forward ended.
#pragma once
#include <vector>

#include "parallel/pipeline.h"

namespace trainctl::parallel {

/// ZB-V: after a forward and the two halves of a backward in turn, no stage waits from its first piece of
/// work to its last, if the three take equally long and there are at least 2 * stages micro-batches. Holds at
/// most 2 * stages pairs, as much as 1F1B on its first stage. Source: Zero Bubble Pipeline Parallelism,
/// arXiv:2401.10241, section 6; as V-ZB in arXiv:2405.15362.
std::vector<Program> zb_v_programs(const PipelineShape& shape);

/// DualPipeV: a forward of one virtual stage always next to a backward of the other one, so that an executor
/// may overlap the messages of each with the products of the other. Whole backwards in the middle; at both
/// ends the halves are apart and fill the waits. Holds at most 2 * stages + 1 pairs. Needs 2 * stages
/// micro-batches. Source: the phases and their counts of DualPipe's description, arXiv:2412.19437, section
/// 3.2.1, cut in half.
std::vector<Program> dualpipev_programs(const PipelineShape& shape);

}  // namespace trainctl::parallel
