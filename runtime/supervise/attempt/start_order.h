// What a node is told when it is to start its ranks of an attempt.
#pragma once
#include "runtime/run/wire/node_wire.h"
#include "runtime/supervise/attempt/attempt.h"

namespace trainctl {

/// What the `index`-th node of the attempt is to start.
wire::StartOrder start_order(const AttemptOptions& options, const Fleet& fleet, size_t index);

}  // namespace trainctl
