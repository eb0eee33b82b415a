#include "parallel/sharded_params.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "parallel/gradient_reduction.h"
#include "parallel/muon_updates.h"
#include "parallel/param_gathers.h"
#include "parallel/part_gathers.h"
#include "parallel/sharded_memory.h"
#include "parallel/sharding_plan.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {

using kernels::Matrix;
using namespace sharding;

namespace {

std::unique_ptr<WeightGathers> make_gathers(const ShardedMemory& memory, LaneGroups& lines,
                                            kernels::Backend& backend, kernels::Stream& stream) {
  if (memory.layout.shards_weights()) return std::make_unique<PartGathers>(memory, lines, backend, stream);
  return std::make_unique<ParamGathers>(memory, lines, backend, stream);
}

}  // namespace

struct ShardedParams::Impl {
  kernels::Backend& backend;
  kernels::Stream& stream;
  const AxisGroups groups;
  const ShardedMemory memory;
  LaneGroups reducing, gathering;
  GradientReduction reduction;
  const std::unique_ptr<WeightGathers> gathers;
  std::unique_ptr<kernels::Buffer> squares;  // host: sum of squares of each state chunk's gradient
  /// Of one element after another.
  using BoxesOfRules = std::array<std::vector<kernels::UpdateBox>, size_t(UpdateRule::muon)>;
  std::vector<BoxesOfRules> boxes;                     // [part of the state]
  std::unique_ptr<MuonUpdates> muon;                   // null: no matrix here has this rule
  bool summed = false;                       // no step since the gradients were summed

  Impl(Layout layout, const AxisGroups& g, kernels::Backend& b, kernels::Stream& s,
       std::unique_ptr<File> state_file)
      : backend(b),
        stream(s),
        groups(g),
        memory(checked(std::move(layout), g), b, std::move(state_file)),
        reducing(make_lane_groups(memory.layout.plan, groups, LaneTags::reductions)),
        gathering(make_lane_groups(memory.layout.plan, groups, LaneTags::gathers)),
        reduction(memory, reducing, groups, b, s),
        gathers(make_gathers(memory, gathering, b, s)),
        squares(b.allocate_host(memory.state_chunks().size() * sizeof(double))),
        boxes(memory.state_parts().size()) {
    for (size_t part = 0; part < boxes.size(); ++part)
      for (size_t i = memory.state_parts()[part].begin; i < memory.state_parts()[part].end; ++i)
        if (rule_of(i) != UpdateRule::muon)
          boxes[part][size_t(rule_of(i))].push_back(memory.update_boxes()[i]);
    if (memory.layout.plan.muon.matrix > 0)
      muon = std::make_unique<MuonUpdates>(memory, groups.find(axes::tensor), b, s);
  }
  UpdateRule rule_of(size_t state_chunk) const {
    return memory.layout.uses[size_t(memory.owned_chunks()[state_chunk].chunk.use)].rule;
  }
  void update(size_t part, const UpdateStep& step) {
    const BoxesOfRules& of = boxes[part];
    const auto run = [&](auto op) {
      if (!op.boxes.empty()) backend.run(stream, op);
    };
    run(kernels::AdamW{.boxes = of[size_t(UpdateRule::adamw)], .step = step.adamw});
    run(kernels::Lion{.boxes = of[size_t(UpdateRule::lion)], .step = step.lion});
    run(kernels::Sgd{.boxes = of[size_t(UpdateRule::sgd)], .step = step.sgd});
    run(kernels::Balance{.boxes = of[size_t(UpdateRule::balance)], .step = step.balance});
    average_in_file(part, step.ema_decay);
  }
  void average_in_file(size_t part, float decay) {
    const StatePlaces::Part& of = memory.state_parts()[part];
    if (of.in_file) memory.average(of, decay, backend, stream);
  }

  static Layout checked(Layout layout, const AxisGroups& groups) {
    for (const AxisLine& line : layout.lines) {
      const Communicator* group = groups.find(line.axis);
      const int size = group ? group->size() : 1, rank = group ? group->rank() : 0;
      ENSURE(size == line.size && rank == line.rank, "axis {}: a layout of {} of {} on {} of {}", line.axis,
             line.rank, line.size, rank, size);
      ENSURE(!layout.options.fast_reduction || !line.has_lanes || size == 1 || (group && group->reduces()),
             "the group of axis {} makes no sums", line.axis);
    }
    return layout;
  }
};

namespace {

/// Sums are made here where a group makes none.
ShardingOptions made_here(ShardingOptions options, const AxisGroups& groups) {
  for (const AxisLine& line : groups.lines())
    if (line.has_lanes && line.size > 1) options.fast_reduction &= groups.find(line.axis)->reduces();
  return options;
}

}  // namespace

ShardedParams::ShardedParams(std::vector<ParamUse> uses, const std::vector<std::vector<Box>>& grids,
                             ShardingOptions options, const AxisGroups& groups, kernels::Backend& backend,
                             kernels::Stream& stream)
    : ShardedParams(make_layout(std::move(uses), grids, made_here(options, groups), groups.lines()), groups,
                    backend, stream) {}
ShardedParams::ShardedParams(Layout layout, const AxisGroups& groups, kernels::Backend& backend,
                             kernels::Stream& stream, std::unique_ptr<File> state_file)
    : impl_(std::make_unique<Impl>(std::move(layout), groups, backend, stream, std::move(state_file))) {}
ShardedParams::~ShardedParams() = default;

int ShardedParams::use_count() const { return int(uses().size()); }
const std::vector<ParamUse>& ShardedParams::uses() const { return impl_->memory.layout.uses; }
AxisSet ShardedParams::dealt_axis(int use) const {
  const Layout& layout = impl_->memory.layout;
  return layout.options.zero_stage == 0 ? 0 : layout.line_of(impl_->memory.group_of(use)).axis;
}
bool ShardedParams::shards_weights() const { return impl_->memory.layout.shards_weights(); }
Matrix ShardedParams::weight(int use) const { return impl_->memory.weight(use); }
Matrix ShardedParams::gradient(int use, int lane) const {
  const ShardedMemory& memory = impl_->memory;
  const int g = memory.group_of(use);
  return memory.gradient(use, memory.levels(g).of_lane[memory.lane_before_reduction(g, lane)]);
}

int ShardedParams::lanes_together(int use) const {
  const Layout& layout = impl_->memory.layout;
  return layout.line_of(impl_->memory.group_of(use)).sharing * layout.plan.parts_of_lane;
}

bool ShardedParams::merges_each(int use) const {
  const Layout& layout = impl_->memory.layout;
  return layout.line_of(impl_->memory.group_of(use)).sharing > 1 && !layout.options.accumulates;
}

void* ShardedParams::gradient_of_part(void* place, int part) const {
  return impl_->memory.gradient_of_part(place, part);
}

void ShardedParams::zero_gradient(int use, int lane) {
  const Matrix g = gradient(use, lane);
  impl_->backend.run(impl_->stream, kernels::FillZero{.data = g.data, .size = size_t(g.count()) * 4});
}

void ShardedParams::merge_lane(int begin, int end, int lane) {
  for (int use = begin; use < end; ++use) impl_->reduction.merge_lane(use, lane);
}

void ShardedParams::claim_gradients(int begin, int end) { impl_->reduction.claim(begin, end); }

void ShardedParams::reduce(int begin, int end) {
  ENSURE(shards_weights() || impl_->gathers->all_awaited(),
         "gradients are reduced through the ring that parameters still need");
  impl_->reduction.reduce(begin, end);
}

void ShardedParams::go_on() {
  impl_->gathers->go_on();
  if (shards_weights() || impl_->gathers->all_awaited()) impl_->reduction.go_on();
}

void ShardedParams::finish_reduction() {
  impl_->reduction.finish();
  impl_->summed = true;
}

void ShardedParams::add_gradient_squares(ExactSum& squares) {
  std::vector<Matrix> boxes;
  for (size_t i = 0; i < state_chunks().size(); ++i) {
    const StateChunk& c = state_chunks()[i];
    if (!c.saved_here || impl_->rule_of(i) == UpdateRule::balance) continue;
    boxes.push_back(
        {const_cast<float*>(c.gradient), DType::f32, c.box.rows(), c.box.cols(), c.gradient_stride});
  }
  double* sums = static_cast<double*>(impl_->squares->data());
  impl_->backend.run(impl_->stream, kernels::SumSquares{.boxes = boxes, .out = sums});
  impl_->stream.synchronize();
  for (size_t i = 0; i < boxes.size(); ++i) squares.add(sums[i]);
}

int ShardedParams::last_bad_gradient() const {
  const double* const sums = static_cast<const double*>(impl_->squares->data());
  int last = -1;
  size_t box = 0;
  for (size_t i = 0; i < state_chunks().size(); ++i) {
    const StateChunk& c = state_chunks()[i];
    if (!c.saved_here || impl_->rule_of(i) == UpdateRule::balance) continue;
    if (!std::isfinite(sums[box++])) last = std::max(last, c.param);
  }
  return last;
}

void ShardedParams::step(const UpdateStep& step) {
  ENSURE(std::exchange(impl_->summed, false), "the gradients were not summed");
  ENSURE(impl_->gathers->all_awaited(), "parameters of the step before are on their way");
  impl_->memory.with_parts(StateAccess::update, [&](size_t part) { impl_->update(part, step); });
  if (impl_->muon) impl_->muon->step(step.muon);
  impl_->memory.average(step.ema_decay, impl_->backend, impl_->stream);
  impl_->gathers->weights_changed();
}

void ShardedParams::begin_averages() {
  impl_->memory.average(0, impl_->backend, impl_->stream);
  const std::vector<ParamUse>& all = uses();
  if (std::none_of(all.begin(), all.end(), [](const ParamUse& u) { return u.states.has(StateRole::ema); }))
    return;
  impl_->memory.with_parts(StateAccess::update, [&](size_t part) { impl_->average_in_file(part, 0); });
}

void ShardedParams::gather(int begin, int end) { impl_->gathers->gather(begin, end); }
void ShardedParams::await(int begin, int end) { impl_->gathers->await(begin, end); }
void ShardedParams::finish_gathers() { impl_->gathers->finish(); }

void ShardedParams::publish() {
  finish_gathers();
  impl_->memory.with_parts(StateAccess::read, [&](size_t part) {
    const StatePlaces::Part& of = impl_->memory.state_parts()[part];
    for (size_t i = of.begin; i < of.end; ++i) {
      const kernels::UpdateBox& box = impl_->memory.update_boxes()[i];
      if (!box.master) continue;
      const Matrix master = kernels::matrix(box.master, DType::f32, box.param.rows, box.param.cols);
      impl_->backend.run(impl_->stream, kernels::Copy{.src = master, .dst = box.param});
    }
  });
  impl_->gathers->weights_changed();
  if (!shards_weights()) gather(0, use_count());
}

std::byte* ShardedParams::StateChunk::state(StateRole role) const {
  const StateRow* row = rows.find(role);
  return row ? states[size_t(row - rows.begin())] : nullptr;
}

float* ShardedParams::StateChunk::floats(StateRole role) const {
  const StateRow* row = rows.find(role);
  if (row && row->dtype == DType::f32) return reinterpret_cast<float*>(state(role));
  ENSURE(false, "no state {} of parameter {} in f32", int(role), param);
  return nullptr;
}

const std::vector<ShardedParams::StateChunk>& ShardedParams::state_chunks() const {
  return impl_->memory.state_chunks();
}

void ShardedParams::with_state(StateAccess access, const UseChunks& use) const {
  impl_->memory.with_parts(access, [&](size_t part) {
    const StatePlaces::Part& of = impl_->memory.state_parts()[part];
    use(std::span(state_chunks()).subspan(of.begin, of.end - of.begin));
  });
}

Matrix ShardedParams::rows_apart(const std::byte* state) const { return impl_->memory.rows_apart(state); }

bool ShardedParams::is_in_file(const std::byte* state) const {
  const StateFile* const file = impl_->memory.state_file();
  return file && file->has(state);
}

void ShardedParams::read_state(const std::byte* state, std::span<std::byte> to) const {
  ENSURE(is_in_file(state));
  impl_->memory.state_file()->read(state, to);
}

}  // namespace trainctl::parallel
