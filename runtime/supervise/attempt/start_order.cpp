#include "runtime/supervise/attempt/start_order.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl {

wire::StartOrder start_order(const AttemptOptions& options, const Fleet& fleet, size_t index) {
  ENSURE(index < options.nodes.size(), "node {} of {}", index, options.nodes.size());
  const std::vector<Beginning>& begin = options.file.beginnings;
  wire::StartOrder order{.mark = options.file.mark,
                         .pmix = options.pmix,
                         .leads = index == 0,
                         .argv = options.line.argv,
                         .environment = options.line.environment,
                         .this_host = int(index),
                         .world_size = options.limits.ranks,
                         .session_folder = options.session_folder,
                         .shared_memory_folder = options.shared_memory_folder,
                         .from_step = begin.empty() ? 0 : begin.back().step,
                         .keeps_copies = options.keeps_copies,
                         .memory_ranks = options.file.memory ? options.file.memory->ranks : 0,
                         .holders = options.holders};
  const Environment& own = options.nodes[index].environment;
  order.environment.insert(order.environment.end(), own.begin(), own.end());
  for (const AttemptOptions::Node& node : options.nodes) {
    const wire::NodeHello* hello = fleet.hello(node.node);
    order.hosts.push_back(hello ? hello->host : fleet.name(node.node));
    order.ranks.push_back({node.first, node.count});
  }
  const auto partner_of = std::find_if(options.nodes.begin(), options.nodes.end(),
                                       [&](const auto& node) { return node.partner == int(index); });
  if (partner_of != options.nodes.end()) order.partner_of = {partner_of->first, partner_of->count};
  const int partner = options.nodes[index].partner;
  ENSURE(partner < int(options.nodes.size()) && partner != int(index), "partner {} of node {}", partner,
         index);
  if (partner >= 0)
    if (const wire::NodeHello* hello = fleet.hello(options.nodes[size_t(partner)].node))
      order.partner = hello->pieces;
  return order;
}

}  // namespace trainctl
