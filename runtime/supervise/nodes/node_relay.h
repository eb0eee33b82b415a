// What the nodes of an attempt have to say to each other goes through the supervisor: the shares of a PMIx
// fence, and mpirun's requests for its daemons. Nodes are numbered as in the attempt. Pure but for the
// function that sends.
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
  /// The node that calls itself `host`; -1: none that is there.
  using Find = std::function<int(const std::string& host)>;
  NodeRelay(int nodes, Send send, Find find)
      : nodes_(nodes), send_(std::move(send)), find_(std::move(find)) {}

  /// A node's share of a fence. With the last one all shares, in the order of the nodes, go to every node. A node that
  /// sends a share again after that gets the answer again.
  void fence(int node, wire::Message&& share);
  /// mpirun on `node` wants a daemon started on the host that the message names.
  void remote(int node, const wire::Message& message);
  /// That daemon, on `node`, has ended.
  void remote_ended(int node, const wire::Message& message);

 private:
  int nodes_;
  Send send_;
  Find find_;
  std::map<int64_t, std::map<int, std::string>> shares_;  ///< of fences that are not answered, by number and node
  wire::Message answer_{.kind = wire::Kind::fence};       ///< to the last fence; number 0: none yet
  std::map<std::pair<int, int64_t>, int> asked_;  ///< (node, request) -> who asked
};

}  // namespace trainctl
