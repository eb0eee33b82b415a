#include "parallel/v_schedules.h"

#include <cstdint>
#include <deque>
#include <limits>

#include "parallel/stage_writer.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

/// Local virtual stages: the one on the way down the stages, and the one on the way back up.
constexpr int kDown = 0, kUp = 1;

/// Writes the program of one stage by kinds of work: of each kind and virtual stage the micro-batches follow
/// in order, and weight gradients in the order of their input halves.
class VWriter {
 public:
  VWriter(const PipelineShape& shape, int stage) : writer_(shape, stage) {}

  bool weights_left() const { return !late_.empty(); }
  int next_forward(int c) const { return forwards_[c]; }
  int next_backward(int c) const { return backwards_[c]; }

  void forward(int c) { writer_.forward({c, forwards_[c]++}); }
  /// Only the input half.
  void backward_input(int c) {
    late_.push_back({c, backwards_[c]});
    writer_.backward_input({c, backwards_[c]++});
  }
  /// The oldest that was left out.
  void backward_weight() {
    writer_.backward_weight(late_.front());
    late_.pop_front();
  }
  void backward(int c) {
    ENSURE(late_.empty(), "a weight gradient is left out before a whole backward");
    backward_input(c);
    backward_weight();
  }
  Program finish() { return writer_.finish(); }

 private:
  StageWriter writer_;
  int forwards_[2] = {}, backwards_[2] = {};
  std::deque<Work> late_;
};

/// What a stage computes, as ZB-V's begin lists it.
struct Piece {
  Op op;
  int virtual_stage;
};

/// Up to a stage's last forward: as many forwards on the way down as pass until the first micro-batch comes
/// back; then one of each way until its loss comes back; then each backward in turn, with its weight
/// gradient, beside the forwards that its memory allows.
std::vector<Piece> zb_v_begin(const PipelineShape& shape, int stage) {
  std::vector<Piece> pieces;
  int forwards[2] = {}, backwards[2] = {};
  const auto forward = [&](int c) {
    if (forwards[c] == shape.micro_batches) return;
    ++forwards[c];
    pieces.push_back({Op::forward, c});
  };
  const auto backward = [&](int c) {
    if (backwards[c] == shape.micro_batches) return;
    ++backwards[c];
    pieces.push_back({Op::backward_input, c});
    pieces.push_back({Op::backward_weight, c});
  };
  const int below = shape.stages - stage;
  for (int i = 0; i < 2 * below - 1; ++i) forward(kDown);
  for (int i = 0; i < stage; ++i) forward(kUp), forward(kDown);
  for (int i = 0; i < below; ++i) forward(kUp), backward(kUp);
  while (forwards[kUp] < shape.micro_batches) {
    forward(kDown);
    backward(kDown);
    if (forwards[kUp] == shape.micro_batches) break;
    forward(kUp);
    backward(kUp);
  }
  return pieces;
}

/// Runs all stages together in steps of one unit, which is what a forward and each half of a backward takes.
class ZbV {
 public:
  explicit ZbV(const PipelineShape& shape)
      : shape_(shape),
        order_(virtual_stages_of(shape)),
        begun_(size_t(shape.stages), 0),
        forward_end_(size_t(order_.count()) * size_t(shape.micro_batches), kNever),
        backward_end_(forward_end_) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      writers_.emplace_back(shape, stage);
      begins_.push_back(zb_v_begin(shape, stage));
    }
  }

  std::vector<Program> run() {
    // As long as work is left, at least one stage computes in each unit.
    const int64_t most = int64_t{6} * shape_.micro_batches * shape_.stages;
    for (int64_t left = most; left > 0; ++now_) {
      ENSURE(now_ <= most, "zb-v of {} stages and {} micro-batches waits for ever", shape_.stages,
             shape_.micro_batches);
      for (int stage = 0; stage < shape_.stages; ++stage) left -= advance(stage);
    }
    std::vector<Program> programs;
    for (VWriter& writer : writers_) programs.push_back(writer.finish());
    return programs;
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();

  int& end_of(std::vector<int>& ends, int c, int micro_batch) {
    return ends[size_t(c) * size_t(shape_.micro_batches) + size_t(micro_batch)];
  }
  bool is_done(std::vector<int>& ends, int c, int micro_batch) {
    return end_of(ends, c, micro_batch) <= now_;
  }
  bool forward_ready(int stage, int local) {
    const int c = order_.global_of(stage, local), m = writers_[size_t(stage)].next_forward(local);
    return m < shape_.micro_batches && (c == 0 || is_done(forward_end_, c - 1, m));
  }
  bool backward_ready(int stage, int local) {
    const int c = order_.global_of(stage, local), m = writers_[size_t(stage)].next_backward(local);
    return m < shape_.micro_batches && is_done(forward_end_, c, m) &&
           (c + 1 == order_.count() || is_done(backward_end_, c + 1, m));
  }

  void forward(int stage, int local) {
    const int m = writers_[size_t(stage)].next_forward(local);
    end_of(forward_end_, order_.global_of(stage, local), m) = now_ + 1;
    writers_[size_t(stage)].forward(local);
  }
  void backward(int stage, int local) {
    const int m = writers_[size_t(stage)].next_backward(local);
    end_of(backward_end_, order_.global_of(stage, local), m) = now_ + 1;
    writers_[size_t(stage)].backward_input(local);
  }

  /// The work that a stage begins now; 0: it waits.
  int advance(int stage) {
    size_t& begun = begun_[size_t(stage)];
    const std::vector<Piece>& begin = begins_[size_t(stage)];
    if (begun == begin.size()) return drain(stage);
    const Piece piece = begin[begun];
    if (piece.op == Op::forward) {
      if (!forward_ready(stage, piece.virtual_stage)) return 0;
      forward(stage, piece.virtual_stage);
    } else if (piece.op == Op::backward_input) {
      if (!backward_ready(stage, piece.virtual_stage)) return 0;
      backward(stage, piece.virtual_stage);
    } else {
      writers_[size_t(stage)].backward_weight();
    }
    ++begun;
    return 1;
  }

  /// Behind the last forward: the oldest backward that can run, and else a weight gradient.
  int drain(int stage) {
    VWriter& writer = writers_[size_t(stage)];
    const bool up = backward_ready(stage, kUp), down = backward_ready(stage, kDown);
    if (up || down) {
      const bool older = writer.next_backward(kUp) < writer.next_backward(kDown);
      backward(stage, up && (!down || older) ? kUp : kDown);
      return 1;
    }
    if (!writer.weights_left()) return 0;
    writer.backward_weight();
    return 1;
  }

  const PipelineShape& shape_;
  const VirtualStages order_;
  std::vector<VWriter> writers_;
  std::vector<std::vector<Piece>> begins_;
  std::vector<size_t> begun_;                    // pieces of begins_
  std::vector<int> forward_end_, backward_end_;  // [virtual stage][micro-batch]
  int now_ = 0;
};

Program dualpipev_program(const PipelineShape& shape, int stage) {
  const int below = shape.stages - stage - 1, above = stage + 1;
  VWriter w(shape, stage);
  for (int i = 0; i < 2 * below; ++i) w.forward(kDown);
  for (int i = 0; i < above; ++i) w.forward(kDown), w.forward(kUp);
  for (int i = 0; i < below; ++i) {
    w.backward_input(kUp);
    w.backward_weight();
    w.forward(kUp);
  }
  // The pairs: a forward one way beside a backward the other way.
  for (int i = 0; i < shape.micro_batches - 2 * shape.stages + above; ++i) {
    w.forward(kDown), w.backward(kUp);
    w.forward(kUp), w.backward(kDown);
  }
  for (int i = 0; i < below; ++i) {
    w.backward(kUp);
    w.forward(kUp), w.backward(kDown);
  }
  // From the middle of these backwards on, weight gradients wait until there is nothing else to do.
  for (int i = 0; i < 2 * above; ++i) {
    const int c = i % 2 == 0 ? kUp : kDown;
    if (i < above)
      w.backward(c);
    else
      w.backward_input(c);
  }
  for (int i = 0; i < below; ++i) {
    w.backward_weight();
    w.backward_input(kDown);
  }
  while (w.weights_left()) w.backward_weight();
  return w.finish();
}

}  // namespace

std::vector<Program> zb_v_programs(const PipelineShape& shape) { return ZbV(shape).run(); }

std::vector<Program> dualpipev_programs(const PipelineShape& shape) {
  std::vector<Program> programs;
  for (int stage = 0; stage < shape.stages; ++stage) programs.push_back(dualpipev_program(shape, stage));
  return programs;
}

}  // namespace trainctl::parallel
