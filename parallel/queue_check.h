// Whether the messages of a pipeline come to their ends where streams of a device share hardware queues. Work
// that was given to a queue is begun in that order, so a message that waits for its peer holds up what came later
// to its queue, perhaps what the peer waits for. Pure.
#pragma once
#include <array>
#include <span>

#include "parallel/step_program.h"

namespace trainctl::parallel {

/// The streams of a stage that a message or a computation waits on, as the executor uses them: one for each edge.
enum class StageStream { compute, activation_in, gradient_in, activation_out, gradient_out };
constexpr int kStageStreams = int(StageStream::gradient_out) + 1;
const char* name_of(StageStream);  ///< "activation_in"

/// [stream]: its queue. In a V the second virtual stage's edges have queues of their own.
using QueueOfStream = std::array<int, kStageStreams>;

/// Which work of which stage holds up the others for good, one sentence, or nothing: the step ends. A message is
/// through when both ends have come to it.
///   programs   of all stages, in order
Problem queue_problem(const PipelineShape& shape, std::span<const StepProgram> programs,
                      const QueueOfStream& queues);

}  // namespace trainctl::parallel
