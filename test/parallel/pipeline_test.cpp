// Goal: every legal shape of every schedule gives programs that are complete, in order, free of deadlock and
// within their memory bound; the simulator agrees with the published bubbles; the drawing shows what was
// simulated. Method: exhaustive over stages 1..8, virtual stages 1..4, micro-batches 1..32. The checker's own
// faults are hunted in pipeline_check_test.cpp. Golden drawings: made by draw() itself and read by eye.
#include "parallel/pipeline.h"
#include "parallel/schedules.h"
#include "test/support/merged_schedule.h"
#include "test/support/tolerances.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

namespace trainctl::parallel {
namespace {

constexpr Schedule kSchedules[] = {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved,
                                   Schedule::zb_h1, Schedule::zb_v,        Schedule::dualpipev,
                                   kMergedSchedule};

std::string shape_text(const PipelineShape& shape) {
  std::ostringstream text;
  text << name_of(shape.schedule) << " stages " << shape.stages << " virtual " << shape.virtual_stages
       << " micro-batches " << shape.micro_batches;
  return text.str();
}

template <typename Visit>
void for_each_legal_shape(Visit visit) {
  int shapes = 0;
  for (Schedule schedule : kSchedules)
    for (int stages = 1; stages <= 8; ++stages)
      for (int virtual_stages = 1; virtual_stages <= 4; ++virtual_stages)
        for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
          const PipelineShape shape{schedule, stages, virtual_stages, micro_batches};
          if (shape_problem(shape).exists()) continue;
          INFO(shape_text(shape));
          visit(shape);
          ++shapes;
        }
  const int in_groups = 4 * (32 + 16 + 10 + 8 + 6 + 5 + 4 + 4), from_two_rounds_on = 8 * 33 - 2 * (8 * 9 / 2);
  const int any_or_in_groups = 8 * 32 + in_groups / 4 * 3;
  CHECK(shapes == (3 + 1) * 8 * 32 + in_groups + from_two_rounds_on + any_or_in_groups);
}

TEST_CASE("schedules by name") {
  for (Schedule schedule : kSchedules) CHECK(schedule_named(name_of(schedule)) == schedule);
  CHECK(std::size(kSchedules) == schedules().size());
  CHECK(schedule_named("merged-1f1b") == kMergedSchedule);
  CHECK(!schedule_named("1F1B"));
  CHECK(!schedule_named(""));
}

TEST_CASE("shapes that cannot be scheduled are named with what to do") {
  CHECK(shape_problem({Schedule::interleaved, 4, 2, 6}).text() ==
        "micro_batches = 6 is not divisible by stages = 4, which the schedule interleaved needs; use 4 or 8");
  CHECK(shape_problem({Schedule::interleaved, 4, 2, 3}).text() ==
        "micro_batches = 3 is not divisible by stages = 4, which the schedule interleaved needs; use 4");
  CHECK(
      shape_problem({Schedule::zb_h1, 4, 2, 8}).text() ==
      "virtual_stages = 2 does not suit the schedule zb-h1, which has 1; use 1, or the schedule interleaved");
  CHECK(shape_problem({Schedule::zb_v, 4, 1, 8}).text() ==
        "virtual_stages = 1 does not suit the schedule zb-v, which has 2; use 2");
  CHECK(shape_problem({Schedule::dualpipev, 4, 4, 8}).text() ==
        "virtual_stages = 4 does not suit the schedule dualpipev, which has 2; use 2, or the schedule "
        "interleaved");
  CHECK(shape_problem({Schedule::dualpipev, 4, 2, 7}).text() ==
        "micro_batches = 7 is fewer than 2 * stages = 8, which the schedule dualpipev needs; use at least 8");
  CHECK(shape_problem({kMergedSchedule, 4, 2, 6}).text() ==
        "micro_batches = 6 is not divisible by stages = 4, which the schedule merged-1f1b needs with several "
        "virtual stages; use 4 or 8");
  CHECK(shape_problem({kMergedSchedule, 4, 1, 6}).is_none());
  CHECK(shape_problem({Schedule::gpipe, 0, 1, 8}).text() == "stages = 0 is less than 1; use at least 1");
  CHECK(shape_problem({Schedule::gpipe, 1, 0, 8}).text() ==
        "virtual_stages = 0 is less than 1; use at least 1");
  CHECK(shape_problem({Schedule::gpipe, 1, 1, 0}).text() ==
        "micro_batches = 0 is less than 1; use at least 1");
}

TEST_CASE("every program of every legal shape passes the checker, within its memory bound") {
  for_each_legal_shape([](const PipelineShape& shape) {
    const CheckResult result = check_programs(shape, make_programs(shape));
    REQUIRE(result.problem.text_or_empty() == "");
    REQUIRE(result.peak_in_flight.size() == static_cast<size_t>(shape.stages));
    const int p = shape.stages, v = shape.virtual_stages, m = shape.micro_batches;
    for (int stage = 0; stage < p; ++stage) {
      const int peak = result.peak_in_flight[static_cast<size_t>(stage)];
      if (shape.schedule == Schedule::gpipe) REQUIRE(peak == m);
      if (shape.schedule == Schedule::one_f_one_b) REQUIRE(peak == std::min(m, p - stage));
      if (shape.schedule == Schedule::zb_h1) REQUIRE(peak == std::min(m, p));
      if (shape.schedule == Schedule::zb_v) REQUIRE(peak <= 2 * std::min(m, p));  // halves of a stage's
      if (shape.schedule == Schedule::dualpipev) REQUIRE(peak <= 2 * p + 1);
      if (shape.schedule == kMergedSchedule)
        REQUIRE(peak == std::min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 2));
      if (shape.schedule == Schedule::interleaved && v > 1) {
        REQUIRE(peak == std::min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1));
      }
    }
  });
}

TEST_CASE("gpipe, 1f1b, interleaved and merged-1f1b finish weights at once, but send the gradient before") {
  for_each_legal_shape([](const PipelineShape& shape) {
    if (kind_of(shape.schedule).splits_backward) return;
    bool right = true;
    for (const Program& program : make_programs(shape)) {
      for (size_t i = 0; i < program.size(); ++i) {
        if (program[i].op != Op::backward_input) continue;
        const bool leaves = program[i + 1].op == Op::send_gradient || program[i + 1].op == Op::pass_gradient;
        const size_t weight = i + (leaves ? 2 : 1);
        right = right && program[weight] == Instruction{Op::backward_weight, program[i].virtual_stage,
                                                        program[i].micro_batch};
      }
    }
    REQUIRE(right);
  });
}

TEST_CASE("one stage exchanges no messages, and reduces its last virtual stage first") {
  for_each_legal_shape([](const PipelineShape& shape) {
    const std::vector<Program> programs = make_programs(shape);
    std::vector<int> reduced;
    for (const Instruction& instruction : programs.back()) {
      const bool message = instruction.op == Op::send_activation || instruction.op == Op::send_gradient ||
                           instruction.op == Op::receive_activation || instruction.op == Op::receive_gradient;
      if (shape.stages == 1) REQUIRE(!message);
      if (instruction.op == Op::reduce) reduced.push_back(instruction.virtual_stage);
    }
    REQUIRE(reduced.size() == static_cast<size_t>(shape.virtual_stages));
    REQUIRE(std::is_sorted(reduced.rbegin(), reduced.rend()));
  });
}

double ideal_time(const PipelineShape& shape, const PipelineCosts& costs) {
  return shape.micro_batches * shape.virtual_stages *
         (costs.forward + costs.backward_input + costs.backward_weight);
}

TEST_CASE("the simulated bubble is the closed form's") {
  for_each_legal_shape([](const PipelineShape& shape) {
    // The literature counts the whole backward as one operation, twice a forward, except for zero bubble.
    const bool zero_bubble = kind_of(shape.schedule).splits_backward;
    const PipelineCosts costs = zero_bubble ? PipelineCosts{1, 1, 1, 0} : PipelineCosts{1, 2, 0, 0};
    const Timeline timeline = simulate(shape, make_programs(shape), costs);
    const double bubble = timeline.makespan / ideal_time(shape, costs) - 1;
    const auto expected = closed_form_bubble(shape);
    const bool fills = shape.micro_batches >= 2 * shape.stages;
    REQUIRE(bool(expected) == (fills || shape.schedule != Schedule::zb_v));
    if (!expected) return;
    REQUIRE(bubble == Approx(*expected).margin(test::tolerance::kFormula));
    REQUIRE(timeline.bubble_fraction == Approx(bubble / (1 + bubble)).margin(test::tolerance::kFormula));
  });
  CHECK(!closed_form_bubble({Schedule::interleaved, 4, 2, 6}));
}

TEST_CASE("sending the gradient first saves a weight gradient per stage") {
  for_each_legal_shape([](const PipelineShape& shape) {
    if (kind_of(shape.schedule).splits_backward) return;
    const PipelineCosts costs{1, 1, 1, 0};
    const Timeline timeline = simulate(shape, make_programs(shape), costs);
    REQUIRE(timeline.makespan - ideal_time(shape, costs) == 2.0 * (shape.stages - 1));
  });
}

TEST_CASE("zb-h1 has a third of the bubble of gpipe and half of our 1f1b") {
  const PipelineCosts costs{1, 1, 1, 0};
  const PipelineShape zero_bubble{Schedule::zb_h1, 4, 1, 8}, alternating{Schedule::one_f_one_b, 4, 1, 8};
  CHECK(simulate(zero_bubble, make_programs(zero_bubble), costs).makespan == 27);
  CHECK(simulate(alternating, make_programs(alternating), costs).makespan == 30);
  CHECK(*closed_form_bubble(zero_bubble) == Approx(*closed_form_bubble(alternating) / 3));
}

TEST_CASE("virtual stages of a V go down the stages and back up") {
  for (int stages = 1; stages <= 9; ++stages) {
    const VirtualStages v{stages, 2, true}, ring{stages, 3};
    for (const VirtualStages& order : {v, ring})
      for (int c = 0; c < order.count(); ++c) {
        CAPTURE(stages, order.v_shaped, c);
        const int turn = order.v_shaped && c >= stages ? 2 * stages - 1 - c : c % stages;
        REQUIRE(order.stage_of(c) == turn);
        REQUIRE(order.global_of(order.stage_of(c), order.local_of(c)) == c);
        const bool passed = order.v_shaped ? c == stages : c > 0 && stages == 1;
        REQUIRE(order.passed_to(c) == passed);
        REQUIRE(order.received_by(c) == (c > 0 && !passed));
        if (c > 0) REQUIRE(order.sent_by(c - 1) == order.received_by(c));
      }
    CHECK(v.last_stage() == 0);
    CHECK(ring.last_stage() == stages - 1);
  }
}

TEST_CASE("in zb-v no stage waits between its first and its last piece of work") {
  // With forwards and halves of backwards that take equally long, from 2 micro-batches a stage on, and with
  // no more memory than 1f1b has on its first stage.
  for (int p = 1; p <= 16; ++p)
    for (int m : {2 * p, 2 * p + 1, 3 * p, 5 * p + 2}) {
      const PipelineShape shape{Schedule::zb_v, p, 2, m};
      INFO(shape_text(shape));
      const Timeline timeline = simulate(shape, make_programs(shape), {1, 1, 1, 0});
      for (int stage = 0; stage < p; ++stage) {
        const std::vector<Span>& spans = timeline.stages[size_t(stage)];
        REQUIRE(spans.front().begin == stage);
        REQUIRE(spans.back().end - spans.front().begin == 6 * m);
      }
    }
}

using Pieces = std::vector<std::vector<Instruction>>;

/// The program of a stage whose pieces are one operation each: what a piece needs is received before it, what
/// it makes is sent behind it.
Program program_of(const PipelineShape& shape, int stage, const Pieces& pieces) {
  const VirtualStages order = virtual_stages_of(shape);
  Program result;
  for (const std::vector<Instruction>& piece : pieces) {
    for (const Instruction& i : piece) {
      const int c = order.global_of(stage, i.virtual_stage);
      if (i.op == Op::forward && order.received_by(c))
        result.push_back({Op::receive_activation, i.virtual_stage, i.micro_batch});
      if (i.op == Op::backward_input && order.sent_by(c))
        result.push_back({Op::receive_gradient, i.virtual_stage, i.micro_batch});
    }
    result.insert(result.end(), piece.begin(), piece.end());
    for (const Instruction& i : piece) {
      const int c = order.global_of(stage, i.virtual_stage);
      if (i.op == Op::forward && order.sent_by(c))
        result.push_back({Op::send_activation, i.virtual_stage, i.micro_batch});
      if (i.op == Op::backward_input && order.received_by(c))
        result.push_back({Op::send_gradient, i.virtual_stage, i.micro_batch});
    }
  }
  return result;
}

std::vector<Instruction> computations(const Program& program) {
  std::vector<Instruction> work;
  std::copy_if(program.begin(), program.end(), std::back_inserter(work), [](const Instruction& i) {
    return i.op == Op::forward || i.op == Op::backward_input || i.op == Op::backward_weight;
  });
  return work;
}

/// The program of a stage under merged-1f1b in which a forward and the whole backward behind it are one piece.
Program in_merged_pairs(const PipelineShape& shape, const Program& program, int stage) {
  Pieces pieces;
  const int ahead = 2 * (shape.stages - stage - 1) + (shape.virtual_stages - 1) * shape.stages + 1;
  const bool pairs = ahead < shape.virtual_stages * shape.micro_batches;  // else all forwards come first
  for (const Instruction& i : computations(program)) {
    const bool behind_forward = !pieces.empty() && pieces.back().back().op == Op::forward;
    const bool joins = i.op == Op::backward_weight || (i.op == Op::backward_input && pairs && behind_forward);
    if (!joins) pieces.emplace_back();
    pieces.back().push_back(i);
    const Instruction& first = pieces.back().front();
    const bool own = first.virtual_stage == i.virtual_stage && first.micro_batch == i.micro_batch;
    if (first.op == Op::forward && i.op == Op::backward_input) REQUIRE(!own);
  }
  return program_of(shape, stage, pieces);
}

TEST_CASE("in merged-1f1b neither of a forward and the backward behind it waits for the other") {
  // So both could be one operation: then, too, every program ends, with the published bubble. Under 1f1b and
  // interleaved the last stage would wait for itself.
  for_each_legal_shape([](const PipelineShape& shape) {
    if (shape.schedule != kMergedSchedule) return;
    std::vector<Program> pairs;
    for (const Program& program : make_programs(shape))
      pairs.push_back(in_merged_pairs(shape, program, int(pairs.size())));
    const PipelineCosts costs{1, 1, 1, 0};
    const Timeline timeline = simulate(shape, pairs, costs);
    REQUIRE(timeline.makespan - ideal_time(shape, costs) == 3 * (shape.stages - 1));
  });
}

TEST_CASE("under merged-1f1b a message as long as half a forward and backward makes no stage wait longer") {
  // A further round of micro-batches takes as long as its computations; under 1f1b the messages of one
  // micro-batch come on top.
  const PipelineCosts costs{1, 1, 1, 1.5};
  for (int p = 2; p <= 16; ++p) {
    CAPTURE(p);
    const auto round = [&](Schedule schedule) {
      const auto time = [&](int rounds) {
        const PipelineShape shape{schedule, p, 1, rounds * p};
        std::vector<Program> programs = make_programs(shape);
        for (Program& program : programs) join_halves(program);  // as the trainer runs them
        return simulate(shape, programs, costs).makespan;
      };
      return time(7) - time(6);
    };
    REQUIRE(round(kMergedSchedule) == 3 * p);
    REQUIRE(round(Schedule::one_f_one_b) == 3 * p + 2 * costs.transfer * (p - 1));
  }
}

/// The program of one stage in pieces that are one operation each, as DualPipeV's bubble was published: a
/// forward and a whole backward of the pairs, a whole backward whose halves are together, or a half alone.
Program in_pieces(const PipelineShape& shape, const Program& program, int stage) {
  Pieces pieces;
  const std::vector<Instruction> work = computations(program);
  const int below = shape.stages - stage - 1, above = stage + 1;
  const size_t begin = size_t(2 * below + 2 * above + 3 * below);  // of the pairs
  const size_t pairs_end = begin + size_t(6 * (shape.micro_batches - 2 * shape.stages + above) + 5 * below);
  const auto is = [&](size_t i, Op op) { return i < work.size() && work[i].op == op; };
  for (size_t i = 0; i < work.size();) {
    const bool pair = i >= begin && i < pairs_end && is(i, Op::forward);
    const size_t backward = i + pair;
    const bool whole = i >= begin && is(backward, Op::backward_input) &&
                       is(backward + 1, Op::backward_weight) &&
                       work[backward].virtual_stage == work[backward + 1].virtual_stage &&
                       work[backward].micro_batch == work[backward + 1].micro_batch;
    const size_t length = pair ? 3 : whole ? 2 : 1;
    REQUIRE((!pair || whole));
    pieces.emplace_back(work.begin() + long(i), work.begin() + long(i + length));
    i += length;
  }
  return program_of(shape, stage, pieces);
}

TEST_CASE("dualpipev has the published bubble where a pair is one operation, and half of it as it runs") {
  // (PP/2 - 1) (F&B + B - 3W) with PP = 2 p virtual stages, B a whole backward, W its weight half, F&B a
  // pair: github.com/deepseek-ai/DualPipe. Here a pair takes as long as its parts one after another.
  for (int p = 1; p <= 8; ++p)
    for (int m = 2 * p; m <= 32; ++m)
      for (const PipelineCosts& costs : {PipelineCosts{1, 1, 1, 0}, PipelineCosts{2, 2, 1, 0}}) {
        const PipelineShape shape{Schedule::dualpipev, p, 2, m};
        INFO(shape_text(shape));
        const std::vector<Program> programs = make_programs(shape);
        std::vector<Program> pieces;
        for (int stage = 0; stage < p; ++stage)
          pieces.push_back(in_pieces(shape, programs[size_t(stage)], stage));
        const double backward = costs.backward_input + costs.backward_weight, pair = costs.forward + backward;
        const double published = (p - 1) * (pair + backward - 3 * costs.backward_weight);
        REQUIRE(simulate(shape, pieces, costs).makespan - ideal_time(shape, costs) == published);
        const double ours = simulate(shape, programs, costs).makespan - ideal_time(shape, costs);
        REQUIRE(ours <= published);
        if (costs.forward == costs.backward_weight) REQUIRE(2 * ours == published);
      }
}

/// Where one (virtual_stage, micro_batch) ran, by its global virtual stage.
const Span& span_of(const PipelineShape& shape, const Timeline& timeline, Op op, int global_virtual_stage,
                    int micro_batch) {
  const VirtualStages order = virtual_stages_of(shape);
  const Instruction wanted{op, order.local_of(global_virtual_stage), micro_batch};
  for (const Span& span : timeline.stages[static_cast<size_t>(order.stage_of(global_virtual_stage))]) {
    if (span.instruction == wanted) return span;
  }
  FAIL("not in the timeline");
  throw;
}

TEST_CASE("simulated spans neither overlap nor run before what they need") {
  const PipelineCosts costs{1.25, 1.5, 0.75, 0.5};  // exact in binary
  for_each_legal_shape([&](const PipelineShape& shape) {
    const Timeline timeline = simulate(shape, make_programs(shape), costs);
    const int virtual_stages = shape.stages * shape.virtual_stages;
    const VirtualStages order = virtual_stages_of(shape);
    bool right = true;
    for (const auto& spans : timeline.stages) {
      right = right && spans.size() == static_cast<size_t>(3 * shape.virtual_stages * shape.micro_batches);
      for (size_t i = 1; i < spans.size(); ++i) right = right && spans[i].begin >= spans[i - 1].end;
    }
    for (int micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch) {
      for (int virtual_stage = 0; virtual_stage < virtual_stages; ++virtual_stage) {
        const auto span = [&](Op op, int at) { return span_of(shape, timeline, op, at, micro_batch); };
        const Span forward = span(Op::forward, virtual_stage),
                   input = span(Op::backward_input, virtual_stage);
        right = right && forward.end - forward.begin == 1.25 && input.end - input.begin == 1.5;
        right = right && input.begin >= forward.end &&
                span(Op::backward_weight, virtual_stage).begin >= input.end;
        if (virtual_stage == 0) continue;
        const double transfer = order.received_by(virtual_stage) ? costs.transfer : 0;
        right = right && forward.begin >= span(Op::forward, virtual_stage - 1).end + transfer;
        right = right && span(Op::backward_input, virtual_stage - 1).begin >= input.end + transfer;
      }
    }
    REQUIRE(right);
  });
}

TEST_CASE("a transfer delays the receiver alone") {
  const PipelineShape shape{Schedule::one_f_one_b, 2, 1, 1};
  const Timeline timeline = simulate(shape, make_programs(shape), {1, 1, 1, 0.5});
  const auto& first = timeline.stages[0];
  const auto& second = timeline.stages[1];
  REQUIRE(first.size() == 3);
  REQUIRE(second.size() == 3);
  CHECK(second[0].begin == 1.5);
  CHECK(second[2].end == 4.5);
  CHECK(first[1].begin == 4.0);
  CHECK(timeline.makespan == 6.0);
  CHECK(timeline.bubble_fraction == 0.5);
}

std::string drawing_of(const PipelineShape& shape, int width) {
  std::string text(1, '\n');
  return text += draw(shape, simulate(shape, make_programs(shape), {1, 1, 1, 0}), width);
}

TEST_CASE("drawings") {
  CHECK(drawing_of({Schedule::one_f_one_b, 4, 1, 8}, 100) == R"(
stage 0  F0F1F2F3......B0W0F4B1W1F5B2W2F6B3W3F7B4W4..B5W5..B6W6..B7W7
stage 1  ..F0F1F2....B0W0F3B1W1F4B2W2F5B3W3F6B4W4F7B5W5..B6W6..B7W7..
stage 2  ....F0F1..B0W0F2B1W1F3B2W2F4B3W3F5B4W4F6B5W5F7B6W6..B7W7....
stage 3  ......F0B0W0F1B1W1F2B2W2F3B3W3F4B4W4F5B5W5F6B6W6F7B7W7......
)");
  CHECK(drawing_of({Schedule::zb_h1, 4, 1, 8}, 100) == R"(
stage 0  F0F1F2F3......B0W0F4B1W1F5B2W2F6B3W3F7B4W4B5W5B6W6B7W7
stage 1  ..F0F1F2....B0F3B1W0F4B2W1F5B3W2F6B4W3F7B5W4B6W5B7W6W7
stage 2  ....F0F1..B0F2B1F3B2W0F4B3W1F5B4W2F6B5W3F7B6W4B7W5W6W7
stage 3  ......F0B0F1B1F2B2F3B3W0F4B4W1F5B5W2F6B6W3F7B7W4W5W6W7
)");
  CHECK(drawing_of({Schedule::gpipe, 2, 1, 3}, 30) == R"(
stage 0  FFF..BWBWBW
stage 1  .FFFBWBWBW.
)");
  CHECK(drawing_of({Schedule::interleaved, 2, 2, 2}, 60) == R"(
stage 0  F0F1F0F1..B0W0..B1W1B0W0B1W1
         0 0 1 1   1 1   1 1 0 0 0 0
stage 1  ..F0F1F0B0W0F1B1W1B0W0B1W1..
           0 0 1 1 1 1 1 1 0 0 0 0
)");
  CHECK(drawing_of({Schedule::zb_v, 2, 2, 4}, 100) == R"(
stage 0  F0F1F2F0B0W0F1B1W1F3B0W0F2B2W2B1W1F3B3W3B2W2B3W3..
         0 0 0 1 1 1 1 1 1 0 0 0 1 1 1 0 0 1 1 1 0 0 0 0
stage 1  ..F0F0F1F1B0W0F2B0W0F2B1W1F3B1W1F3B2W2B2B3B3W2W3W3
           0 1 0 1 1 1 0 0 0 1 1 1 0 0 0 1 1 1 0 1 0 0 1 0
)");
  CHECK(drawing_of({Schedule::dualpipev, 2, 2, 5}, 100) == R"(
stage 0  F0F1F2F0B0W0F1F3B1W1F2B0W0F4B2W2F3B1W1B3W3F4B2W2B4W4B3W3..B4W4
         0 0 0 1 1 1 1 0 1 1 1 0 0 0 1 1 1 0 0 1 1 1 0 0 1 1 0 0   0 0
stage 1  ..F0F0F1F1F2B0W0F2B0W0F3B1W1F3B1W1F4B2W2F4B2W2B3W3B3W3B4B4W4W4
           0 1 0 1 0 1 1 1 0 0 0 1 1 1 0 0 0 1 1 1 0 0 1 1 0 0 1 0 1 0
)");
  CHECK(drawing_of({kMergedSchedule, 4, 1, 8}, 100) == R"(
stage 0  F0F1F2F3F4F5F6F7B0W0..B1W1..B2W2..B3W3..B4W4..B5W5..B6W6B7W7
stage 1  ..F0F1F2F3F4F5B0W0F6B1W1F7B2W2..B3W3..B4W4..B5W5..B6W6B7W7..
stage 2  ....F0F1F2F3B0W0F4B1W1F5B2W2F6B3W3F7B4W4..B5W5..B6W6B7W7....
stage 3  ......F0F1B0W0F2B1W1F3B2W2F4B3W3F5B4W4F6B5W5F7B6W6B7W7......
)");
  CHECK(drawing_of({kMergedSchedule, 2, 2, 4}, 100) == R"(
stage 0  F0F1F0F1F2F3B0W0F2B1W1F3B0W0..B1W1..B2W2B3W3B2W2B3W3
         0 0 1 1 0 0 1 1 1 1 1 1 0 0   0 0   1 1 1 1 0 0 0 0
stage 1  ..F0F1F0F1B0W0F2B1W1F3B0W0F2B1W1F3B2W2B3W3B2W2B3W3..
           0 0 1 1 1 1 0 1 1 0 0 0 1 0 0 1 1 1 1 1 0 0 0 0
)");
}

TEST_CASE("a drawing keeps to its width and has one row per stage and kind") {
  for_each_legal_shape([](const PipelineShape& shape) {
    const Timeline timeline = simulate(shape, make_programs(shape), {1, 1.5, 0.5, 0.25});
    for (int width : {24, 40, 80, 120}) {
      std::istringstream rows(draw(shape, timeline, width));
      int count = 0;
      bool within = true;
      for (std::string row; std::getline(rows, row); ++count)
        within = within && row.size() <= static_cast<size_t>(width);
      REQUIRE(within);
      REQUIRE(count == shape.stages * (shape.virtual_stages > 1 ? 2 : 1));
    }
  });
}

}  // namespace
}  // namespace trainctl::parallel
