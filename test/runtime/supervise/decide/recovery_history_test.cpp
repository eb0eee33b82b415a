// Goal: whatever happens to nodes, ranks and checkpoints in whatever order, the next attempt runs on the
// right nodes from the right checkpoint, restarts are counted right, and a run that is over stays over.
// Method: all histories of five events on three nodes (exhaustive) and long seeded ones, held after every
// event to a second, naive statement of the rules. TRAINCTL_TEST_SEED=N runs one seed.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "runtime/supervise/decide/recovery.h"
#include "test/support/seed.h"

using namespace trainctl;

namespace {

using Names = std::vector<std::string>;
using TooFew = Recovery::TooFew;
using Regroup = Recovery::Regroup;

AttemptEnd failed(ErrorCode code, int rank, const std::string& node) {
  return {.how = AttemptEnd::failed, .code = code, .cause = "it broke", .rank = rank, .node = node};
}

/// Drives Recovery through one history with a disk of its own, and holds every decision to the rules, stated
/// a second time.
class History {
 public:
  enum Event {
    lose_a,
    lose_b,
    lose_c,
    ready_a,
    ready_b,
    ready_c,
    step,
    save,
    rank_dies,
    bad_checkpoint,
    moments,
    regroup,
    kEvents
  };

  explicit History(TooFew policy) : recovery_(made(policy), 0) {
    for (const char* name : {"a", "b", "c"}) {
      recovery_.node_ready(name, 2, 0);
      order_.push_back(name);
      ready_.insert(name);
    }
    decide();
  }

  void happen(Event e) {
    now_s_ += e == moments ? 20 : 0.01;
    const std::string name(1, char('a' + e % 3));
    if (e <= lose_c)
      lose(name);
    else if (e <= ready_c)
      become_ready(name);
    else if (e == moments || !recovery_.running())
      return decide();
    else if (e == step)
      recovery_.progressed(++step_), high_ = std::max(high_, step_);
    else if (e == save)
      save_now();
    else if (e == rank_dies)
      end(failed(ErrorCode::kWorker, 0, last_.nodes[0]));
    else if (e == bad_checkpoint)
      break_checkpoint();
    else if (e == regroup && recovery_.regroup(now_s_) != Regroup::none)
      end({.how = AttemptEnd::regrouped});
    decide();
  }

  std::string wrong;  ///< the first broken rule, "" if none
  int attempts = 0, stops = 0;

 private:
  static Recovery::Options made(TooFew policy) {
    // Tensor groups of two on nodes of two slots: as many replicas as nodes.
    return {.widths = {{.data = 2, .ranks = 4}, {.data = 1, .ranks = 2}},
            .tensor = 2,
            .nodes = {"a", "b", "c"},
            .max_restarts = 3,
            .too_few = policy,
            .quarantine = {.failures = 0}};
  }

  void must(bool right, const char* rule) {
    if (!right && wrong.empty()) wrong = rule;
  }

  void lose(const std::string& name) {
    if (!ready_.erase(name)) return;
    recovery_.node_lost(name, "silent", now_s_);
    order_.erase(std::find(order_.begin(), order_.end(), name));
    order_.push_back(name);
    const bool member = std::find(last_.nodes.begin(), last_.nodes.end(), name) != last_.nodes.end();
    gone_since_.insert(name);
    if (recovery_.running() && member) {
      lost_ = true;
      end(failed(ErrorCode::kHang, 0, name));
    }
  }
  void become_ready(const std::string& name) {
    ready_.insert(name);
    recovery_.node_ready(name, 2, now_s_);
  }
  void save_now() {
    checkpoints_[step_] = true;
    was_saved_ = true;
    recovery_.saved(step_);
  }
  void break_checkpoint() {
    if (!last_.step) return;
    checkpoints_[*last_.step] = false;
    end(failed(ErrorCode::kCheckpoint, 0, last_.nodes[0]));
  }

  void end(const AttemptEnd& e) {
    const int before = recovery_.restarts();
    recovery_.attempt_ended(e, now_s_);
    const bool charged = e.how == AttemptEnd::failed && e.code == ErrorCode::kWorker && !lost_;
    const bool progress = high_ > high_before_ ||
                          (!checkpoints_.empty() && checkpoints_.rbegin()->first > last_.step.value_or(0));
    row_ = (progress ? 0 : row_) + int(charged);
    must(recovery_.restarts() - before == int(charged && !recovery_.over()),
         "a rank's failure alone costs a restart");
    must(row_ <= 3 || recovery_.over(), "no more restarts without progress than allowed");
    if (recovery_.over()) must(charged || idle() >= 3, "a node's loss ends the run only in a crash loop");
    // What cannot be loaded is no failure, and a regroup none either.
    const bool counted = e.how == AttemptEnd::failed && e.code != ErrorCode::kCheckpoint;
    idle_ = progress ? 0 : idle_ + int(counted);
    must(idle_ <= 9, "at most nine attempts without progress");
  }
  int idle() const { return idle_ + 1; }

  void answer(const FindCheckpoint& find) {
    int skipped = 0;
    for (auto it = checkpoints_.rbegin(); it != checkpoints_.rend(); ++it) {
      if (find.at_most && it->first > *find.at_most) continue;
      if (it->second) return recovery_.checkpoint_found(newest_usable_ = it->first);
      ++skipped;
    }
    newest_usable_ = -1;
    recovery_.no_checkpoint(skipped);
  }

  void decide() {
    while (true) {
      const Decision d = recovery_.next(now_s_);
      must(d.index() == recovery_.next(now_s_).index(), "asked twice, the answer is the same");
      if (const auto* find = std::get_if<FindCheckpoint>(&d)) {
        answer(*find);
        continue;
      }
      if (const auto* start = std::get_if<StartAttempt>(&d)) return begin(*start);
      if (std::holds_alternative<Wait>(d)) {
        must(recovery_.running() || ready_.empty(), "a run that fits does not wait");
      } else {
        must(!over_ || over_ == d.index(), "a run that is over stays over");
        over_ = d.index();
        stops = 1;
      }
      return;
    }
  }

  void begin(const StartAttempt& s) {
    ++attempts;
    must(!over_, "no attempt after the end");
    must(!s.nodes.empty() && s.nodes.size() == size_t(s.width.data), "as many nodes as are needed");
    must(s.width.data == int(std::min<size_t>(2, ready_.size())), "the largest width that fits");
    must(std::set<std::string>(s.nodes.begin(), s.nodes.end()).size() == s.nodes.size(), "each node once");
    Names spares;
    for (const std::string& name : order_) {
      const bool stays = std::find(last_.nodes.begin(), last_.nodes.end(), name) != last_.nodes.end() &&
                         !gone_since_.count(name);
      if (ready_.count(name) && !stays) spares.push_back(name);
    }
    Names expected;
    for (const std::string& name : last_.nodes)
      if (!gone_since_.count(name))
        expected.push_back(name);
      else if (!spares.empty())
        expected.push_back(spares.front()), spares.erase(spares.begin());
    expected.insert(expected.end(), spares.begin(), spares.end());
    expected.resize(std::min(expected.size(), s.nodes.size()));
    must(expected == s.nodes, "nodes that stay keep their places, spares come in order");
    must(s.step || !was_saved_, "a run that was saved does not begin at its start");
    must(!s.step || *s.step == newest_usable_, "from the newest usable checkpoint");
    last_ = s;
    step_ = s.step.value_or(0);
    checkpoints_.erase(checkpoints_.upper_bound(step_), checkpoints_.end());  // moved aside
    high_before_ = high_;
    lost_ = false;
    gone_since_.clear();
    recovery_.attempt_started(s, now_s_);
  }

  Recovery recovery_;
  double now_s_ = 0;
  Names order_;
  std::set<std::string> ready_, gone_since_;
  StartAttempt last_;
  std::map<int64_t, bool> checkpoints_;
  int64_t step_ = 0, high_ = 0, high_before_ = 0, newest_usable_ = -1;
  bool was_saved_ = false, lost_ = false;
  int idle_ = 0, row_ = 0;  ///< attempts and restarts since the last progress
  std::optional<size_t> over_;
};

}  // namespace

TEST_CASE("all histories of five events keep the rules of recovery") {
  int histories = 1, attempts = 0, stops = 0;
  for (int i = 0; i < 5; ++i) histories *= History::kEvents;
  for (int code = 0; code < histories; ++code) {
    History history(TooFew(code % 3));
    for (int i = 0, rest = code; i < 5; ++i, rest /= History::kEvents)
      history.happen(History::Event(rest % History::kEvents));
    attempts += history.attempts;
    stops += history.stops;
    if (history.wrong.empty()) continue;
    INFO("history " << code << " of events " << code % 12 << " " << code / 12 % 12 << " " << code / 144 % 12
                    << " " << code / 1728 % 12 << " " << code / 20736);
    FAIL_CHECK(history.wrong);
    if (code > 100) break;
  }
  CHECK(attempts > 2 * histories);
  CHECK(stops > 1000);
}

TEST_CASE("long random histories keep the rules of recovery") {
  for (const uint64_t seed : test::test_seeds(3000)) {
    std::mt19937 random(seed);
    History history(TooFew(seed % 3));
    for (int i = 0; i < 100; ++i) {
      // Steps and saves are more frequent than faults.
      const unsigned draw = random() % (History::kEvents + 12);
      history.happen(draw < History::kEvents ? History::Event(draw)
                     : draw < 22             ? History::step
                                             : History::save);
    }
    INFO("TRAINCTL_TEST_SEED=" << seed);
    CHECK(history.wrong == "");
  }
}
