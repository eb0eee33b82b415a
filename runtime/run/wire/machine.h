// One node of a run as its supervisor sees it: it takes orders and reports what happens.
//
// Three twins: the processes of this machine (runtime/run/agent/local_machine.h), a node behind its agent
// (runtime/supervise/nodes/fleet.h), and a simulated one (tests). Orders are start, rank, fence, spawn,
// remote_ended, look, kill, end; events are beat, rank, rank_lost, exited, output, fence, remote, gone,
// warned (runtime/run/wire/node_wire.h says what they hold). Nothing blocks.
#pragma once
#include <functional>

#include "runtime/run/wire/node_wire.h"

namespace trainctl {

class Machine {
 public:
  virtual ~Machine() = default;
  virtual void order(const wire::Message& message) = 0;
};

using MachineEvents = std::function<void(wire::Message&&)>;

}  // namespace trainctl
