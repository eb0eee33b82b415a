// Goal: the checker of pipeline programs finds every fault, names it, and cries at nothing else.
// Method: exhaustive single mutations (drop, duplicate, swap neighbours, replace) of correct programs of
// every schedule; for swaps a second, independent rule says which must be refused. Golden sentences for each
// kind of fault.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "parallel/pipeline.h"
#include "test/support/merged_schedule.h"
#include "test/support/seed.h"

namespace trainctl::parallel {
namespace {

const PipelineShape kShapes[] = {
    {Schedule::gpipe, 1, 1, 3},       {Schedule::gpipe, 3, 1, 4},       {Schedule::one_f_one_b, 4, 1, 6},
    {Schedule::one_f_one_b, 2, 1, 1}, {Schedule::interleaved, 1, 3, 3}, {Schedule::interleaved, 2, 2, 4},
    {Schedule::interleaved, 3, 3, 6}, {Schedule::zb_h1, 4, 1, 8},       {Schedule::zb_h1, 5, 1, 3},
    {Schedule::zb_v, 1, 2, 2},        {Schedule::zb_v, 2, 2, 5},        {Schedule::zb_v, 3, 2, 4},
    {Schedule::dualpipev, 2, 2, 4},   {Schedule::dualpipev, 3, 2, 7},   {kMergedSchedule, 1, 1, 3},
    {kMergedSchedule, 3, 1, 5},       {kMergedSchedule, 2, 2, 4}};

/// Calls visit(programs, stage, index) for every instruction of every shape; `programs` is a copy to spoil.
template <typename Visit>
void for_each_instruction(Visit visit) {
  for (const PipelineShape& shape : kShapes) {
    const std::vector<Program> programs = make_programs(shape);
    for (size_t stage = 0; stage < programs.size(); ++stage) {
      for (size_t index = 0; index < programs[stage].size(); ++index) {
        std::vector<Program> copy = programs;
        INFO(name_of(shape.schedule) << " of " << shape.stages << " stages, stage " << stage
                                     << ", instruction " << index);
        visit(shape, copy, stage, index);
      }
    }
  }
}

bool names_a_stage(const Problem& problem) { return problem.text_or_empty().rfind("stage ", 0) == 0; }

TEST_CASE("a dropped instruction is always found") {
  for_each_instruction(
      [](const PipelineShape& shape, std::vector<Program>& programs, size_t stage, size_t index) {
        programs[stage].erase(programs[stage].begin() + static_cast<long>(index));
        REQUIRE(names_a_stage(check_programs(shape, programs).problem));
      });
}

TEST_CASE("a duplicated instruction is always found") {
  for_each_instruction(
      [](const PipelineShape& shape, std::vector<Program>& programs, size_t stage, size_t index) {
        programs[stage].insert(programs[stage].begin() + static_cast<long>(index), programs[stage][index]);
        REQUIRE(names_a_stage(check_programs(shape, programs).problem));
      });
}

TEST_CASE("a replaced instruction is always found") {
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  for_each_instruction(
      [&](const PipelineShape& shape, std::vector<Program>& programs, size_t stage, size_t index) {
        const Instruction original = programs[stage][index];
        for (int round = 0; round < 10; ++round) {
          Instruction other{static_cast<Op>(random() % 11), static_cast<int>(random() % 5) - 1,
                            static_cast<int>(random() % 10) - 1};
          if (other.op == Op::step) other.virtual_stage = other.micro_batch = 0;
          if (other.op == Op::reduce) other.micro_batch = 0;
          if (other == original) continue;
          programs[stage][index] = other;
          REQUIRE(names_a_stage(check_programs(shape, programs).problem));
        }
      });
}

/// Whether `second`, right after `first`, may not come before it. Written from the meaning of the
/// instructions, without the checker's state.
bool must_follow(const Instruction& first, const Instruction& second, const PipelineShape& shape) {
  if (second.op == Op::step) return true;
  const bool same_micro_batch = first.micro_batch == second.micro_batch;
  const bool same_pair = same_micro_batch && first.virtual_stage == second.virtual_stage;
  const auto ops = [&](Op a, Op b) { return first.op == a && second.op == b; };
  if (second.op == Op::reduce)
    return first.op == Op::backward_weight && first.virtual_stage == second.virtual_stage;
  // What is passed on a stage follows what makes it, and comes before what needs it.
  const bool to_next = same_micro_batch && second.virtual_stage == first.virtual_stage + 1;
  const bool to_previous = same_micro_batch && second.virtual_stage == first.virtual_stage - 1;
  if (ops(Op::forward, Op::pass_activation)) return to_next;
  if (ops(Op::pass_gradient, Op::backward_input)) return to_previous;
  if (first.op == second.op && (first.op == Op::pass_activation || first.op == Op::pass_gradient))
    return false;
  if (first.op == second.op && first.op != Op::reduce) {
    // Messages keep their order, and so do gradients of one virtual stage; forwards are free unless one feeds
    // the other.
    if (first.op == Op::forward) return false;
    if (first.op == Op::backward_weight) return first.virtual_stage == second.virtual_stage;
    if (first.op == Op::backward_input) return first.virtual_stage == second.virtual_stage;
    return !virtual_stages_of(shape).v_shaped || first.virtual_stage == second.virtual_stage;
  }
  return same_pair &&
         (ops(Op::receive_activation, Op::forward) || ops(Op::pass_activation, Op::forward) ||
          ops(Op::backward_input, Op::pass_gradient) || ops(Op::forward, Op::send_activation) ||
          ops(Op::forward, Op::backward_input) || ops(Op::forward, Op::receive_gradient) ||
          ops(Op::receive_gradient, Op::backward_input) || ops(Op::backward_input, Op::send_gradient) ||
          ops(Op::backward_input, Op::backward_weight));
}

TEST_CASE(
    "swapped neighbours are refused exactly where one needs the other or the stages would wait in a circle") {
  int refused = 0, circles = 0, accepted = 0;
  for_each_instruction(
      [&](const PipelineShape& shape, std::vector<Program>& programs, size_t stage, size_t index) {
        if (index + 1 == programs[stage].size()) return;
        Instruction& first = programs[stage][index];
        Instruction& second = programs[stage][index + 1];
        const bool bound = must_follow(first, second, shape);
        std::swap(first, second);
        const std::string problem = check_programs(shape, programs).problem.text_or_empty();
        const bool circle = problem.find("in a circle") != std::string::npos;
        CAPTURE(problem);
        REQUIRE((bound ? !problem.empty() : problem.empty() || circle));
        ++(bound ? refused : circle ? circles : accepted);
      });
  CHECK(refused > 100);
  CHECK(circles > 0);
  CHECK(accepted > 100);
}

/// Programs of two stages and two micro-batches under 1F1B.
///   stage 0: 0 F0 1 send 2 F1 3 send 4 recv 5 B0 6 W0 7 recv 8 B1 9 W1 10 reduce 11 step
///   stage 1: 0 recv 1 F0 2 B0 3 send 4 W0 5 recv 6 F1 7 B1 8 send 9 W1 10 reduce 11 step
struct SmallPipeline {
  PipelineShape shape{Schedule::one_f_one_b, 2, 1, 2};
  std::vector<Program> programs = make_programs(shape);

  void erase(int stage, int index) { programs[static_cast<size_t>(stage)].erase(at(stage, index)); }
  void move(int stage, int from, int to) {
    const Instruction instruction = *at(stage, from);
    erase(stage, from);
    programs[static_cast<size_t>(stage)].insert(at(stage, to), instruction);
  }
  Program::iterator at(int stage, int index) { return programs[static_cast<size_t>(stage)].begin() + index; }
  std::string problem() const { return check_programs(shape, programs).problem.text_or_empty(); }
};

TEST_CASE("what the checker says of messages") {
  SmallPipeline small;
  SECTION("wrong number of programs") {
    small.programs.pop_back();
    CHECK(small.problem() == "1 programs for 2 stages");
  }
  SECTION("illegal shape") {
    small.shape.virtual_stages = 2;
    CHECK(small.problem() ==
          "virtual_stages = 2 does not suit the schedule 1f1b, which has 1; use 1, or the schedule "
          "interleaved");
  }
  SECTION("send left out") {
    small.erase(0, 3);
    CHECK(small.problem() ==
          "stage 0, instruction 6: receive_gradient of virtual stage 0 micro-batch 1: waits for ever in a "
          "circle, "
          "stage 1 waits too");
  }
  SECTION("last send left out") {
    small.erase(1, 8);
    CHECK(small.problem() ==
          "stage 0, instruction 7: receive_gradient of virtual stage 0 micro-batch 1: waits for ever, stage "
          "1 has "
          "ended without sending it");
  }
  SECTION("receive left out") {
    small.erase(1, 0);
    CHECK(
        small.problem() ==
        "stage 1, instruction 0: forward of virtual stage 0 micro-batch 0: its activation was not received");
  }
  SECTION("sent twice") {
    small.programs[0].insert(small.at(0, 1), *small.at(0, 1));
    CHECK(small.problem() ==
          "stage 0, instruction 2: send_activation of virtual stage 0 micro-batch 0: it was done before");
  }
  SECTION("messages in the wrong order") {
    small.move(0, 1, 3);
    CHECK(small.problem() ==
          "stage 1, instruction 0: receive_activation of virtual stage 0 micro-batch 0: the message that "
          "comes next "
          "is for virtual stage 0 micro-batch 1");
  }
  SECTION("waiting for a gradient too soon makes a circle") {
    small.move(1, 5, 2);  // stage 1 does all forwards first ...
    small.move(1, 6, 3);
    small.move(0, 4, 2);  // ... and stage 0 waits before its second
    CHECK(small.problem() ==
          "stage 0, instruction 2: receive_gradient of virtual stage 0 micro-batch 0: waits for ever in a "
          "circle, "
          "stage 1 waits too");
  }
  SECTION("a message nobody wants") {
    small.programs[1].insert(small.at(1, 2), Instruction{Op::send_activation, 0, 0});
    CHECK(small.problem() ==
          "stage 1, instruction 2: send_activation of virtual stage 0 micro-batch 0: there is no virtual "
          "stage to send to");
  }
}

TEST_CASE("what the checker says of work") {
  SmallPipeline small;
  SECTION("nothing wrong") { CHECK(small.problem() == ""); }
  SECTION("gradients out of micro-batch order") {
    std::swap(small.at(1, 4)->micro_batch, small.at(1, 9)->micro_batch);
    CHECK(small.problem() ==
          "stage 1, instruction 4: backward_weight of virtual stage 0 micro-batch 1: its backward_input has "
          "not run");
  }
  SECTION("weights out of micro-batch order") {
    small.move(1, 4, 9);
    CHECK(small.problem() ==
          "stage 1, instruction 8: backward_weight of virtual stage 0 micro-batch 1: it is the turn of "
          "micro-batch 0");
  }
  SECTION("reduced too soon") {
    std::swap(*small.at(0, 9), *small.at(0, 10));
    CHECK(small.problem() ==
          "stage 0, instruction 9: reduce of virtual stage 0: only 1 of 2 micro-batches have their "
          "backward_weight");
  }
  SECTION("not reduced") {
    small.erase(0, 10);
    CHECK(small.problem() == "stage 0, instruction 10: step: virtual stage 0 is not reduced yet");
  }
  SECTION("no step") {
    small.erase(1, 11);
    CHECK(small.problem() == "stage 1: the program ends without step");
  }
  SECTION("work after step") {
    small.programs[0].push_back({Op::forward, 0, 0});
    CHECK(small.problem() ==
          "stage 0, instruction 12: forward of virtual stage 0 micro-batch 0: it comes after step");
  }
  SECTION("out of range") {
    small.at(0, 0)->micro_batch = 2;
    CHECK(small.problem() ==
          "stage 0, instruction 0: forward of virtual stage 0 micro-batch 2: a step has 2 micro-batches");
    *small.at(0, 0) = {Op::forward, 1, 0};
    CHECK(small.problem() ==
          "stage 0, instruction 0: forward of virtual stage 1 micro-batch 0: a stage has 1 virtual stages");
  }
}

/// The program of one stage with both virtual stages of a V, which passes all tensors to itself.
///   0 F0 1 pass 2 F1 3 B1 4 pass 5 W1 6 reduce 1 7 B0 8 W0 9 reduce 0 10 step
TEST_CASE("what the checker says of what is passed") {
  const PipelineShape shape{Schedule::zb_v, 1, 2, 1};
  std::vector<Program> programs = make_programs(shape);
  Program& program = programs[0];
  const auto problem = [&] { return check_programs(shape, programs).problem.text_or_empty(); };
  CHECK(problem() == "");
  SECTION("activation left out") {
    program.erase(program.begin() + 1);
    CHECK(problem() ==
          "stage 0, instruction 1: forward of virtual stage 1 micro-batch 0: its activation was not passed");
  }
  SECTION("gradient left out") {
    program.erase(program.begin() + 4);
    CHECK(problem() ==
          "stage 0, instruction 6: backward_input of virtual stage 0 micro-batch 0: its gradient was not "
          "passed");
  }
  SECTION("activation too soon") {
    std::swap(program[0], program[1]);
    CHECK(problem() ==
          "stage 0, instruction 0: pass_activation of virtual stage 1 micro-batch 0: the forward of the "
          "previous "
          "virtual stage has not run");
  }
  SECTION("gradient too soon") {
    std::swap(program[3], program[4]);
    CHECK(problem() ==
          "stage 0, instruction 3: pass_gradient of virtual stage 1 micro-batch 0: its backward_input has "
          "not run");
  }
  SECTION("nothing to pass") {
    program.insert(program.begin(), Instruction{Op::pass_activation, 0, 0});
    CHECK(problem() ==
          "stage 0, instruction 0: pass_activation of virtual stage 0 micro-batch 0: the previous virtual "
          "stage "
          "is not on this stage");
  }
  SECTION("sent where it is passed") {
    program.insert(program.begin() + 1, Instruction{Op::receive_activation, 1, 0});
    CHECK(
        problem() ==
        "stage 0, instruction 1: receive_activation of virtual stage 1 micro-batch 0: virtual stages on the "
        "same stage exchange no messages");
  }
}

TEST_CASE("late weights raise the peak") {
  SmallPipeline small;
  CHECK(check_programs(small.shape, small.programs).peak_in_flight == std::vector<int>{2, 1});
  small.move(1, 4, 8);
  const CheckResult late = check_programs(small.shape, small.programs);
  CHECK(late.ok());
  CHECK(late.peak_in_flight == std::vector<int>{2, 2});
}

}  // namespace
}  // namespace trainctl::parallel
