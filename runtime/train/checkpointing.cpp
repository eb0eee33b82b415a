#include "runtime/train/checkpointing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/hash.h"
#include "runtime/base/philox.h"

namespace trainctl {

using parallel::ShardedParams;

void initialise(const ParamTable& table, uint64_t seed, ShardedParams& params) {
  for (const ShardedParams::StateChunk& c : params.state_chunks()) {
    const Param& p = table.params[size_t(c.param)];
    const Philox random(seed, RandomPurpose::kInit, xxh3(p.layout.name));
    float* out = c.master;
    for (int64_t row = c.box.row_begin; row < c.box.row_end; ++row)
      for (int64_t col = c.box.col_begin; col < c.box.col_end; ++col) {
        const double noise = p.init_std > 0 ? p.init_std * double(random.normal(uint64_t(row * p.layout.cols + col))) : 0;
        *out++ = float(p.init_mean + noise);
      }
    std::fill_n(c.first_moment, c.box.count(), 0.0f);
    std::fill_n(c.second_moment, c.box.count(), 0.0f);
  }
}

namespace {

/// Hugging Face's GPT-2 stores linear weights transposed ([in, out]); told by the one weight that is never square.
bool stores_transposed(const ParamTable& table, ckpt::TensorFolder& folder, const std::string& prefix) {
  for (const Param& p : table.params)
    if (p.layout.name.ends_with("attn.c_attn.weight") && folder.has(prefix + p.layout.name)) {
      const auto shape = folder.shape(prefix + p.layout.name);
      return shape.size() == 2 && shape[0] == p.layout.cols && shape[1] == p.layout.rows;
    }
  return false;
}

std::vector<float> transposed(const std::vector<float>& in, int64_t rows, int64_t cols) {
  std::vector<float> out(in.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) out[size_t(r * cols + c)] = in[size_t(c * rows + r)];
  return out;
}

}  // namespace

void import_weights(const ParamTable& table, ckpt::TensorFolder& folder, ShardedParams& params) {
  const std::string first = table.params.front().layout.name;
  const std::string prefix = !folder.has(first) && folder.has("transformer." + first) ? "transformer." : "";
  const bool swap = stores_transposed(table, folder, prefix);
  int loaded = -1;
  std::vector<float> values;
  for (const ShardedParams::StateChunk& c : params.state_chunks()) {
    const Param& p = table.params[size_t(c.param)];
    if (c.param != loaded) {
      const std::string name = prefix + p.layout.name;
      if (!folder.has(name))
        throw Error(ErrorCode::kCheckpoint,
                    fmt::format("model.init.from has no tensor `{}`; it holds {} tensors, are they of another model family?",
                                name, folder.names().size()));
      std::vector<int64_t> want{p.layout.rows};
      if (!p.is_vector()) want.push_back(p.layout.cols);
      const bool swapped = swap && p.role == ParamRole::matrix;
      if (swapped) std::reverse(want.begin(), want.end());
      const auto shape = folder.shape(name);
      if (shape != want)
        throw Error(ErrorCode::kCheckpoint, fmt::format("tensor `{}` of model.init.from has shape [{}], this model needs [{}]",
                                                        name, fmt::join(shape, ", "), fmt::join(want, ", ")));
      values = folder.read_f32(name);
      if (swapped) values = transposed(values, p.layout.rows, p.layout.cols);
      loaded = c.param;
    }
    for (int64_t row = c.box.row_begin; row < c.box.row_end; ++row)
      std::memcpy(c.master + (row - c.box.row_begin) * c.box.cols(),
                  values.data() + row * p.layout.cols + c.box.col_begin, size_t(c.box.cols()) * 4);
    std::fill_n(c.first_moment, c.box.count(), 0.0f);
    std::fill_n(c.second_moment, c.box.count(), 0.0f);
  }
}

void load_state(const ParamTable& table, ckpt::Checkpoint& checkpoint, ShardedParams& params) {
  const auto wanted = checkpoint_tensors(table);
  for (const ckpt::Tensor& t : wanted) {
    const auto& have = checkpoint.tensors();
    const auto it = std::find_if(have.begin(), have.end(),
                                 [&](const ckpt::Tensor& h) { return h.name == t.name && h.role == t.role; });
    if (it == have.end())
      throw Error(ErrorCode::kCheckpoint, fmt::format("{} has no tensor `{}` ({}): it is a checkpoint of another model",
                                                      checkpoint.path(), t.name, ckpt::name_of(t.role)));
    if (it->shape != t.shape)
      throw Error(ErrorCode::kCheckpoint, fmt::format("{}: tensor `{}` has shape [{}], this model needs [{}]", checkpoint.path(),
                                                      t.name, fmt::join(it->shape, ", "), fmt::join(t.shape, ", ")));
  }
  for (const ShardedParams::StateChunk& c : params.state_chunks()) {
    const std::string& name = table.params[size_t(c.param)].layout.name;
    checkpoint.read(name, ckpt::Role::master, c.box, c.master);
    checkpoint.read(name, ckpt::Role::first_moment, c.box, c.first_moment);
    checkpoint.read(name, ckpt::Role::second_moment, c.box, c.second_moment);
  }
}

std::vector<ckpt::ChunkData> state_chunk_data(const ShardedParams& params) {
  std::vector<ckpt::ChunkData> data;
  for (const ShardedParams::StateChunk& c : params.state_chunks()) {
    if (!c.saved_here) continue;
    data.push_back({3 * c.param, c.box, c.master});
    data.push_back({3 * c.param + 1, c.box, c.first_moment});
    data.push_back({3 * c.param + 2, c.box, c.second_moment});
  }
  return data;
}

std::vector<ckpt::ChunkData> gradient_chunk_data(const ShardedParams& params, std::vector<std::vector<float>>& storage) {
  std::vector<ckpt::ChunkData> data;
  for (const ShardedParams::StateChunk& c : params.state_chunks()) {
    if (!c.saved_here) continue;
    std::vector<float> values(static_cast<size_t>(c.box.count()));
    for (int64_t r = 0; r < c.box.rows(); ++r)
      std::memcpy(values.data() + r * c.box.cols(), c.gradient + r * c.gradient_stride, size_t(c.box.cols()) * 4);
    storage.push_back(std::move(values));
    data.push_back({c.param, c.box, storage.back().data()});
  }
  return data;
}

}  // namespace trainctl
