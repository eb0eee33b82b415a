// The order that makes a node start its ranks of an attempt.
#pragma once
#include "runtime/run/wire/node_wire.h"
#include "runtime/supervise/attempt/attempt.h"

namespace trainctl {

/// The order for options.nodes[index].
wire::StartOrder start_order(const AttemptOptions& options, const Fleet& fleet, size_t index);

}  // namespace trainctl
