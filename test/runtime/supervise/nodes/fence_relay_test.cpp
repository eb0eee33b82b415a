// Goal: the ranks of every node leave every fence with all nodes' shares, however often the supervisor that passes the shares on
//       dies, and wherever in the exchange it does.
// Method: nodes as FenceShares, a NodeRelay as the supervisor, messages in queues. From a seed, messages are delivered in any
//         order between nodes; a supervisor dies with what is on its way to and from it, and each node sends the next what it
//         kept. Three named cases first.
#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <random>

#include "runtime/run/wire/fence_shares.h"
#include "runtime/supervise/nodes/node_relay.h"
#include "test/support/seed.h"

using namespace trainctl;
using wire::Kind;
using wire::Message;

namespace {

constexpr int kFences = 3;

/// The nodes of an epoch, and the supervisor between them.
class Exchange {
 public:
  explicit Exchange(int nodes) : nodes_(size_t(nodes)) { new_supervisor(); }

  void enter(int node) {
    Message share{.kind = Kind::fence, .payload = share_of(node, ++of(node).entered)};
    of(node).shares.add(share);
    of(node).up.push_back(share);
  }
  bool may_enter(int node) const {
    return of(node).entered == int(of(node).left.size()) && of(node).entered < kFences;
  }
  bool deliver_up(int node) {
    if (of(node).up.empty()) return false;
    relay_->fence(node, std::move(of(node).up.front()));
    of(node).up.pop_front();
    return true;
  }
  bool deliver_down(int node) {
    if (of(node).down.empty()) return false;
    const Message answer = of(node).down.front();
    of(node).down.pop_front();
    if (of(node).shares.answer(answer.number)) of(node).left.push_back(answer.payload);
    return true;
  }
  void new_supervisor() {
    const auto send = [this](int node, const Message& message) { of(node).down.push_back(message); };
    relay_ = std::make_unique<NodeRelay>(int(nodes_.size()), send, [](const std::string&) { return -1; });
    for (Node& node : nodes_) {
      node.down.clear();
      node.up = node.shares.kept();
    }
  }
  /// What the ranks of a node got from each fence that they have left.
  const std::vector<std::string>& left(int node) const { return of(node).left; }
  std::string all_shares(int fence) const {
    std::string all;
    for (int node = 0; node < int(nodes_.size()); ++node) all += share_of(node, fence);
    return all;
  }
  int nodes() const { return int(nodes_.size()); }

 private:
  struct Node {
    FenceShares shares;
    std::deque<Message> up, down;
    std::vector<std::string> left;
    int entered = 0;
  };
  static std::string share_of(int node, int fence) {
    return std::to_string(node) + "/" + std::to_string(fence) + ";";
  }
  Node& of(int node) { return nodes_[size_t(node)]; }
  const Node& of(int node) const { return nodes_[size_t(node)]; }
  std::vector<Node> nodes_;
  std::unique_ptr<NodeRelay> relay_;
};

}  // namespace

TEST_CASE("a supervisor that comes between the shares of a fence gets those that the one before took") {
  Exchange two(2);
  two.enter(0);
  two.deliver_up(0);
  two.new_supervisor();
  two.enter(1);
  while (two.deliver_up(0) || two.deliver_up(1) || two.deliver_down(0) || two.deliver_down(1)) {
  }
  for (const int node : {0, 1}) CHECK(two.left(node) == std::vector<std::string>{two.all_shares(1)});
}

TEST_CASE("a fence that was answered to some nodes only is answered to the others, and to none twice") {
  Exchange two(2);
  for (const int node : {0, 1}) two.enter(node), two.deliver_up(node);
  two.deliver_down(0);
  two.enter(0);  // its ranks are in the second fence, the other's still in the first
  two.new_supervisor();
  while (two.deliver_up(0) || two.deliver_up(1) || two.deliver_down(0) || two.deliver_down(1)) {
  }
  CHECK(two.left(0) == std::vector<std::string>{two.all_shares(1)});
  CHECK(two.left(1) == std::vector<std::string>{two.all_shares(1)});
  two.enter(1);
  while (two.deliver_up(1) || two.deliver_down(0) || two.deliver_down(1)) {
  }
  for (const int node : {0, 1}) CHECK(two.left(node).back() == two.all_shares(2));
}

TEST_CASE("a node that lost its connection with an answer on its way gets the answer again") {
  std::vector<std::pair<int, Message>> sent;
  NodeRelay relay(2, [&](int node, const Message& m) { sent.emplace_back(node, m); }, [](const std::string&) { return -1; });
  for (const int node : {0, 1}) relay.fence(node, {.kind = Kind::fence, .number = 1, .payload = "x"});
  sent.clear();
  relay.fence(1, {.kind = Kind::fence, .number = 1, .payload = "x"});
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].first == 1);
  CHECK(sent[0].second.payload == "xx");
}

TEST_CASE("every fence ends on every node, whenever supervisors die") {
  for (const uint64_t seed : test::test_seeds(5000)) {
    std::mt19937 random(seed);
    Exchange exchange(1 + int(random() % 4));
    const auto done = [&] {
      for (int node = 0; node < exchange.nodes(); ++node)
        if (int(exchange.left(node).size()) < kFences) return false;
      return true;
    };
    int deaths = int(random() % 6);
    for (int turn = 0; !done(); ++turn) {
      INFO("TRAINCTL_TEST_SEED=" << seed);
      REQUIRE(turn < 10000);
      const int node = int(random() % uint32_t(exchange.nodes()));
      const uint32_t what = random() % 8;
      if (what == 0 && deaths > 0 && deaths-- > 0) exchange.new_supervisor();
      if (what < 3 && exchange.may_enter(node)) exchange.enter(node);
      if (what >= 3 && what < 6) exchange.deliver_up(node);
      if (what >= 6) exchange.deliver_down(node);
    }
    for (int node = 0; node < exchange.nodes(); ++node)
      for (int fence = 1; fence <= kFences; ++fence)
        if (exchange.left(node)[size_t(fence) - 1] != exchange.all_shares(fence))
          FAIL("TRAINCTL_TEST_SEED=" << seed << ", fence " << fence);
  }
}
