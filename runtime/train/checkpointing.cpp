#include "runtime/train/checkpointing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/philox.h"

namespace trainctl {

using parallel::ShardedParams;

namespace {

void initialise_chunk(const Param& p, uint64_t seed, const ShardedParams::StateChunk& c) {
  const Philox random(seed, RandomPurpose::kInit, xxh3(p.layout.name));
  std::array<float, 4> four{};
  uint64_t group = ~uint64_t(0);
  float* out = c.master;
  for (int64_t row = c.box.row_begin; row < c.box.row_end; ++row)
    for (int64_t col = c.box.col_begin; col < c.box.col_end; ++col) {
      const uint64_t index = uint64_t(row * p.layout.cols + col);
      if (p.init_std > 0 && index / 4 != group) four = random.normals(group = index / 4);
      *out++ = float(p.init_mean + (p.init_std > 0 ? p.init_std * double(four[index % 4]) : 0));
    }
  std::fill_n(c.first_moment, c.box.count(), 0.0f);
  std::fill_n(c.second_moment, c.box.count(), 0.0f);
}

}  // namespace

void initialise(const ParamTable& table, uint64_t seed, int threads, ShardedParams& params) {
  // A value depends on its place alone, so chunks may be filled in any order.
  std::atomic<size_t> next{0};
  const auto& chunks = params.state_chunks();
  const auto work = [&] {
    for (size_t i = next++; i < chunks.size(); i = next++)
      initialise_chunk(table.params[size_t(chunks[i].param)], seed, chunks[i]);
  };
  std::vector<std::thread> helpers;
  for (int t = 1; t < threads; ++t) helpers.emplace_back(work);
  work();
  for (std::thread& t : helpers) t.join();
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
