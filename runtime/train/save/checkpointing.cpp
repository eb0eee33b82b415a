#include "runtime/train/save/checkpointing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/base/philox.h"
#include "runtime/model/hugging_face.h"

namespace trainctl {

using parallel::ShardedParams;
using parallel::StateAccess;

namespace {

/// Normal z_k of ParamInit, k > 0, of element `index`: the first one within the cut.
float drawn_again(const ParamInit& init, uint64_t seed, uint64_t stream, uint64_t index) {
  constexpr uint64_t kMostDraws = 100;  // the least cut is 1, beyond which a third of all normals are
  for (uint64_t k = 1; k < kMostDraws; ++k) {
    const float z = Philox(seed, RandomPurpose::kInit, stream + k).normal(index);
    if (std::abs(z) <= init.cut) return z;
  }
  return 0;
}

void initialise_master(const Param& p, uint64_t seed, const parallel::Box& box, float* out) {
  const uint64_t stream = xxh3(p.layout.name);
  const Philox random(seed, RandomPurpose::kInit, stream);
  const ParamInit& init = p.init;
  std::array<float, 4> four{};
  uint64_t group = ~uint64_t(0);
  for (int64_t row = box.row_begin; row < box.row_end; ++row)
    for (int64_t col = box.col_begin; col < box.col_end; ++col) {
      const uint64_t index = uint64_t(row * p.layout.cols + col);
      if (init.std > 0 && index / 4 != group) four = random.normals(group = index / 4);
      float z = four[index % 4];
      if (init.cut > 0 && std::abs(z) > init.cut) z = drawn_again(init, seed, stream, index);
      *out++ = float(init.mean + (init.std > 0 ? init.std * double(z) : 0));
    }
}

/// Reports what a loading rank has got so far.
class LoadProgress {
 public:
  explicit LoadProgress(const RankState& state) : report_(state.progress) {
    for (const auto& c : state.params.state_chunks()) total_ += c.saved_bytes();
  }
  void add(const ShardedParams::StateChunk& c) { add(c.saved_bytes()); }
  void add(uint64_t bytes) {
    done_ += bytes;
    if (report_) report_(done_, total_);
  }
  /// A band of a chunk, which counts when its last one is there.
  void add(const ShardedParams::StateChunk& c, const parallel::Box& band) {
    if (band.row_end == c.box.row_end) add(c);
  }

 private:
  const std::function<void(uint64_t, uint64_t)>& report_;
  uint64_t done_ = 0, total_ = 0;
};

/// All states but the weights.
void zero_others(const RankState& state, const ShardedParams::StateChunk& c) {
  for (size_t i = 0; i < c.rows.size(); ++i)
    if (c.rows[i].role != ckpt::Role::master)
      state.backend.run(state.stream, kernels::FillZero{.data = c.states[i],
                                                        .size = size_t(c.box_of(c.rows[i]).count()) *
                                                                size_of(c.rows[i].dtype)});
}

/// Calls with(band, offset) for runs of whole rows of `box` of at most `most` bytes each (a row at least), of
/// elements of `size` bytes; `offset` is that of the band's first element in the box.
template <typename With>
void in_bands(const parallel::Box& box, size_t most, size_t size, With with) {
  const int64_t rows = int64_t(std::clamp<size_t>(most / size / size_t(box.cols()), 1, size_t(box.rows())));
  for (int64_t row = box.row_begin; row < box.row_end; row += std::min(rows, box.row_end - row))
    with(parallel::Box{row, row + std::min(rows, box.row_end - row), box.col_begin, box.col_end}, (row - box.row_begin) * box.cols());
}

/// Runs work(0) .. work(n - 1) on `threads` threads, in no order.
void in_parallel(size_t n, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t i = next++; i < n; i = next++) work(i);
  };
  std::vector<std::thread> helpers;
  for (int t = 1; t < threads; ++t) helpers.emplace_back(take);
  take();
  for (std::thread& t : helpers) t.join();
}

/// Weights in f32 on their way to a compute copy.
struct WeightBand {
  const ShardedParams::StateChunk* chunk;
  parallel::Box box;
  float *values, *place;  ///< to fill; where they come to
};

using ChunkList = std::vector<const ShardedParams::StateChunk*>;

/// All chunks, or those without master weights.
ChunkList weights_to_make(const RankState& state, bool all) {
  ChunkList chunks;
  for (const ShardedParams::StateChunk& c : state.params.state_chunks())
    if (all || !c.has_masters()) chunks.push_back(&c);
  return chunks;
}

/// Room for weights on their way: of a rank that has weights alone, or beside all that a training takes,
/// where a host's is not the backend's.
enum class RoomOf { weights_alone, training };

/// Calls read(bands) for as many weights of `chunks` at a time as have room, and makes compute copies of
/// them.
template <typename Read>
void make_weights(const RankState& state, const ChunkList& chunks, RoomOf of, Read read) {
  if (chunks.empty()) return;
  const size_t most = (of == RoomOf::training ? size_t{16} : size_t{256}) << 20;
  Upload upload(state.staging);
  size_t all = 0, row = 0;
  for (const ShardedParams::StateChunk* c : chunks) {
    all += size_t(c->box.count()) * sizeof(float);
    row = std::max(row, size_t(c->box.cols()) * sizeof(float));
  }
  const size_t size = std::max(row, std::min({all, most, upload.most()}));
  std::vector<float> on_host(of == RoomOf::training && state.backend.is_host() ? size / sizeof(float) : 0);
  const auto on_device = on_host.empty() ? state.backend.allocate(size) : nullptr;
  float* const room = on_host.empty() ? static_cast<float*>(on_device->data()) : on_host.data();
  size_t used = 0;
  std::vector<WeightBand> bands;
  const auto make = [&] {
    read(std::span<const WeightBand>(bands));
    upload.flush();
    for (const auto& [chunk, box, values, place] : bands) {
      const kernels::Matrix src = kernels::matrix(place, DType::f32, box.rows(), box.cols());
      const kernels::Matrix dst = chunk->weight.row_range(box.row_begin - chunk->box.row_begin, box.rows());
      state.backend.run(state.stream, kernels::Copy{.src = src, .dst = dst});
    }
    state.stream.synchronize();
    bands.clear();
    used = 0;
  };
  for (const ShardedParams::StateChunk* c : chunks)
    in_bands(c->box, size, sizeof(float), [&](const parallel::Box& box, int64_t) {
      const size_t bytes = size_t(box.count()) * sizeof(float);
      if (used + bytes > size || !upload.fits(bytes)) make();
      float* const place = room + used / sizeof(float);
      bands.push_back({c, box, upload.room(place, box.count()), place});
      used += bytes;
    });
  make();
}

/// Reads bands of a checkpoint.
void read_bands(const ParamTable& table, ckpt::Checkpoint& checkpoint, std::span<const WeightBand> bands,
                const std::function<void(uint64_t)>& got) {
  std::vector<ckpt::BoxRead> reads;
  for (const WeightBand& band : bands)
    reads.push_back({.name = table.params[size_t(band.chunk->param)].layout.name,
                     .role = ckpt::Role::master,
                     .box = band.box,
                     .out = band.values,
                     .is_shared = !band.chunk->saved_here,
                     .as_f32 = true});
  checkpoint.read_all(reads, got);
}

/// Reads bands of a folder with names of Hugging Face.
void read_bands(const ParamTable& table, StoredModel& model, std::span<const WeightBand> bands) {
  StoredParam stored;
  int found = -1;
  for (const WeightBand& band : bands) {
    if (band.chunk->param != found) stored = model.find(table.params[size_t(band.chunk->param)]);
    found = band.chunk->param;
    model.read(stored, band.box, band.values);
  }
}

}  // namespace

void initialise(const ParamTable& table, uint64_t seed, int threads, const RankState& state) {
  struct Room {
    const Param* param;
    parallel::Box box;
    float* values;
  };
  LoadProgress progress(state);
  Upload upload(state.staging);
  std::vector<Room> rooms;
  // A value depends on its place alone, so rooms may be filled in any order.
  const auto fill = [&] {
    in_parallel(rooms.size(), threads, [&](size_t i) { initialise_master(*rooms[i].param, seed, rooms[i].box, rooms[i].values); });
    rooms.clear();
    upload.flush();
  };
  state.params.with_state(StateAccess::write, [&](std::span<const ShardedParams::StateChunk> chunks) {
    for (const ShardedParams::StateChunk& c : chunks) {
      zero_others(state, c);
      if (!c.has_masters()) continue;
      in_bands(c.box, upload.most(), sizeof(float), [&](const parallel::Box& band, int64_t offset) {
        if (!upload.fits(size_t(band.count()) * sizeof(float))) fill();
        rooms.push_back({&table.params[size_t(c.param)], band,
                         upload.room(c.floats(ckpt::Role::master) + offset, band.count())});
      });
      progress.add(c);
    }
    fill();
  });
  upload.finish();
  make_weights(
      state, weights_to_make(state, false), RoomOf::training, [&](std::span<const WeightBand> bands) {
        in_parallel(bands.size(), threads, [&](size_t i) {
          initialise_master(table.params[size_t(bands[i].chunk->param)], seed, bands[i].box, bands[i].values);
        });
        for (const WeightBand& band : bands) progress.add(*band.chunk, band.box);
      });
  state.params.begin_averages();
}

void import_weights(const ParamTable& table, ckpt::TensorFolder& folder, const RankState& state) {
  StoredModel model(table, folder, "model.init.from");
  StoredParam stored;
  int found = -1;
  LoadProgress progress(state);
  Upload upload(state.staging);
  state.params.with_state(StateAccess::write, [&](std::span<const ShardedParams::StateChunk> chunks) {
    for (const ShardedParams::StateChunk& c : chunks) {
      zero_others(state, c);
      if (!c.has_masters()) continue;
      if (c.param != found) stored = model.find(table.params[size_t(c.param)]);
      found = c.param;
      in_bands(c.box, upload.most(), sizeof(float), [&](const parallel::Box& band, int64_t offset) {
        model.read(stored, band, upload.room(c.floats(ckpt::Role::master) + offset, band.count()));
      });
      progress.add(c);
    }
  });
  upload.finish();
  make_weights(state, weights_to_make(state, false), RoomOf::training,
               [&](std::span<const WeightBand> bands) {
                 read_bands(table, model, bands);
                 for (const WeightBand& band : bands) progress.add(*band.chunk, band.box);
               });
  state.params.begin_averages();
}

namespace {

bool has_master(const ckpt::Checkpoint& checkpoint, const std::string& name) {
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [&](const ckpt::Tensor& t) { return t.name == name && t.role == ckpt::Role::master; });
}

bool holds_averages(const ckpt::Checkpoint& checkpoint) {
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [](const ckpt::Tensor& t) { return t.role == ckpt::Role::ema; });
}

/// Error(kCheckpoint): one of the tensors is not there, or is another one.
void require_tensors(const std::vector<ckpt::Tensor>& wanted, const ckpt::Checkpoint& checkpoint) {
  for (const ckpt::Tensor& t : wanted) {
    if (t.role == ckpt::Role::ema && !holds_averages(checkpoint)) continue;
    const auto& have = checkpoint.tensors();
    const auto it = std::find_if(have.begin(), have.end(),
                                 [&](const ckpt::Tensor& h) { return h.name == t.name && h.role == t.role; });
    if (it == have.end() && t.role != ckpt::Role::master && has_master(checkpoint, t.name))
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("{} has no {} of `{}`: another optimizer.type computed it; use that type",
                              checkpoint.path(), ckpt::name_of(t.role), t.name));
    if (it != have.end() && it->dtype != t.dtype && t.role == ckpt::Role::master)
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format("{} has the weights `{}` in {}, this job in {}: optimizer.master_weights is fixed "
                      "for the life of a run",
                      checkpoint.path(), t.name, name_of(it->dtype), name_of(t.dtype)));
    if (it != have.end() && it->dtype != t.dtype)
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format(
              "{} has {} of `{}` in {}, this job in {}: optimizer.moments is fixed for the life of a run",
              checkpoint.path(), ckpt::name_of(t.role), t.name, name_of(it->dtype), name_of(t.dtype)));
    if (it != have.end() && it->shape != t.shape &&
        (t.role == ckpt::Role::first_scales || t.role == ckpt::Role::second_scales))
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format("{} has other blocks of moments of `{}`: keep the run's checkpoint.chunk_mib and "
                      "parallelism.widest_tensor",
                      checkpoint.path(), t.name));
    if (it == have.end())
      throw Error(ErrorCode::kCheckpoint, fmt::format("{} has no tensor `{}` ({}): it is a checkpoint of another model",
                                                      checkpoint.path(), t.name, ckpt::name_of(t.role)));
    if (it->shape != t.shape)
      throw Error(ErrorCode::kCheckpoint, fmt::format("{}: tensor `{}` has shape [{}], this model needs [{}]", checkpoint.path(),
                                                      t.name, fmt::join(it->shape, ", "), fmt::join(t.shape, ", ")));
  }
}

}  // namespace

void load_weights(const ParamTable& table, ckpt::Checkpoint& checkpoint, const RankState& state) {
  std::vector<ckpt::Tensor> wanted = checkpoint_tensors(table);
  std::erase_if(wanted, [](const ckpt::Tensor& t) { return t.role != ckpt::Role::master; });
  require_tensors(wanted, checkpoint);
  LoadProgress progress(state);
  make_weights(state, weights_to_make(state, true), RoomOf::weights_alone,
               [&](std::span<const WeightBand> bands) {
                 read_bands(table, checkpoint, bands, [](uint64_t) {});
                 for (const WeightBand& band : bands) progress.add(*band.chunk, band.box);
               });
}

void load_weights(const ParamTable& table, ckpt::TensorFolder& folder, const RankState& state) {
  StoredModel model(table, folder, "model.init.from");
  LoadProgress progress(state);
  make_weights(state, weights_to_make(state, true), RoomOf::weights_alone,
               [&](std::span<const WeightBand> bands) {
                 read_bands(table, model, bands);
                 for (const WeightBand& band : bands) progress.add(*band.chunk, band.box);
               });
}

void load_state(const ParamTable& table, ckpt::Checkpoint& checkpoint, const RankState& state) {
  require_tensors(checkpoint_tensors(table), checkpoint);
  const bool has_averages = holds_averages(checkpoint);
  LoadProgress progress(state);
  Upload upload(state.staging);
  std::vector<ckpt::BoxRead> reads;
  const auto read = [&] {
    checkpoint.read_all(reads, [&](uint64_t bytes) { progress.add(bytes); });
    reads.clear();
    upload.flush();
  };
  const auto add = [&](const ShardedParams::StateChunk& c) {
    const std::string& name = table.params[size_t(c.param)].layout.name;
    for (size_t i = 0; i < c.rows.size(); ++i) {
      const parallel::StateRow& row = c.rows[i];
      if (!row.saved || row.in_place || (row.role == ckpt::Role::ema && !has_averages)) continue;
      const size_t size = size_of(row.dtype);
      in_bands(c.box_of(row), upload.most(), size, [&](const parallel::Box& band, int64_t offset) {
        const size_t bytes = size_t(band.count()) * size;
        if (!upload.fits(bytes)) read();
        reads.push_back(
            {name, row.role, band, upload.room(c.states[i] + size_t(offset) * size, bytes), !c.saved_here});
      });
    }
  };
  state.params.with_state(StateAccess::write, [&](std::span<const ShardedParams::StateChunk> chunks) {
    for (const ShardedParams::StateChunk& c : chunks) add(c);
    read();
  });
  upload.finish();
  make_weights(state, weights_to_make(state, false), RoomOf::training,
               [&](std::span<const WeightBand> bands) {
                 read_bands(table, checkpoint, bands, [&](uint64_t bytes) { progress.add(bytes); });
               });
  if (!has_averages) state.params.begin_averages();
}

std::vector<ckpt::ChunkData> state_chunk_data(const ParamTable& table, const RankState& state) {
  std::vector<ckpt::ChunkData> data;
  for (const ShardedParams::StateChunk& c : state.params.state_chunks()) {
    if (!c.saved_here) continue;
    int tensor = table.params[size_t(c.param)].first_tensor;
    for (size_t i = 0; i < c.rows.size(); ++i)
      if (c.rows[i].saved)
        data.push_back({.tensor = tensor++,
                        .box = c.box_of(c.rows[i]),
                        .data = c.states[i],
                        .rows_apart = bool(state.params.rows_apart(c.states[i]))});
  }
  return data;
}

namespace {

/// The gradients of this rank's chunks times `factor`, copied into `storage`; `tensors` is
/// gradient_tensors(table).
std::vector<ckpt::ChunkData> gradient_chunk_data(const RankState& state, double factor,
                                                 std::vector<std::vector<float>>& storage) {
  std::vector<ckpt::ChunkData> data;
  for (const ShardedParams::StateChunk& c : state.params.state_chunks()) {
    if (!c.saved_here) continue;
    std::vector<float> values(static_cast<size_t>(c.box.count()));
    for (int64_t r = 0; r < c.box.rows(); ++r)
      state.backend.copy_to_host(state.stream, values.data() + r * c.box.cols(), c.gradient + r * c.gradient_stride,
                                 size_t(c.box.cols()) * sizeof(float));
    storage.push_back(std::move(values));
    data.push_back({c.param, c.box, storage.back().data()});
  }
  state.stream.synchronize();
  for (std::vector<float>& values : storage)
    for (float& value : values) value = float(value * factor);
  return data;
}

}  // namespace

void save_gradients(parallel::Communicator& world, FileSystem& fs, const std::string& directory,
                    const ckpt::StateInfo& description, const ParamTable& table, const RankState& state,
                    double factor) {
  const std::vector<ckpt::Tensor> tensors = gradient_tensors(table);
  if (world.rank() == 0) ckpt::prepare_saving(fs, directory, description);
  parallel::barrier(world, 8);
  std::vector<std::vector<float>> storage;
  const auto chunks = gradient_chunk_data(state, factor, storage);
  const std::string text = ckpt::write_shard(fs, ckpt::saving_directory(directory, description),
                                             ckpt::shard_file_name(world.rank(), world.size()), description, tensors, chunks)
                               .to_json();
  const size_t own = text.size();
  std::vector<size_t> bytes(size_t(world.size()));
  parallel::all_gather(world, &own, bytes.data(), sizeof own, 9);
  size_t total = 0;
  for (const size_t b : bytes) total += b;
  std::string all(total, ' ');
  parallel::all_gather_v(world, text.data(), all.data(), bytes, 9);
  if (world.rank() != 0) return;
  std::vector<ckpt::ShardReceipt> receipts;
  for (size_t r = 0, from = 0; r < bytes.size(); from += bytes[r++])
    receipts.push_back(ckpt::ShardReceipt::from_json(all.substr(from, bytes[r])));
  ckpt::publish(fs, directory, description, tensors, receipts);
}

}  // namespace trainctl
