// A small model state in plain arrays, and the ways to write it: any number of shards, any ownership of chunks.
#pragma once
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ckpt/store.h"
#include "parallel/layout.h"

namespace trainctl::test {

struct PlainState {
  ckpt::StateInfo info;
  std::vector<ckpt::Tensor> tensors;
  std::vector<std::vector<std::byte>> values;        ///< per tensor, row-major
  std::vector<std::vector<parallel::Box>> grids;     ///< per tensor
};

inline parallel::Box whole(const ckpt::Tensor& tensor) {
  return {0, tensor.shape[0], 0, tensor.shape.size() == 2 ? tensor.shape[1] : 1};
}

/// The elements of `box` of tensor t, contiguous.
inline std::vector<std::byte> cut_out(const PlainState& state, size_t t, const parallel::Box& box) {
  const size_t item = size_of(state.tensors[t].dtype), pitch = size_t(whole(state.tensors[t]).col_end) * item;
  std::vector<std::byte> result;
  for (int64_t row = box.row_begin; row < box.row_end; ++row) {
    const auto begin = state.values[t].begin() + ptrdiff_t(size_t(row) * pitch + size_t(box.col_begin) * item);
    result.insert(result.end(), begin, begin + ptrdiff_t(size_t(box.cols()) * item));
  }
  return result;
}

/// A tiny transformer's worth of tensors, ragged sizes, random finite values. Equal (seed, step): equal state.
inline PlainState make_state(uint64_t seed, int64_t step, int64_t chunk_elements = 40) {
  PlainState state;
  state.info = {.run_id = "tiny-7Q2K",
                .epoch = 3,
                .step = step,
                .tokens = step * 1000,
                .seed = seed,
                .spec_hash = "abc",
                .program_version = "0.1.0",
                .extra_json = R"({"loss":2.5})",
                .resolved_spec_json = R"({"name":"tiny"})"};
  std::vector<parallel::ParamLayout> params(4);
  params[0] = {.name = "embed.weight",
               .rows = 23,
               .cols = 8,
               .cut = parallel::Cut::rows,
               .sections = {},
               .ragged = true};
  params[1] = {.name = "layers.0.qkv.weight",
               .rows = 24,
               .cols = 8,
               .cut = parallel::Cut::rows,
               .sections = {8, 8, 8}};
  params[2] = {.name = "layers.0.proj.weight", .rows = 8, .cols = 24, .cut = parallel::Cut::cols, .sections = {}};
  params[3] = {.name = "layers.0.norm.weight", .rows = 13, .cols = 1, .cut = parallel::Cut::none, .sections = {}};
  std::mt19937_64 random(seed * 1000003 + uint64_t(step));
  std::normal_distribution<float> normal;
  for (const auto& param : params)
    for (const ckpt::Role role : {ckpt::Role::master, ckpt::Role::first_moment, ckpt::Role::second_moment}) {
      ckpt::Tensor tensor{.name = param.name, .role = role, .shape = {param.rows}};
      if (param.cols > 1) tensor.shape.push_back(param.cols);
      std::vector<std::byte> bytes(size_t(param.rows * param.cols) * sizeof(float));
      for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
        const float value = normal(random);
        std::memcpy(bytes.data() + i, &value, sizeof value);
      }
      state.tensors.push_back(tensor);
      state.values.push_back(std::move(bytes));
      state.grids.push_back(parallel::chunk_grid(param, {1, 2, 4}, chunk_elements));
    }
  return state;
}

/// Writes the state as `shards` shards, chunks dealt out by `seed`, and publishes. Returns the root hash.
inline std::string save(ckpt::Store& store, const PlainState& state, int shards, uint64_t seed = 0) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<ckpt::ChunkData>> chunks(static_cast<size_t>(shards));
  std::vector<std::vector<std::byte>> held;
  for (size_t t = 0; t < state.tensors.size(); ++t)
    for (const parallel::Box& box : state.grids[t]) {
      held.push_back(cut_out(state, t, box));
      chunks[random() % size_t(shards)].push_back({int(t), box, held.back().data()});
    }
  store.saving(state.info)->begin();
  std::vector<ckpt::ShardReceipt> receipts;
  for (int s = 0; s < shards; ++s) {
    // A writer of its own, as another process would have.
    const ckpt::ShardReceipt receipt =
        ckpt::write_shard(*store.saving(state.info), ckpt::shard_file_name(s, shards), state.info,
                          state.tensors, chunks[size_t(s)]);
    receipts.push_back(ckpt::ShardReceipt::from_json(receipt.to_json()));
  }
  return ckpt::publish(store, state.info, state.tensors, receipts);
}
inline std::string save(FileSystem& fs, const std::string& dir, const PlainState& state, int shards,
                        uint64_t seed = 0) {
  return save(*ckpt::directory_store(fs, dir), state, shards, seed);
}

/// Every tensor read whole equals the plain arrays.
inline bool reads_back(ckpt::Checkpoint& checkpoint, const PlainState& state) {
  for (size_t t = 0; t < state.tensors.size(); ++t) {
    std::vector<std::byte> out(state.values[t].size());
    checkpoint.read(state.tensors[t].name, state.tensors[t].role, whole(state.tensors[t]), out.data());
    if (out != state.values[t]) return false;
  }
  return checkpoint.state().step == state.info.step && checkpoint.tensors().size() == state.tensors.size();
}

}  // namespace trainctl::test
