// Machine is one node of a run for its supervisor: it takes orders and reports events.
//
// Three implementations: the processes of this machine (runtime/run/agent/local_machine.h), a node behind its
// agent (runtime/supervise/nodes/fleet.h), and a simulated node (tests). Orders are start, rank, fence,
// spawn, remote_ended, look, kill and end. Events are beat, rank, times, rank_lost, exited, output, fence,
// remote, remote_ended, gone and warned. runtime/run/wire/node_wire.h gives their contents. No call blocks.
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
