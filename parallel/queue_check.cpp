#include "parallel/queue_check.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "parallel/virtual_stages.h"

namespace trainctl::parallel {
namespace {

/// A message: the virtual stage that receives it, its micro-batch, whether it is an activation.
using EdgeMessage = std::tuple<int, int, bool>;

/// A piece of work in the order in which a stage gives it to its device.
struct GivenWork {
  int queue = 0;
  bool computes = false;              ///< on the stream of the computations
  std::optional<EdgeMessage> moves;   ///< one end of it
  std::optional<EdgeMessage> awaits;  ///< both ends of it have met
  bool done = false;
  const Action* action = nullptr;
};

class StageQueues {
 public:
  StageQueues(const VirtualStages& order, int stage, const StepProgram& program, const QueueOfStream& queues)
      : order_(order), stage_(stage), queues_(queues) {
    for (const Action& a : program) add(a);
  }

  /// Does what can be done; whether that was anything. met: ends of messages that have been come to.
  bool go_on(std::map<EdgeMessage, std::set<int>>& met) {
    bool moved = false, computes = true;  // all computations before are done
    std::set<int> held;                   // queues
    for (GivenWork& piece : pieces_) {
      if (piece.done) continue;
      // What another stream does begins behind the computations that were given before it.
      bool done = held.count(piece.queue) == 0 && computes;
      if (done && piece.moves) {
        std::set<int>& ends = met[*piece.moves];
        moved |= ends.insert(stage_).second;
        done = ends.size() == 2;
      }
      if (done && piece.awaits) done = met[*piece.awaits].size() == 2;
      piece.done = done;
      moved |= done;
      if (done) continue;
      held.insert(piece.queue);
      if (piece.computes) computes = false;
    }
    return moved;
  }
  /// The first work that is not done.
  const GivenWork* first_held() const {
    for (const GivenWork& piece : pieces_)
      if (!piece.done) return &piece;
    return nullptr;
  }

 private:
  void add(const Action& a) {
    const auto piece = [&](StageStream stream, std::optional<EdgeMessage> moves,
                           std::optional<EdgeMessage> awaits) {
      const bool computes = stream == StageStream::compute;
      const bool back = order_.v_shaped && a.virtual_stage == 1 && !computes;
      pieces_.push_back(
          {queues_[size_t(stream)] + (back ? kStageStreams : 0), computes, moves, awaits, false, &a});
    };
    const int here = order_.global_of(stage_, a.virtual_stage);
    const auto message = [&](int receiving, bool activation) {
      return EdgeMessage{receiving, a.micro_batch, activation};
    };
    switch (a.act) {
      case Act::post_activation: return piece(StageStream::activation_in, message(here, true), {});
      case Act::post_gradient: return piece(StageStream::gradient_in, message(here, false), {});
      case Act::send_activation: return piece(StageStream::activation_out, message(here + 1, true), {});
      case Act::send_gradient: return piece(StageStream::gradient_out, message(here - 1, false), {});
      case Act::wait_activation: return piece(StageStream::compute, {}, message(here, true));
      case Act::wait_gradient: return piece(StageStream::compute, {}, message(here, false));
      case Act::release_activation: return piece(StageStream::compute, {}, message(here + 1, true));
      case Act::release_gradient: return piece(StageStream::compute, {}, message(here - 1, false));
      case Act::forward:
      case Act::backward:
      case Act::backward_input:
      case Act::backward_weight: return piece(StageStream::compute, {}, {});
      default: return;
    }
  }

  const VirtualStages& order_;
  const int stage_;
  const QueueOfStream& queues_;
  std::vector<GivenWork> pieces_;
};

}  // namespace

const char* name_of(StageStream stream) {
  static constexpr const char* kNames[kStageStreams] = {"compute", "activation_in", "gradient_in",
                                                        "activation_out", "gradient_out"};
  return kNames[int(stream)];
}

Problem queue_problem(const PipelineShape& shape, std::span<const StepProgram> programs,
                      const QueueOfStream& queues) {
  const VirtualStages order = virtual_stages_of(shape);
  std::vector<StageQueues> stages;
  for (size_t s = 0; s < programs.size(); ++s) stages.emplace_back(order, int(s), programs[s], queues);
  std::map<EdgeMessage, std::set<int>> met;
  for (bool moved = true; moved;) {
    moved = false;
    for (StageQueues& stage : stages) moved |= stage.go_on(met);
  }
  for (size_t s = 0; s < stages.size(); ++s)
    if (const GivenWork* held = stages[s].first_held())
      return Problem(
          fmt::format("stage {}: {} holds up its queue, and what would end it waits behind such a hold", s,
                      text_of(*held->action)));
  return Problem::none();
}

}  // namespace trainctl::parallel
