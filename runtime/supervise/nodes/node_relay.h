// NodeRelay passes messages between the nodes of an attempt through the supervisor: the shares of PMIx
// fences, and mpirun's requests for its daemons. Node numbers are indices of the attempt's nodes. Pure except
// for the function that sends.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "runtime/run/wire/node_wire.h"

namespace trainctl {

class NodeRelay {
 public:
  using Send = std::function<void(int node, const wire::Message& message)>;
  /// The node with the own host name `host`; -1: no connected node has it.
  using Find = std::function<int(const std::string& host)>;
  NodeRelay(int nodes, Send send, Find find)
      : nodes_(nodes), send_(std::move(send)), find_(std::move(find)) {}

  /// Takes a node's share of a fence. When all shares are there, sends them to every node, in the order of
  /// the nodes. A node that sends its share again after that gets the answer again.
  void fence(int node, wire::Message&& share);
  /// mpirun on `node` requests a daemon on the host that the message names.
  void remote(int node, const wire::Message& message);
  /// Such a daemon on `node` has ended.
  void remote_ended(int node, const wire::Message& message);

 private:
  int nodes_;
  Send send_;
  Find find_;
  std::map<int64_t, std::map<int, std::string>> shares_;  ///< fences without an answer, by number and node
  wire::Message answer_{.kind = wire::Kind::fence};       ///< answer to the last fence; number 0: none yet
  std::map<std::pair<int, int64_t>, int> asked_;  ///< (daemon's node, request) -> node that requested it
};

}  // namespace trainctl
