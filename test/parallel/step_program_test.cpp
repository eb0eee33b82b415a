// Goal: a stage's step program is complete, touches no memory too early, and nothing can be left out of it.
// Method: the programs of every small shape, with both kinds of backward, with and without gathers, pass both
// checkers and obey the schedule they were made from; every action is dropped and doubled once, and each time
// a checker must find it; sentences for each kind.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "parallel/schedules.h"
#include "parallel/step_program.h"
#include "test/support/merged_schedule.h"

namespace trainctl::parallel {
namespace {

struct Step {
  StepShape shape;
  SlotPlan slots;
  StepProgram actions;
};

/// The programs of all stages. joined: both halves of the backward run together. together: see StepShape;
/// where it is 1, parts take turns in the memory for gradients.
enum class Weights { everywhere, in_turn, kept };  // the last two: gathered part by part (StepShape)
std::vector<Step> steps_of(const PipelineShape& pipeline, bool joined, bool gathers, int together = 0,
                           Weights weights = Weights::everywhere) {
  std::vector<Step> steps;
  for (Program& schedule : make_programs(pipeline)) {
    if (joined) join_halves(schedule);
    const int stage = int(steps.size());
    Step s;
    s.shape = {.pipeline = pipeline,
               .stage = stage,
               .virtual_stages = {},
               .splits_backward = !joined,
               .reduced_together = together,
               .shares_gradients = together == 1,
               .gathers = gathers,
               .gathers_parts = weights != Weights::everywhere,
               .shares_weights = weights == Weights::in_turn};
    for (int virtual_stage = 0; virtual_stage < pipeline.virtual_stages; ++virtual_stage) {
      const VirtualStages order = virtual_stages_of(pipeline);
      const bool head = order.global_of(stage, virtual_stage) == order.count() - 1;
      s.shape.virtual_stages.push_back({head ? 3 : 1 + (stage + virtual_stage) % 2, head});
    }
    s.slots = plan_slots(schedule, pipeline.virtual_stages, pipeline.micro_batches);
    s.actions = make_step_program(s.shape, schedule, s.slots);
    steps.push_back(std::move(s));
  }
  return steps;
}

/// What both checkers say of all stages together.
std::string problem_of(const std::vector<Step>& steps) {
  std::vector<Program> schedules;
  for (const Step& s : steps) {
    if (const Problem problem = step_problem(s.shape, s.slots, s.actions); problem.exists())
      return problem.text();
    schedules.push_back(schedule_of(s.shape, s.actions));
  }
  return check_programs(steps.front().shape.pipeline, schedules).problem.text_or_empty();
}

template <typename Visit>
void for_each_shape(int most_stages, int most_micro_batches, Visit visit) {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved,
                                  Schedule::zb_h1, Schedule::zb_v, Schedule::dualpipev, kMergedSchedule})
    for (int stages = 1; stages <= most_stages; ++stages)
      for (int virtual_stages = 1; virtual_stages <= 3; ++virtual_stages)
        for (int micro_batches = 1; micro_batches <= most_micro_batches; ++micro_batches)
          for (const int zero_stage : {0, 1, 2, 3, 4, 5}) {  // 4: ZeRO-3 with several micro-batches a lane
            const bool gathers = zero_stage > 0;             // 5: ZeRO-3 that keeps what it gathers
            const Weights weights = zero_stage < 3    ? Weights::everywhere
                                    : zero_stage == 5 ? Weights::kept
                                                      : Weights::in_turn;
            const int together = zero_stage < 2 ? 0 : micro_batches % 2 == 0 && zero_stage != 3 ? 2 : 1;
            const PipelineShape shape{schedule, stages, virtual_stages, micro_batches};
            if (shape_problem(shape).exists() || (stages == 1 && virtual_stages > 1)) continue;
            CAPTURE(name_of(schedule), stages, virtual_stages, micro_batches, zero_stage, together);
            const ScheduleKind& kind = kind_of(schedule);
            visit(steps_of(shape, !kind.splits_backward, gathers, together, weights));
            // Where layers are computed again, a V runs both halves together.
            if (kind.v_shaped) visit(steps_of(shape, true, gathers, together, weights));
          }
}

/// Two stages, two micro-batches, 1F1B; a block on the first stage, a block, the final norm and the head on
/// the second.
struct Small {
  std::vector<Step> steps = steps_of({Schedule::one_f_one_b, 2, 1, 2}, true, true);

  /// What is said when the `number`-th action of a kind is left out.
  std::string without(int stage, Act act, int number = 0) {
    StepProgram& actions = steps[size_t(stage)].actions;
    for (auto at = actions.begin(); at != actions.end(); ++at)
      if (at->act == act && number-- == 0) {
        actions.erase(at);
        return problem_of(steps);
      }
    return "no such action";
  }
};

}  // namespace

TEST_CASE("late receives begin directly before the wait for them, and every program remains complete") {
  for_each_shape(4, 5, [](std::vector<Step> steps) {
    for (Step& s : steps) {
      const StepProgram early = s.actions;
      Program schedule = make_programs(s.shape.pipeline)[size_t(s.shape.stage)];
      if (!s.shape.splits_backward) join_halves(schedule);
      s.shape.early_receives = false;
      s.actions = make_step_program(s.shape, schedule, s.slots);
      REQUIRE(s.actions.size() == early.size());
      for (size_t i = 0; i < s.actions.size(); ++i) {
        const Act act = s.actions[i].act;
        if (act != Act::post_activation && act != Act::post_gradient) continue;
        REQUIRE(i + 1 < s.actions.size());
        CHECK(int(s.actions[i + 1].act) ==
              int(act == Act::post_activation ? Act::wait_activation : Act::wait_gradient));
        CHECK(s.actions[i + 1].micro_batch == s.actions[i].micro_batch);
      }
    }
    CHECK(problem_of(steps) == "");
  });
}

TEST_CASE("step programs of every small shape are right and obey their schedule") {
  int programs = 0;
  for_each_shape(4, 8, [&](const std::vector<Step>& steps) {
    REQUIRE(problem_of(steps) == "");
    for (const Step& s : steps) {
      Program schedule = make_programs(s.shape.pipeline)[size_t(s.shape.stage)];
      if (!s.shape.splits_backward) join_halves(schedule);
      // A reduce may come before the last backward's other parts; everything else keeps its place.
      const auto without_reduce = [](Program p) {
        p.erase(std::remove_if(p.begin(), p.end(), [](const Instruction& i) { return i.op == Op::reduce; }),
                p.end());
        return p;
      };
      REQUIRE(without_reduce(schedule_of(s.shape, s.actions)) == without_reduce(schedule));
      ++programs;
    }
  });
  CHECK(programs > 400);
}

TEST_CASE("an action that is left out of a step program is always found") {
  std::map<Act, int> found;
  for_each_shape(3, 4, [&](const std::vector<Step>& steps) {
    for (size_t stage = 0; stage < steps.size(); ++stage)
      for (size_t at = 0; at < steps[stage].actions.size(); ++at) {
        std::vector<Step> spoilt = steps;
        spoilt[stage].actions.erase(spoilt[stage].actions.begin() + long(at));
        CAPTURE(stage, at, text_of(steps[stage].actions[at]));
        REQUIRE(problem_of(spoilt) != "");
        ++found[steps[stage].actions[at].act];
      }
  });
  for (int act = 0; act < kActs; ++act) {
    CAPTURE(name_of(Act(act)));
    CHECK(found[Act(act)] > 10);
  }
}

TEST_CASE("an action that is done twice is always found") {
  for_each_shape(3, 3, [&](const std::vector<Step>& steps) {
    for (size_t stage = 0; stage < steps.size(); ++stage)
      for (size_t at = 0; at < steps[stage].actions.size(); ++at) {
        std::vector<Step> spoilt = steps;
        spoilt[stage].actions.insert(spoilt[stage].actions.begin() + long(at), steps[stage].actions[at]);
        CAPTURE(stage, at, text_of(steps[stage].actions[at]));
        REQUIRE(problem_of(spoilt) != "");
      }
  });
}

TEST_CASE("the gradients of lanes are not mixed, nor those of parts that take turns") {
  const auto said = [](int together, auto spoil) {
    Step first = steps_of({Schedule::one_f_one_b, 2, 1, 2}, true, true, together)[0];
    spoil(first.actions);
    return step_problem(first.shape, first.slots, first.actions).text_or_empty();
  };
  const auto nth = [](StepProgram& actions, Act act, int n) {
    return std::find_if(actions.begin(), actions.end(),
                        [&](const Action& a) { return a.act == act && n-- == 0; });
  };
  CHECK(
      said(1, [&](StepProgram& a) { a.erase(nth(a, Act::reduce, 0)); }) ==
      "stage 0, action 11: claim_gradients of virtual stage 0 micro-batch 1 part 0: the gradients of virtual "
      "stage 0 part 0 are not reduced yet");
  CHECK(said(1, [&](StepProgram& a) { a.erase(nth(a, Act::claim_gradients, 1)); }) ==
        "stage 0, action 12: backward of virtual stage 0 micro-batch 1 part 0: the memory for its gradients "
        "was not "
        "waited for");
  CHECK(said(0,
             [&](StepProgram& a) {
               a.insert(nth(a, Act::reduce, 0), Action{Act::claim_gradients, 0, 1, 0});
             }) ==
        "stage 0, action 11: claim_gradients of virtual stage 0 micro-batch 1 part 0: the gradients are "
        "reduced once, "
        "and their memory is free");
}

TEST_CASE("gradients are not reduced while weights still come through the same memory") {
  Step second = steps_of({Schedule::interleaved, 2, 2, 2}, true, true)[1];
  // The second stage has virtual stages 1 and 3 of the model. Without regard to what 3 gives to 1, the
  // actions of 1 first.
  const auto updates = std::find_if(second.actions.begin(), second.actions.end(),
                                    [](const Action& a) { return a.act == Act::sum; });
  std::stable_partition(second.actions.begin(), updates,
                        [](const Action& a) { return a.virtual_stage == 0; });
  CHECK(step_problem(second.shape, second.slots, second.actions).text_or_empty() ==
        "stage 1, action 18: reduce of virtual stage 0 micro-batch 1 part 1: the weights of virtual stage 1 "
        "part 0 still come "
        "through the memory that the gradients need");
  second.shape.gathers = false;   // nothing comes, and nothing is gathered
  second.actions.erase(std::remove_if(second.actions.begin(), second.actions.end(),
                                      [](const Action& a) { return a.act == Act::gather; }),
                       second.actions.end());
  CHECK(step_problem(second.shape, second.slots, second.actions).is_none());
}

TEST_CASE("weights that take turns are gathered while the part before is computed, and not twice in a row") {
  // The second stage of two: a block, the final norm and the head, parts 0, 1 and 2.
  const Step last = steps_of({Schedule::one_f_one_b, 2, 1, 1}, true, true, 1, Weights::in_turn)[1];
  std::vector<std::string> said;
  for (const Action& a : last.actions)
    if (a.act == Act::gather || a.act == Act::wait_weights || a.act == Act::release_weights ||
        a.act == Act::forward || a.act == Act::backward)
      said.push_back(fmt::format("{} {}", name_of(a.act), a.part));
  // The final norm stays for its backward pass; the block has gone for the head.
  CHECK(said == std::vector<std::string>{"gather 0", "gather 1", "wait_weights 0", "forward 0",
                                         "release_weights 0", "gather 2", "wait_weights 1", "forward 1",
                                         "wait_weights 2", "forward 2", "release_weights 2", "gather 0",
                                         "backward 1", "wait_weights 0", "backward 0", "release_weights 0",
                                         "release_weights 1"});
}

TEST_CASE("weights that stay are gathered once a step and released at its end") {
  for_each_shape(3, 4, [](const std::vector<Step>& steps) {
    for (const Step& s : steps) {
      if (!s.shape.gathers_parts || s.shape.shares_weights) continue;
      std::map<std::pair<int, int>, int> gathers;
      size_t last_use = 0, first_release = s.actions.size();
      for (size_t i = 0; i < s.actions.size(); ++i) {
        const Action& a = s.actions[i];
        if (a.act == Act::gather) ++gathers[{a.virtual_stage, a.part}];
        if (a.act == Act::forward || a.act == Act::backward || a.act == Act::backward_input ||
            a.act == Act::backward_weight)
          last_use = i;
        if (a.act == Act::release_weights) first_release = std::min(first_release, i);
      }
      int parts = 0;
      for (const VirtualStageParts& virtual_stage : s.shape.virtual_stages) parts += virtual_stage.count;
      REQUIRE(int(gathers.size()) == parts);
      for (const auto& [part, times] : gathers) REQUIRE(times == 1);
      REQUIRE(first_release > last_use);
    }
  });
  const Step last = steps_of({Schedule::one_f_one_b, 2, 1, 2}, true, true, 1, Weights::kept)[1];
  std::vector<std::string> said;
  for (const Action& a : last.actions)
    if (a.act == Act::gather || a.act == Act::wait_weights || a.act == Act::forward)
      said.push_back(fmt::format("{} {}", name_of(a.act), a.part));
  CHECK(said == std::vector<std::string>{"gather 0", "gather 1", "wait_weights 0", "forward 0", "gather 2",
                                         "wait_weights 1", "forward 1", "wait_weights 2", "forward 2",
                                         "forward 0", "forward 1", "forward 2"});
}

TEST_CASE("what is said of weights that take turns") {
  const auto said = [](auto spoil) {
    Step last = steps_of({Schedule::one_f_one_b, 2, 1, 1}, true, true, 1, Weights::in_turn)[1];
    spoil(last.actions);
    return step_problem(last.shape, last.slots, last.actions).text_or_empty();
  };
  const auto nth = [](StepProgram& actions, Act act, int n) {
    return std::find_if(actions.begin(), actions.end(),
                        [&](const Action& a) { return a.act == act && n-- == 0; });
  };
  CHECK(said([&](StepProgram& a) { a.erase(nth(a, Act::gather, 0)); }) ==
        "stage 1, action 3: wait_weights of virtual stage 0 part 0: its weights are not gathered");
  CHECK(said([&](StepProgram& a) { a.erase(nth(a, Act::release_weights, 0)); }) ==
        "stage 1, action 6: gather of virtual stage 0 part 2: its place holds the weights of another part");
  CHECK(
      said([&](StepProgram& a) { std::iter_swap(nth(a, Act::gather, 0), nth(a, Act::gather, 1)); }) ==
      "stage 1, action 4: wait_weights of virtual stage 0 part 0: virtual stage 0 part 1 was gathered before "
      "it");
  CHECK(said([&](StepProgram& a) { a.erase(nth(a, Act::release_weights, 3)); }) ==
        "stage 1, action 27: step: the weights of a part are not released yet");
  CHECK(said([&](StepProgram& a) { a.push_back({Act::gather, 0, 0, 0}); }) ==
        "stage 1, action 29: gather of virtual stage 0 part 0: it comes after step");
}

TEST_CASE("what is said of an action that was left out") {
  const auto without = [](int stage, Act act, int number = 0) { return Small().without(stage, act, number); };
  CHECK(without(1, Act::post_activation) ==
        "stage 1, action 1: wait_activation of virtual stage 0 micro-batch 0: it was not posted");
  CHECK(without(1, Act::wait_activation) ==
        "stage 1, action 3: forward of virtual stage 0 micro-batch 0 part 0: its input was not waited for");
  CHECK(without(0, Act::wait_gradient) ==
        "stage 0, action 7: backward of virtual stage 0 micro-batch 0: its gradient was not waited for");
  CHECK(without(0, Act::wait_weights) ==
        "stage 0, action 0: forward of virtual stage 0 micro-batch 0 part 0: the weights of part 0 were not "
        "waited "
        "for");
  CHECK(without(1, Act::release_gradient) ==
        "stage 1, action 16: backward of virtual stage 0 micro-batch 1 part 1: what its slot sent for "
        "micro-batch 0 "
        "was not released");
  CHECK(without(0, Act::release_activation, 0) ==
        "stage 0: what virtual stage 0 sent for micro-batch 0 was not released");
  CHECK(without(0, Act::reduce) == "stage 0, action 13: sum: virtual stage 0 part 0 is not reduced yet");
  CHECK(without(0, Act::sum) == "stage 0, action 14: step: the gradients are not summed yet");
  CHECK(without(0, Act::step) ==
        "stage 0, action 15: gather of virtual stage 0 part 0: the weights have not changed yet");
  CHECK(without(0, Act::gather) == "stage 0: virtual stage 0 part 0 is not gathered");
  CHECK(without(1, Act::gather, 2) == "stage 1: virtual stage 0 part 2 is not gathered");
}

}  // namespace trainctl::parallel
