#include "runtime/supervise/decide/node_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/supervise/decide/node_speed.h"

namespace trainctl {
namespace {

constexpr size_t kMostFailures = 16;  // remembered of a node

/// How many failures put a node out, at most as many as the rules say.
int enough_of(NodeFault fault, const QuarantineRules& rules) {
  switch (fault) {
    case NodeFault::possible: return rules.failures;
    case NodeFault::start: return std::min(rules.failures, 2);
    case NodeFault::device: return std::min(rules.failures, 1);
  }
  return rules.failures;
}

bool usable(const PoolNode& n) { return n.state == PoolNode::ready && !n.quarantined; }

}  // namespace

NodePool::NodePool(Options options, double now_s) : options_(std::move(options)) {
  ENSURE(options_.tensor > 0);
  ENSURE(options_.least_ranks > 0);
  for (const std::string& name : options_.nodes) node(name, now_s);
}

/// A node that was lost goes to the end, and those behind it come one closer: each is where it was seen last, or
/// before that.
PoolNode* NodePool::find(const std::string& name) {
  const auto seen = seen_.find(name);
  if (seen == seen_.end()) return nullptr;
  while (nodes_[seen->second].name != name) --seen->second;
  return &nodes_[seen->second];
}

PoolNode& NodePool::node(const std::string& name, double now_s) {
  if (PoolNode* known = find(name)) return *known;
  seen_.emplace(name, nodes_.size());
  nodes_.push_back({.name = name, .since_s = now_s});
  return nodes_.back();
}

// ---- nodes

void NodePool::coming(const std::string& name, double now_s) {
  PoolNode& n = node(name, now_s);
  if (n.state != PoolNode::lost) return;
  n.state = PoolNode::coming;
  n.since_s = now_s;
}

void NodePool::ready(const std::string& name, int slots, double now_s) {
  PoolNode& n = node(name, now_s);
  n.slots = slots;
  if (n.state == PoolNode::ready) return;
  n.state = PoolNode::ready;
  n.since_s = now_s;
}

NodePool::Loss NodePool::lost(const std::string& name, const std::string& why, double now_s,
                              bool by_own_pause) {
  PoolNode& n = node(name, now_s);
  if (n.state == PoolNode::lost) return {};
  const bool was_ready = n.state == PoolNode::ready;
  n.state = PoolNode::lost;
  n.since_s = now_s;
  n.why = why;
  n.place = -1;
  n.is_tested = false;  // what returns may be another machine, or have been repaired
  n.slow.clear();
  n.product_s = 0;
  Loss loss{.was_member = std::exchange(n.member, false)};
  // Losses that follow each other at once have one cause: a flapping link.
  if (was_ready && !by_own_pause &&
      (n.failures.empty() || now_s - n.failures.back().at_s >= options_.settle_s))
    loss.is_put_out = blame(n, {now_s, attempts_, why});
  // A node that returns is the last spare.
  const auto it = nodes_.begin() + (&n - nodes_.data());
  seen_.at(name) = nodes_.size() - 1;
  std::rotate(it, it + 1, nodes_.end());
  return loss;
}

bool NodePool::failed(const std::string& name, const std::string& why, double now_s, NodeFault fault,
                      NodeEvidence::Kind kind) {
  PoolNode* n = find(name);
  return n && blame(*n, {now_s, attempts_, why, kind}, fault);
}

int NodePool::ranks_without(const PoolNode& node) const {
  int others = 0;
  for (const PoolNode& p : nodes_)
    if (p.name != node.name && usable(p)) others += ranks_on(p);
  return others;
}

bool NodePool::blame(PoolNode& n, const NodeFailure& failure, NodeFault fault) {
  n.failures.push_back(failure);
  if (n.failures.size() > kMostFailures) n.failures.erase(n.failures.begin());
  std::vector<double> times;
  for (const NodeFailure& f : n.failures) times.push_back(f.at_s);
  QuarantineRules rules = options_.quarantine;
  rules.failures = enough_of(fault, rules);
  if (n.quarantined || !enough_failures(times, failure.at_s, rules)) return false;
  if (ranks_without(n) < options_.least_ranks) return false;
  put_out(n);
  return true;
}

void NodePool::put_out(PoolNode& n) {
  suspects_.push_back({n.name, n.failures});
  set_quarantined(n.name, true, true);
}

bool NodePool::is_put_out(const std::string& name) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const PoolNode& n) { return n.name == name && n.put_out; });
}

// ---- burn-in

std::vector<std::string> NodePool::untested(const std::vector<std::string>& names) const {
  std::unordered_map<std::string_view, bool> is_tested;
  for (const PoolNode& n : nodes_) is_tested.emplace(n.name, n.is_tested);
  std::vector<std::string> left;
  for (const std::string& name : names)
    if (const auto found = is_tested.find(name); found == is_tested.end() || !found->second)
      left.push_back(name);
  return left;
}

void NodePool::passed(const std::string& name, double product_s) {
  for (PoolNode& n : nodes_)
    if (n.name == name && n.state == PoolNode::ready) n.is_tested = true, n.product_s = product_s;
}

void NodePool::stepped() {
  for (PoolNode& n : nodes_)
    if (n.member) n.is_tested = true;
}

std::vector<NodePool::Slow> NodePool::find_slow(int ranks, double now_s) {
  std::vector<NodeSpeed> speeds;
  for (const PoolNode& n : nodes_)
    if (usable(n)) speeds.push_back({n.name, n.product_s});
  std::vector<Slow> found;
  for (const SlowNode& slow : slow_nodes(speeds)) {
    const std::string text = fmt::format("burn-in: products take {:.2f} times the median of {} nodes",
                                         slow.times_median, slow.nodes);
    if (auto one = found_slow(slow.node, text, ranks, now_s)) found.push_back(std::move(*one));
  }
  return found;
}

std::optional<NodePool::Slow> NodePool::found_slow(const std::string& name, const std::string& text,
                                                   int ranks, double now_s) {
  for (PoolNode& n : nodes_) {
    if (n.name != name || !usable(n) || !n.slow.empty()) continue;
    n.slow = text;
    return Slow{name, text, put_out_slow(n, ranks, now_s)};
  }
  return std::nullopt;
}

void NodePool::not_slow(const std::string& name) {
  for (PoolNode& n : nodes_)
    if (n.name == name && !n.quarantined) n.slow.clear();
}

void NodePool::judge_anew() {
  for (PoolNode& n : nodes_)
    if (!n.quarantined) n.slow.clear();
}

std::vector<NodePool::Slow> NodePool::replace_slow(int ranks, double now_s) {
  std::vector<Slow> replaced;
  for (PoolNode& n : nodes_)
    if (!n.slow.empty() && n.member && usable(n) && put_out_slow(n, ranks, now_s))
      replaced.push_back({n.name, n.slow, true});
  return replaced;
}

bool NodePool::put_out_slow(PoolNode& n, int ranks, double now_s) {
  if (ranks_without(n) < ranks) return false;
  n.failures.push_back({now_s, attempts_, n.slow, NodeEvidence::slow});
  put_out(n);
  return true;
}

void NodePool::set_quarantined(const std::string& name, bool quarantined, bool by_this_run) {
  PoolNode& n = node(name, 0);
  n.quarantined = quarantined;
  n.put_out = quarantined && by_this_run;
  n.failures.clear();
  if (quarantined)
    n.place = -1;
  else
    n.slow.clear();  // what is taken back is judged anew
}

void NodePool::pardon_if_needed() {
  int ranks = 0, all = 0;
  for (const PoolNode& n : nodes_) {
    if (usable(n)) ranks += ranks_on(n);
    if (usable(n) || (n.put_out && n.state == PoolNode::ready)) all += ranks_on(n);
  }
  if (ranks >= options_.least_ranks || all < options_.least_ranks) return;
  for (PoolNode& n : nodes_) {
    if (!n.put_out) continue;
    n.quarantined = n.put_out = false;
    std::erase_if(suspects_, [&](const PutOutNode& suspect) { return suspect.name == n.name; });
  }
}

void NodePool::progressed() {
  // The work went on without them: they are a matter for other jobs, too.
  quarantined_.insert(quarantined_.end(), suspects_.begin(), suspects_.end());
  suspects_.clear();
}

std::vector<PutOutNode> NodePool::take_quarantined() { return std::exchange(quarantined_, {}); }

// ---- attempts

std::string NodePool::begin_attempt(const std::vector<std::string>& names, double now_s) {
  ++attempts_;
  places_ = int(names.size());
  // A search for each of ten thousand names would take longer than the rest of a recovery.
  std::unordered_map<std::string_view, int> place_of;
  for (size_t i = 0; i < names.size(); ++i) place_of.emplace(names[i], int(i));
  std::vector<bool> is_ready(names.size());
  for (PoolNode& n : nodes_) {
    const auto found = place_of.find(n.name);
    n.member = found != place_of.end() && n.state == PoolNode::ready;
    n.place = n.member ? found->second : -1;
    if (n.member) is_ready[size_t(n.place)] = true;
  }
  std::string missing;
  for (size_t i = 0; i < names.size(); ++i) {
    if (is_ready[i]) continue;
    node(names[i], now_s);
    if (missing.empty()) missing = names[i];
  }
  return missing;
}

void NodePool::end_attempt() {
  for (PoolNode& n : nodes_) n.member = false;
}

std::vector<std::string> NodePool::select(int ranks) const {
  ENSURE(ranks > 0);
  std::vector<const PoolNode*> at(size_t(places_), nullptr), spares;
  for (const PoolNode& n : nodes_) {
    if (!usable(n) || ranks_on(n) == 0) continue;
    if (n.place >= 0) {
      ENSURE(n.place < places_);
      ENSURE(!at[size_t(n.place)]);  // a place belongs to one node
      at[size_t(n.place)] = &n;
    } else {
      spares.push_back(&n);
    }
  }
  auto spare = spares.begin();
  for (const PoolNode*& place : at)
    if (!place && spare != spares.end()) place = *spare++;
  at.insert(at.end(), spare, spares.end());
  std::erase(at, nullptr);
  std::vector<std::string> names;
  int carried = 0;
  for (size_t i = 0; i < at.size() && carried < ranks; ++i) {
    carried += ranks_on(*at[i]);
    names.push_back(at[i]->name);
  }
  ENSURE(carried >= ranks, "{} of {} ranks", carried, ranks);
  return names;
}

// ---- what there is

int NodePool::usable_count() const { return int(std::count_if(nodes_.begin(), nodes_.end(), usable)); }

int NodePool::usable_ranks() const {
  int ranks = 0;
  for (const PoolNode& n : nodes_)
    if (usable(n)) ranks += ranks_on(n);
  return ranks;
}

int NodePool::settled_ranks(double now_s) const {
  int ranks = 0;
  for (const PoolNode& n : nodes_)
    if (usable(n) && (n.member || n.since_s + options_.settle_s <= now_s)) ranks += ranks_on(n);
  return ranks;
}

int NodePool::coming_count() const {
  return int(std::count_if(nodes_.begin(), nodes_.end(),
                           [](const PoolNode& n) { return n.state == PoolNode::coming && !n.quarantined; }));
}

bool NodePool::has_quarantined_member() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const PoolNode& n) { return n.member && n.quarantined; });
}

}  // namespace trainctl
