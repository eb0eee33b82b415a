#include "parallel/sharded_memory.h"
#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {
namespace {

using kernels::Matrix;

Matrix chunk_in(Matrix local, const FlatChunk& c) {
  return local.row_range(c.where.local_row, c.where.global.rows())
      .columns(c.where.local_col, c.where.global.cols());
}

/// Of the first moments; null: there are none.
kernels::Moments format_of(const StateRow* moments) {
  if (!moments || moments->dtype == DType::f32) return kernels::Moments::f32;
  return moments->dtype == DType::bf16 ? kernels::Moments::bf16 : kernels::Moments::int8;
}

}  // namespace

ShardedMemory::ShardedMemory(Layout l, kernels::Backend& backend, std::unique_ptr<File> state_file)
    : layout(std::move(l)), owned_(layout.owned_chunks()) {
  if (state_file)
    places_ = place_states(layout);
  else
    places_.parts = {{.begin = 0, .end = owned_.size()}};
  if (places_.bytes() > 0) {
    ENSURE(backend.is_host(), "the state of a device in a file");
    state_file_ = std::make_unique<StateFile>(std::move(state_file), places_.begins);
  }
  weights_ = backend.allocate(layout.plan.weight_bytes);
  if (!layout.options.weights_alone) gradients_ = backend.allocate(size_t(layout.gradient_elements()) * 4);
  groups_.resize(size_t(groups()));
  for (int g = 0; g < groups(); ++g) allocate_group(g, backend);
  if (layout.ring.bytes() > 0) ring_ = backend.allocate(layout.ring.bytes());
  const size_t gather_bytes = layout.plan.gather_ring.bytes();
  if (gather_bytes > 0) gather_ring_ = backend.allocate(gather_bytes);
  build_state_chunks();
}

void ShardedMemory::allocate_group(int g, kernels::Backend& backend) {
  const GroupBytes bytes = layout.group_bytes(g);
  GroupMemory& memory = groups_[size_t(g)];
  const auto take = [&](std::unique_ptr<kernels::Buffer>& buffer, size_t n) {
    if (n > 0) buffer = backend.allocate(n);
  };
  for (const size_t state : bytes.states) {
    std::unique_ptr<kernels::Buffer>& buffer = memory.states.emplace_back();
    // The twin of a device has no memory, but host memory, which would be taken.
    if (bytes.home == StateHome::host && state > 0 && backend.computes())
      buffer = backend.allocate_host(state);
    else if (bytes.home == StateHome::memory || !state_file_)
      take(buffer, state);
  }
  take(memory.weights, bytes.weights);
  take(memory.summed, bytes.summed);
  take(memory.received, bytes.most_received());
}

Matrix ShardedMemory::weight(int use) const {
  const auto own = size_t(layout.plan.places[size_t(use)].weight_of);
  const Placement& p = layout.plan.places[own];
  return kernels::matrix(static_cast<char*>(weights_->data()) + p.weight_offset, layout.uses[own].dtype,
                         p.rows, p.cols);
}

Matrix ShardedMemory::gradient(int use, int level) const {
  const Placement& p = layout.plan.places[size_t(use)];
  const int64_t of_level =
      layout.share_of(p.group).gradients_begin + layout.line_of(p.group).gradient_elements * level;
  return kernels::matrix(static_cast<float*>(gradients_->data()) + of_level + p.gradient_offset, DType::f32,
                         p.rows, p.cols);
}

void* ShardedMemory::gradient_of_part(void* place, int part) const {
  float *const begin = static_cast<float*>(gradients_->data()), *const at = static_cast<float*>(place);
  if (at < begin || at >= begin + layout.gradient_elements()) return nullptr;
  ENSURE(at < begin + layout.plan.lines.front().gradient_elements * layout.shares.front().levels.count,
         "a gradient of another line than the first");
  const std::vector<int>& level = layout.shares.front().levels.of_lane;
  return at + (level[size_t(part)] - level[0]) * layout.plan.lines.front().gradient_elements;
}

Matrix ShardedMemory::chunk_gradient(const FlatChunk& c, int level) const {
  return chunk_in(gradient(c.use, level), c);
}
Matrix ShardedMemory::chunk_weight(const FlatChunk& c) const { return chunk_in(weight(c.use), c); }

float* ShardedMemory::own_sums(int g) const {
  if (!group(g).in_place) return summed(g, own_begin(g));
  return chunk_gradient(group(g).chunks.front(), 0).as<float>();
}

Matrix ShardedMemory::own_weight(int g, const FlatChunk& c) const {
  if (!layout.shards_weights(g)) return chunk_weight(c);
  // The groups of a parameter's uses have the same chunks and owners.
  const int owner = group(g).state_of;
  const int64_t at = c.offset - own_begin(owner);
  const DType dtype = group(g).key.dtype;
  return kernels::matrix(
      static_cast<char*>(groups_[size_t(owner)].weights->data()) + size_t(at) * size_of(dtype), dtype,
      c.where.global.rows(), c.where.global.cols());
}

void ShardedMemory::average(float decay, kernels::Backend& backend, kernels::Stream& stream) const {
  for (int g = 0; g < groups(); ++g) {
    const StateRows& rows = group(g).key.states;
    const StateRow* row = rows.find(StateRole::ema);
    const int64_t count = layout.options.zero_stage == 0 ? group(g).size() : own(g);
    if (!row || count == 0 || !owns_state(layout.plan, g)) continue;
    if (state_file_ && layout.group_bytes(g).home == StateHome::file) continue;
    if (rows.find(StateRole::master)->in_place) continue;  // below
    const auto values = [&](const StateRow* of) {
      return kernels::matrix(groups_[size_t(g)].states[size_t(of - rows.begin())]->data(), DType::f32, 1,
                             count);
    };
    backend.run(stream, kernels::ScaledAdd{.x = values(rows.find(StateRole::master)),
                                           .out = values(row),
                                           .alpha = 1 - decay,
                                           .beta = decay});
  }
  for (const StatePlaces::Part& part : places_.parts)
    for (size_t i = part.begin; i < part.end && !part.in_file; ++i)
      if (!state_chunks_[i].has_masters()) average_chunk(i, decay, backend, stream);
}

void ShardedMemory::average(const StatePlaces::Part& part, float decay, kernels::Backend& backend,
                            kernels::Stream& stream) const {
  for (size_t i = part.begin; i < part.end; ++i) average_chunk(i, decay, backend, stream);
}

void ShardedMemory::average_chunk(size_t i, float decay, kernels::Backend& backend,
                                  kernels::Stream& stream) const {
  const ShardedParams::StateChunk& chunk = state_chunks_[i];
  if (!chunk.rows.has(StateRole::ema)) return;
  const auto values = [&](StateRole role) {
    return chunk.values(size_t(chunk.rows.find(role) - chunk.rows.begin()));
  };
  backend.run(
      stream,
      kernels::ScaledAdd{
          .x = values(StateRole::master), .out = values(StateRole::ema), .alpha = 1 - decay, .beta = decay});
}

Matrix ShardedMemory::rows_apart(const std::byte* state) const {
  const auto found = rows_apart_.find(state);
  return found == rows_apart_.end() ? Matrix{} : found->second;
}

void ShardedMemory::with_parts(StateAccess access, const std::function<void(size_t part)>& use) const {
  std::vector<size_t> in_file;
  for (size_t i = 0; i < places_.parts.size(); ++i) {
    if (places_.parts[i].in_file)
      in_file.push_back(i);
    else
      use(i);
  }
  if (state_file_) state_file_->visit(access, [&](size_t part) { use(in_file[part]); });
}

std::byte* ShardedMemory::state_place(size_t owned, size_t row) const {
  const OwnedChunk& of = owned_[owned];
  if (group(of.group).key.states[row].in_place)
    return static_cast<std::byte*>(own_weight(of.group, of.chunk).data);
  if (state_file_ && !places_.rows[owned].empty()) return state_file_->address() + places_.rows[owned][row];
  const auto& [g, c, saved_here] = owned_[owned];
  return static_cast<std::byte*>(groups_[size_t(g)].states[row]->data()) +
         group(g).key.states[row].bytes(c.offset - layout.state_begin(g),
                                        c.block_offset - layout.state_block_begin(g));
}

void ShardedMemory::build_state_chunks() {
  for (const auto& [g, c, saved_here] : owned_) {
    ShardedParams::StateChunk s{
        .param = c.where.param, .chunk = c.where.chunk, .use = c.use, .box = c.where.global};
    s.rows = group(g).key.states;
    s.first_block = c.first_block;
    s.weight = own_weight(g, c);
    if (layout.options.weights_alone) {
      s.states.resize(s.rows.size());
      state_chunks_.push_back(s);
      boxes_.push_back({});
      continue;
    }
    for (size_t i = 0; i < s.rows.size(); ++i) s.states.push_back(state_place(state_chunks_.size(), i));
    if (!s.has_masters()) {
      ENSURE(s.weight.dtype == s.rows.find(StateRole::master)->dtype, "weights in {} in a copy in {}",
             name_of(s.rows.find(StateRole::master)->dtype), name_of(s.weight.dtype));
      if (!s.weight.contiguous()) rows_apart_[static_cast<std::byte*>(s.weight.data)] = s.weight;
    }
    if (!group(g).in_place) {
      s.gradient = summed(g, c.offset);
      s.gradient_stride = s.box.cols();
    } else {
      s.gradient = chunk_gradient(c, 0).as<float>();
      s.gradient_stride = layout.plan.places[size_t(c.use)].cols;
    }
    s.saved_here = saved_here;
    state_chunks_.push_back(s);
    const ParamUse& use = layout.uses[size_t(c.use)];
    kernels::UpdateBox box{.master = s.has_masters() ? s.floats(StateRole::master) : nullptr,
                           .first_moment = s.state(StateRole::first_moment),
                           .second_moment = s.state(StateRole::second_moment),
                           .grad = s.gradient,
                           .grad_stride = s.gradient_stride,
                           .weight_decay = use.weight_decay,
                           .lr_scale = use.lr_scale,
                           .moments = format_of(s.rows.find(StateRole::first_moment)),
                           .first_scales = reinterpret_cast<float*>(s.state(StateRole::first_scales)),
                           .second_scales = reinterpret_cast<float*>(s.state(StateRole::second_scales)),
                           .rounding = use.rounding,
                           .first = s.box.row_begin * use.layout.cols + s.box.col_begin,
                           .row_step = use.layout.cols};
    box.param = s.weight;
    boxes_.push_back(box);
  }
}

}  // namespace trainctl::parallel::sharding
