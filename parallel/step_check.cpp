// The checker of a stage's step program: follows the state of its memory, its messages, its weights and its
// gradients.
#include <algorithm>
#include <deque>
#include <vector>

#include "parallel/step_program.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

/// What has been done with one (virtual_stage, micro_batch).
struct StepPair {
  bool input_posted = false, input_here = false, forward = false, activation_sent = false;
  bool gradient_posted = false, gradient_here = false, input_half = false, weight_half = false,
       gradient_sent = false;
};

struct Part {
  bool gather_begun = false, weights_here = false, claimed = false;
  int gradients = 0, reduced = 0;   ///< micro-batches whose gradients were added to it, and were reduced
};

/// The parts of one pass over a micro-batch, of which only some are done.
struct Pass {
  bool under_way = false;
  Act act = Act::forward;
  int virtual_stage = 0, micro_batch = 0, next = 0;
};

class StepChecker {
 public:
  StepChecker(const StepShape& shape, const SlotPlan& slots)
      : shape_(shape),
        order_(virtual_stages_of(shape.pipeline)),
        slots_(slots),
        place_taken_(size_t(weight_places(shape)), false) {
    for (auto& of_kind : posted_) of_kind.resize(shape.virtual_stages.size());
    const auto micro_batches = size_t(shape.pipeline.micro_batches);
    for (size_t c = 0; c < shape.virtual_stages.size(); ++c) {
      pairs_.emplace_back(micro_batches);
      parts_.emplace_back(size_t(shape.virtual_stages[c].count));
      for (Part& part : parts_.back()) part.gather_begun = !shape.gathers_parts;
      slot_holder_.emplace_back(size_t(slots.slots[c]), kFree);
      input_holder_.emplace_back(size_t(slots.slots[c]) + 1, kFree);
      sent_activation_.emplace_back(size_t(slots.slots[c]), kFree);
      sent_gradient_.emplace_back(size_t(slots.slots[c]), kFree);
    }
  }

  Problem run(const StepProgram& program) {
    for (size_t at = 0; at < program.size(); ++at)
      if (const Problem problem = check(program[at]); problem.exists())
        return Problem(fmt::format("stage {}, action {}: {}: {}", shape_.stage, at, text_of(program[at]),
                                   problem.text()));
    if (const Problem problem = check_end(); problem.exists())
      return Problem(fmt::format("stage {}: {}", shape_.stage, problem.text()));
    return Problem::none();
  }

 private:
  static constexpr int kFree = -1;
  using Holders = std::vector<std::vector<int>>;

  Problem check(const Action& a) {
    if (a.virtual_stage < 0 || a.virtual_stage >= int(shape_.virtual_stages.size()))
      return Problem(fmt::format("the stage has {} virtual stages", shape_.virtual_stages.size()));
    if (a.micro_batch < 0 || a.micro_batch >= shape_.pipeline.micro_batches)
      return Problem(fmt::format("a step has {} micro-batches", shape_.pipeline.micro_batches));
    if (a.part < kAllParts || a.part >= parts(a))
      return Problem(fmt::format("the virtual stage has {} parts", parts(a)));
    if (stepped_ && (a.act != Act::gather || shape_.gathers_parts)) return Problem("it comes after step");
    switch (a.act) {
      case Act::post_activation: return post(a, false);
      case Act::wait_activation: return wait(a, false);
      case Act::post_gradient: return post(a, true);
      case Act::wait_gradient: return wait(a, true);
      case Act::forward:
      case Act::backward:
      case Act::backward_input:
      case Act::backward_weight: return compute(a);
      case Act::send_activation: return send(a, pair(a).forward, pair(a).activation_sent, sent_activation_);
      case Act::send_gradient: return send(a, pair(a).input_half, pair(a).gradient_sent, sent_gradient_);
      case Act::release_activation: return release(a, sent_activation_);
      case Act::release_gradient: return release(a, sent_gradient_);
      case Act::pass_activation: return pass_activation(a);
      case Act::pass_gradient: return pass_gradient(a);
      case Act::wait_weights: return wait_weights(a);
      case Act::release_weights: return release_weights(a);
      case Act::claim_gradients: return claim(a);
      case Act::reduce: return reduce(a);
      case Act::sum: return sum();
      case Act::step: return step();
      case Act::gather: return gather(a);
    }
    return Problem("no such action");
  }

  int parts(const Action& a) const { return shape_.virtual_stages[size_t(a.virtual_stage)].count; }
  bool head(int virtual_stage) const { return shape_.virtual_stages[size_t(virtual_stage)].head; }
  StepPair& pair(const Action& a) { return pairs_[size_t(a.virtual_stage)][size_t(a.micro_batch)]; }
  Part& part(const Action& a) { return parts_[size_t(a.virtual_stage)][size_t(a.part)]; }
  int slot(const Action& a) const { return slots_.slot_of[size_t(a.virtual_stage)][size_t(a.micro_batch)]; }
  int input(const Action& a) const { return slots_.input_of[size_t(a.virtual_stage)][size_t(a.micro_batch)]; }
  int& in_slot(Holders& holders, const Action& a) const {
    return holders[size_t(a.virtual_stage)][size_t(slot(a))];
  }
  int global(const Action& a) const { return order_.global_of(shape_.stage, a.virtual_stage); }
  bool receives(const Action& a, bool gradient) const {
    return gradient ? order_.sent_by(global(a)) : order_.received_by(global(a));
  }
  bool has_source(const Action& a, bool gradient) const {
    return gradient ? global(a) + 1 < order_.count() : global(a) > 0;
  }
  /// The receives of a kind that were posted on the edge of a virtual stage.
  std::deque<Action>& posted(const Action& a, bool gradient) {
    return posted_[gradient][order_.v_shaped ? size_t(a.virtual_stage) : 0];
  }

  // ---- messages ---------------------------------------------------------------------------------------

  Problem post(const Action& a, bool gradient) {
    StepPair& p = pair(a);
    if (!receives(a, gradient)) return Problem("no virtual stage sends to it");
    if (gradient ? p.gradient_posted : p.input_posted) return Problem("it was done before");
    if (gradient && !p.forward) return Problem("its forward has not run");
    if (!gradient)
      if (Problem problem = take_input(a); problem.exists()) return problem;
    (gradient ? p.gradient_posted : p.input_posted) = true;
    posted(a, gradient).push_back({a.act, a.virtual_stage, a.micro_batch});
    return Problem::none();
  }

  Problem take_input(const Action& a) {
    int& holder = input_holder_[size_t(a.virtual_stage)][size_t(input(a))];
    if (holder != kFree) return Problem(fmt::format("its buffer holds micro-batch {}", holder));
    holder = a.micro_batch;
    return Problem::none();
  }

  Problem wait(const Action& a, bool gradient) {
    StepPair& p = pair(a);
    if (gradient ? p.gradient_here : p.input_here) return Problem("it was done before");
    if (!(gradient ? p.gradient_posted : p.input_posted)) return Problem("it was not posted");
    const Action first = posted(a, gradient).front();
    if (first.virtual_stage != a.virtual_stage || first.micro_batch != a.micro_batch)
      return Problem(fmt::format("the receive of virtual stage {} micro-batch {} was posted before it",
                                 first.virtual_stage, first.micro_batch));
    posted(a, gradient).pop_front();
    (gradient ? p.gradient_here : p.input_here) = true;
    return Problem::none();
  }

  Problem send(const Action& a, bool ready, bool& sent, Holders& leaving) {
    if (!ready) return Problem("what it sends is not computed yet");
    if (sent) return Problem("it was done before");
    if (in_slot(leaving, a) != kFree) return not_released(in_slot(leaving, a));
    in_slot(leaving, a) = a.micro_batch;
    sent = true;
    return Problem::none();
  }
  static Problem not_released(int micro_batch) {
    return Problem(fmt::format("what its slot sent for micro-batch {} was not released", micro_batch));
  }
  Problem release(const Action& a, Holders& leaving) {
    if (in_slot(leaving, a) != a.micro_batch) return Problem("nothing of it is being sent");
    in_slot(leaving, a) = kFree;
    return Problem::none();
  }

  /// The pair of the previous virtual stage, which is on this stage, of the same micro-batch; it holds its
  /// slot until its own backward.
  Action before(const Action& a) const { return {a.act, order_.local_of(global(a) - 1), a.micro_batch}; }
  Problem pass_activation(const Action& a) {
    if (!order_.passed_to(global(a))) return Problem("the previous virtual stage is not on this stage");
    if (pair(a).input_here) return Problem("it was done before");
    const StepPair& from = pair(before(a));
    if (!from.forward || from.weight_half) return Problem("what it passes is not here");
    pair(a).input_here = true;
    return take_input(a);
  }
  Problem pass_gradient(const Action& a) {
    if (!order_.passed_to(global(a))) return Problem("the previous virtual stage is not on this stage");
    StepPair& to = pair(before(a));
    if (to.gradient_here) return Problem("it was done before");
    if (!pair(a).input_half) return Problem("what it passes is not computed yet");
    if (const int holder = in_slot(slot_holder_, a); holder != kFree && holder != a.micro_batch)
      return Problem(fmt::format("its slot holds micro-batch {}", holder));
    to.gradient_here = true;
    return Problem::none();
  }

  // ---- computing --------------------------------------------------------------------------------------

  /// A pass ends before the next begins, because they share scratch memory.
  Problem compute(const Action& a) {
    const bool forward = a.act == Act::forward;
    const int last = parts(a) - (head(a.virtual_stage) && !forward ? 2 : 1), begin = forward ? 0 : last,
              end = forward ? last : 0;
    if (a.part > last) return Problem("the head has no backward");
    if (!pass_.under_way) {
      if (a.part != kAllParts && a.part != begin) return Problem(fmt::format("part {} comes first", begin));
      if (Problem problem = begin_pass(a); problem.exists()) return problem;
      pass_ = {true, a.act, a.virtual_stage, a.micro_batch, begin};
    } else if (a.act != pass_.act || a.virtual_stage != pass_.virtual_stage ||
               a.micro_batch != pass_.micro_batch || a.part != pass_.next) {
      return Problem(fmt::format("part {} of the {} of virtual stage {} micro-batch {} comes first",
                                 pass_.next, name_of(pass_.act), pass_.virtual_stage, pass_.micro_batch));
    }
    const int step = forward ? 1 : -1, stop = a.part == kAllParts ? end : a.part;
    for (; pass_.next != stop + step; pass_.next += step)
      if (Problem problem = compute_part(a, pass_.next); problem.exists()) return problem;
    if (stop == end) {
      pass_.under_way = false;
      end_pass(a);
    }
    return Problem::none();
  }

  Problem begin_pass(const Action& a) {
    StepPair& p = pair(a);
    if (a.act == Act::forward) {
      if (p.forward) return Problem("it was done before");
      if (has_source(a, false) && !p.input_here)
        return Problem(receives(a, false) ? "its input was not waited for" : "its input was not passed");
      if (in_slot(slot_holder_, a) != kFree)
        return Problem(fmt::format("its slot holds micro-batch {}", in_slot(slot_holder_, a)));
      if (in_slot(sent_activation_, a) != kFree) return not_released(in_slot(sent_activation_, a));
      in_slot(slot_holder_, a) = a.micro_batch;
      return Problem::none();
    }
    if (shape_.splits_backward != (a.act != Act::backward))
      return Problem("the halves of this backward are otherwise");
    if (a.act == Act::backward_weight) {
      if (!p.input_half) return Problem("its input half has not run");
      return p.weight_half ? Problem("it was done before") : Problem::none();
    }
    if (p.input_half) return Problem("it was done before");
    if (!p.forward) return Problem("its forward has not run");
    if (has_source(a, true) && !p.gradient_here)
      return Problem(receives(a, true) ? "its gradient was not waited for" : "its gradient was not passed");
    if (in_slot(sent_gradient_, a) != kFree) return not_released(in_slot(sent_gradient_, a));
    return Problem::none();
  }

  Problem compute_part(const Action& a, int number) {
    Part& part = parts_[size_t(a.virtual_stage)][size_t(number)];
    if (!part.weights_here) return Problem(fmt::format("the weights of part {} were not waited for", number));
    const bool is_head = head(a.virtual_stage) && number == parts(a) - 1;
    const bool makes_gradients =
        is_head ? a.act == Act::forward : a.act == Act::backward || a.act == Act::backward_weight;
    if (!makes_gradients) return Problem::none();
    if (part.gradients != a.micro_batch)
      return Problem(fmt::format("it is the turn of micro-batch {}", part.gradients));
    if (shape_.reduced_together > 0 && !part.claimed)
      return Problem("the memory for its gradients was not waited for");
    if (part.gradients - part.reduced == reduced_together(shape_))
      return Problem("the gradients before are not reduced yet");
    ++part.gradients;
    return Problem::none();
  }

  void end_pass(const Action& a) {
    StepPair& p = pair(a);
    if (a.act == Act::forward) p.forward = true;
    if (a.act == Act::backward || a.act == Act::backward_input) p.input_half = true;
    if (a.act != Act::backward && a.act != Act::backward_weight) return;
    p.weight_half = true;
    in_slot(slot_holder_, a) = kFree;
    if (input(a) >= 0) input_holder_[size_t(a.virtual_stage)][size_t(input(a))] = kFree;
  }

  // ---- weights and gradients --------------------------------------------------------------------------

  Problem wait_weights(const Action& a) {
    if (a.part == kAllParts) return Problem("it names no part");
    if (part(a).weights_here) return Problem("it was done before");
    if (!part(a).gather_begun) return Problem("its weights are not gathered");
    if (shape_.gathers_parts) {
      const Action first = gathering_.front();
      if (first.virtual_stage != a.virtual_stage || first.part != a.part)
        return Problem(fmt::format("virtual stage {} part {} was gathered before it", first.virtual_stage,
                                   first.part));
      gathering_.pop_front();
    }
    part(a).weights_here = true;
    return Problem::none();
  }
  Problem release_weights(const Action& a) {
    if (!shape_.gathers_parts) return Problem("its weights have memory of their own");
    if (a.part == kAllParts) return Problem("it names no part");
    if (!part(a).weights_here) return Problem("its weights are not here");
    part(a).weights_here = part(a).gather_begun = false;
    place_taken_[size_t(weight_place(shape_, a.virtual_stage, a.part))] = false;
    return Problem::none();
  }
  Problem reduce(const Action& a) {
    if (a.part == kAllParts) return Problem("it names no part");
    if (part(a).reduced > a.micro_batch) return Problem("it was done before");
    const int together = reduced_together(shape_), held = part(a).gradients - part(a).reduced;
    if (held != together || part(a).gradients != a.micro_batch + 1)
      return Problem(fmt::format("it holds the gradients of {} of {} micro-batches", held, together));
    if (shape_.gathers && !shape_.gathers_parts)
      if (Problem problem = all_weights_here(); problem.exists()) return problem;
    part(a).reduced = part(a).gradients;
    part(a).claimed = false;
    return Problem::none();
  }
  Problem claim(const Action& a) {
    if (shape_.reduced_together == 0)
      return Problem("the gradients are reduced once, and their memory is free");
    const int first = a.part == kAllParts ? 0 : a.part;
    const int last = a.part == kAllParts ? parts(a) - (head(a.virtual_stage) ? 2 : 1) : a.part;
    if (shape_.shares_gradients)
      for (size_t c = 0; c < parts_.size(); ++c)
        for (size_t p = 0; p < parts_[c].size(); ++p)
          if (parts_[c][p].claimed || first != last)
            return Problem(
                fmt::format("the gradients of virtual stage {} part {} are not reduced yet", c, p));
    for (int p = first; p <= last; ++p) {
      Part& part = parts_[size_t(a.virtual_stage)][size_t(p)];
      if (part.claimed) return Problem("it was done before");
      if (part.gradients != a.micro_batch)
        return Problem(fmt::format("it is the turn of micro-batch {}", part.gradients));
      part.claimed = true;
    }
    return Problem::none();
  }
  Problem all_weights_here() const {
    for (size_t c = 0; c < parts_.size(); ++c)
      for (size_t p = 0; p < parts_[c].size(); ++p)
        if (!parts_[c][p].weights_here)
          return Problem(fmt::format("the weights of virtual stage {} part {} still come through the memory "
                                     "that the gradients need",
                                     c, p));
    return Problem::none();
  }
  Problem sum() {
    if (summed_) return Problem("it was done before");
    for (size_t c = 0; c < parts_.size(); ++c)
      for (size_t p = 0; p < parts_[c].size(); ++p)
        if (parts_[c][p].reduced != shape_.pipeline.micro_batches)
          return Problem(fmt::format("virtual stage {} part {} is not reduced yet", c, p));
    summed_ = true;
    return Problem::none();
  }
  Problem step() {
    if (!summed_) return Problem("the gradients are not summed yet");
    if (shape_.gathers_parts &&
        std::find(place_taken_.begin(), place_taken_.end(), true) != place_taken_.end())
      return Problem("the weights of a part are not released yet");
    stepped_ = true;
    for (auto& virtual_stage : parts_)
      for (Part& part : virtual_stage) part.gather_begun = false;
    return Problem::none();
  }
  Problem gather(const Action& a) {
    if (!shape_.gathers) return Problem("the weights are everywhere already");
    if (a.part == kAllParts) return Problem("it names no part");
    if (!stepped_ && !shape_.gathers_parts) return Problem("the weights have not changed yet");
    if (part(a).gather_begun) return Problem("it was done before");
    if (shape_.gathers_parts) {
      const auto place = size_t(weight_place(shape_, a.virtual_stage, a.part));
      if (place_taken_[place]) return Problem("its place holds the weights of another part");
      place_taken_[place] = true;
      gathering_.push_back(a);
    }
    part(a).gather_begun = true;
    return Problem::none();
  }

  Problem check_end() const {
    if (!stepped_) return Problem("the program ends without step");
    for (const bool gradient : {false, true})
      for (const std::deque<Action>& posted : posted_[gradient])
        if (!posted.empty()) return Problem(fmt::format("{} is not waited for", text_of(posted.front())));
    for (size_t c = 0; c < parts_.size(); ++c) {
      for (size_t m = 0; m < pairs_[c].size(); ++m)
        if (!pairs_[c][m].weight_half)
          return Problem(fmt::format("virtual stage {} micro-batch {} has no backward", c, m));
      for (size_t s = 0; s < sent_activation_[c].size(); ++s)
        for (const Holders* leaving : {&sent_activation_, &sent_gradient_})
          if (const int m = (*leaving)[c][s]; m != kFree)
            return Problem(
                fmt::format("what virtual stage {} sent for micro-batch {} was not released", c, m));
      for (size_t p = 0; p < parts_[c].size(); ++p)
        if (shape_.gathers && !shape_.gathers_parts && !parts_[c][p].gather_begun)
          return Problem(fmt::format("virtual stage {} part {} is not gathered", c, p));
    }
    return Problem::none();
  }

  const StepShape& shape_;
  const VirtualStages order_;
  const SlotPlan& slots_;
  std::vector<std::vector<StepPair>> pairs_;   // [virtual_stage][micro_batch]
  std::vector<std::vector<Part>> parts_;   // [virtual_stage][part]
  Holders slot_holder_,
      input_holder_;   // [virtual_stage][slot], [virtual_stage][input]: the micro-batch whose memory it is
  Holders sent_activation_, sent_gradient_;
  std::vector<std::deque<Action>> posted_[2];  // activations, gradients: of each virtual stage in a V
  std::deque<Action> gathering_;   // with gathers_parts: not waited for yet
  std::vector<bool> place_taken_;  // with gathers_parts
  Pass pass_;
  bool summed_ = false, stepped_ = false;
};

}  // namespace

Problem step_problem(const StepShape& shape, const SlotPlan& slots, const StepProgram& program) {
  ENSURE(int(shape.virtual_stages.size()) == shape.pipeline.virtual_stages);
  return StepChecker(shape, slots).run(program);
}

}  // namespace trainctl::parallel
