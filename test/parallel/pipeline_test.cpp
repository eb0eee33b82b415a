// Goal: every legal shape of every schedule gives programs that are complete, in order, free of deadlock and
// within their memory bound; the simulator agrees with the published bubbles; the drawing shows what was
// simulated. Method: exhaustive over stages 1..8, virtual stages 1..4, micro-batches 1..16. The checker's own
// faults are hunted in pipeline_check_test.cpp. Golden drawings: made by draw() itself and read by eye.
#include "parallel/pipeline.h"
#include "test/support/tolerances.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

namespace trainctl::parallel {
namespace {

constexpr Schedule kSchedules[] = {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved,
                                   Schedule::zb_h1};

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
        for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
          const PipelineShape shape{schedule, stages, virtual_stages, micro_batches};
          if (shape_problem(shape).exists()) continue;
          INFO(shape_text(shape));
          visit(shape);
          ++shapes;
        }
  CHECK(shapes == 3 * 8 * 16 + 4 * (16 + 8 + 5 + 4 + 3 + 2 + 2 + 2));
}

TEST_CASE("schedules by name") {
  for (Schedule schedule : kSchedules) CHECK(schedule_named(name_of(schedule)) == schedule);
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
      if (shape.schedule == Schedule::interleaved && v > 1) {
        REQUIRE(peak == std::min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1));
      }
    }
  });
}

TEST_CASE("gpipe, 1f1b and interleaved finish weights at once, but send the gradient before") {
  for_each_legal_shape([](const PipelineShape& shape) {
    if (shape.schedule == Schedule::zb_h1) return;
    bool right = true;
    for (const Program& program : make_programs(shape)) {
      for (size_t i = 0; i < program.size(); ++i) {
        if (program[i].op != Op::backward_input) continue;
        const size_t weight = i + (program[i + 1].op == Op::send_gradient ? 2 : 1);
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
    const bool zero_bubble = shape.schedule == Schedule::zb_h1;
    const PipelineCosts costs = zero_bubble ? PipelineCosts{1, 1, 1, 0} : PipelineCosts{1, 2, 0, 0};
    const Timeline timeline = simulate(shape, make_programs(shape), costs);
    const double bubble = timeline.makespan / ideal_time(shape, costs) - 1;
    const auto expected = closed_form_bubble(shape);
    REQUIRE(expected);
    REQUIRE(bubble == Approx(*expected).margin(test::tolerance::kFormula));
    REQUIRE(timeline.bubble_fraction == Approx(bubble / (1 + bubble)).margin(test::tolerance::kFormula));
  });
  CHECK(!closed_form_bubble({Schedule::interleaved, 4, 2, 6}));
}

TEST_CASE("sending the gradient first saves a weight gradient per stage") {
  for_each_legal_shape([](const PipelineShape& shape) {
    if (shape.schedule == Schedule::zb_h1) return;
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

/// Where one (virtual_stage, micro_batch) ran, by its global virtual stage.
const Span& span_of(const PipelineShape& shape, const Timeline& timeline, Op op, int global_virtual_stage,
                    int micro_batch) {
  const Instruction wanted{op, global_virtual_stage / shape.stages, micro_batch};
  for (const Span& span : timeline.stages[static_cast<size_t>(global_virtual_stage % shape.stages)]) {
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
    const double transfer = shape.stages > 1 ? costs.transfer : 0;
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
