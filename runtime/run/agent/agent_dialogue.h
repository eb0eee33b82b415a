// AgentDialogue is what an agent and its supervisor say to each other: which orders the agent obeys, what it
// says, and what it says again after a connection broke or to the next supervisor. Connections and processes
// are its effects.
//
//   order    obeyed once, by its number, and never of an older epoch (AgentState)
//   welcome  of the supervisor before:  what it has not handled is sent again
//            of another one, keep:      what UntakenMessages keeps for it
//            of another one:            every process here is killed
//
// One thread.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/run/agent/agent_state.h"
#include "runtime/run/agent/untaken_messages.h"
#include "runtime/run/wire/node_wire.h"

namespace trainctl {

class AgentDialogue {
 public:
  class Effects {
   public:
    virtual ~Effects() = default;
    virtual void send(const wire::Message& message) = 0;  ///< to the supervisor
    /// Sends what is here now: a beat with the ranks, and the shares of fences.
    virtual void send_state() = 0;
    /// Does what an order says. If it throws, processes of its epoch could not be started.
    virtual void order(const wire::Message& message) = 0;
    virtual std::optional<uint64_t> epoch() const = 0;  ///< of the processes here
    virtual void kill_all() = 0;
    virtual void welcomed(const wire::Welcome& welcome) = 0;
    // For the log; a complaint once, however often it comes.
    virtual void say(const std::string& line) = 0;
    virtual void complain(const std::string& problem) = 0;
  };
  /// `name`: of the node. The others must outlive it.
  AgentDialogue(std::string name, AgentState& state, Clock& clock, Effects& effects)
      : name_(std::move(name)), state_(state), clock_(clock), effects_(effects) {}

  /// A supervisor with this token is to be greeted. Returns the number of its last order that was obeyed; 0:
  /// none was.
  uint64_t greet(const std::string& token);
  /// A message of the supervisor. Error(kLauncher) for an order that is malformed.
  void hear(const wire::Message& message);
  /// Sends a message, now or when there is a supervisor.
  void tell(wire::Message&& message);
  uint64_t obeyed() const { return obeyed_; }

 private:
  void welcomed(const wire::Welcome& welcome);
  void obey_for_epoch(const wire::Message& order);

  const std::string name_;
  AgentState& state_;
  Clock& clock_;
  Effects& effects_;
  UntakenMessages untaken_;
  std::string token_;    ///< of the supervisor of obeyed_
  uint64_t obeyed_ = 0;  ///< number of the last order
};

}  // namespace trainctl
