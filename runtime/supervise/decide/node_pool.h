// NodePool is the order of a run's nodes and what is known of each: whether it can be used, its place in the
// attempts, and its failures. Pure.
//
// An attempt uses the first usable nodes that carry its ranks. A node that stays keeps its place, so that its
// ranks stay where their checkpoint memory is. The first spare gets the place of a lost node. A node that
// returns goes to the end of the order. A node on which failures repeat is put into quarantine if the other
// nodes carry the run.
//
// Every input has its time, in monotonic seconds.
#pragma once
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/supervise/decide/quarantine.h"

namespace trainctl {

/// What a failed attempt says of the node on which it failed.
enum class NodeFault {
  possible,  ///< a rank failed there
  start,     ///< it could not start its ranks
  device,    ///< its device says itself that it is broken
};

/// A failure of a node: it was lost, or an attempt failed there.
struct NodeFailure {
  double at_s = 0;
  int attempt = 0;  ///< how many attempts of this supervisor had begun
  std::string why;
  NodeEvidence::Kind kind = NodeEvidence::failure;
};

struct PoolNode {
  std::string name;
  int slots = 0;
  enum State { coming, ready, lost } state = coming;  ///< coming: its agent is being started
  bool quarantined = false;
  bool put_out = false;          ///< quarantined by this run
  double since_s = 0;            ///< when it entered this state
  std::string why;               ///< why it was lost
  int place = -1;                ///< index in the nodes of the current or last attempt; -1: not one of them
  bool member = false;           ///< a node of the current attempt
  std::vector<NodeFailure> failures;  ///< the newest
  // Of its burn-in since it came.
  bool is_tested = false;  ///< and nothing was wrong
  double product_s = 0;    ///< NodeTest::product_s; 0: not measured
  std::string slow = {};   ///< by what it was found to be slow, as it was said; "": it was not
};

/// A node without which the run went on, with the failures that put it out.
struct PutOutNode {
  std::string name;
  std::vector<NodeFailure> failures;
};

class NodePool {
 public:
  struct Options {
    std::vector<std::string> nodes;  ///< names in order; all begin in state coming
    int tensor = 1;  ///< so many consecutive ranks share a node (the size of a tensor group); 1: no such rule
    int least_ranks = 1;  ///< of the smallest width: fewer do not carry the run
    double settle_s = 5;  ///< losses of a node that follow each other sooner have one cause
    QuarantineRules quarantine;
  };
  NodePool(Options options, double now_s);

  // ---- nodes; one with a new name is added at the end
  void coming(const std::string& name, double now_s);
  void ready(const std::string& name, int slots, double now_s);
  struct Loss {
    bool was_member = false;  ///< of the current attempt
    bool is_put_out = false;  ///< it was lost so often that it is in quarantine now
  };
  /// Nothing happens if it is lost already. `by_own_pause`: it is no failure of the node.
  Loss lost(const std::string& name, const std::string& why, double now_s, bool by_own_pause = false);
  /// An attempt has failed on that node. Returns true if the node is in quarantine now, for that.
  /// As many as the rules of quarantine want are enough, two starts that failed, or one broken device.
  bool failed(const std::string& name, const std::string& why, double now_s,
              NodeFault fault = NodeFault::possible, NodeEvidence::Kind kind = NodeEvidence::failure);
  /// This run has put it out and not used it since.
  bool is_put_out(const std::string& name) const;

  // ---- burn-in
  /// Those of `names` that were not tested since they came.
  std::vector<std::string> untested(const std::vector<std::string>& names) const;
  /// A node has passed its test.
  void passed(const std::string& name, double product_s);
  /// The nodes of the attempt have made a step: what was to be tested has passed.
  void stepped();
  /// The nodes that turn out to be slower than the others, each once. One is put out if the others carry
  /// `ranks` without it, so if a spare can take its place: now, or when one has come (replace_slow).
  struct Slow {
    std::string node, text;
    bool is_put_out = false;
  };
  std::vector<Slow> find_slow(int ranks, double now_s);
  /// Likewise of a node that the steps show to be slow. nullopt: it is known, or not there.
  std::optional<Slow> found_slow(const std::string& name, const std::string& text, int ranks, double now_s);
  /// It is as fast as the others again.
  void not_slow(const std::string& name);
  /// Nodes that were found to be slow may be found again.
  void judge_anew();
  /// The slow nodes of the attempt whose place a spare can take now: they are put out.
  std::vector<Slow> replace_slow(int ranks, double now_s);
  /// See Recovery::set_quarantined.
  void set_quarantined(const std::string& name, bool quarantined, bool by_this_run);
  /// A suspect node is better than none: what this run has put out is used again where the run fits in no
  /// other way.
  void pardon_if_needed();
  /// The run made progress without the nodes that it has put out.
  void progressed();
  /// These nodes, since the last call.
  std::vector<PutOutNode> take_quarantined();
  /// How many attempts have begun.
  int attempts() const { return attempts_; }

  // ---- attempts
  /// An attempt begins on these nodes, in the order of their ranks. Returns the first that is not ready; "":
  /// all are.
  std::string begin_attempt(const std::vector<std::string>& names, double now_s);
  void end_attempt();
  /// The nodes of the next attempt, which carry `ranks`. Nodes that are usable must carry that many.
  std::vector<std::string> select(int ranks) const;

  // ---- what there is
  const std::vector<PoolNode>& nodes() const { return nodes_; }
  int usable_count() const;
  /// Ranks that the usable nodes carry.
  int usable_ranks() const;
  /// The same, of nodes of the attempt and of those that are ready since settle_s.
  int settled_ranks(double now_s) const;
  /// Nodes that are being started and may be used then.
  int coming_count() const;
  bool has_quarantined_member() const;

 private:
  PoolNode* find(const std::string& name);
  PoolNode& node(const std::string& name, double now_s);
  int ranks_on(const PoolNode& node) const { return node.slots / options_.tensor * options_.tensor; }
  int ranks_without(const PoolNode& node) const;
  bool blame(PoolNode& node, const NodeFailure& failure, NodeFault fault = NodeFault::possible);
  bool put_out_slow(PoolNode& node, int ranks, double now_s);
  void put_out(PoolNode& node);

  Options options_;
  std::vector<PoolNode> nodes_;
  std::unordered_map<std::string, size_t> seen_;  ///< by name: the place in nodes_ at which it was last
  int attempts_ = 0;
  int places_ = 0;                        ///< number of nodes of the current or last attempt
  std::vector<PutOutNode> suspects_;      ///< put out by this run
  std::vector<PutOutNode> quarantined_;   ///< suspects without which the run made progress
};

}  // namespace trainctl
