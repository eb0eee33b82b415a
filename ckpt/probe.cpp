// A trial save: the whole sequence of a checkpoint with 64 bytes of state, before a run depends on it.
#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "ckpt/folders.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

constexpr std::string_view kProbe = ".probe-";

void remove_quietly(FileSystem& fs, const std::string& path) {
  try {
    fs.remove_tree(path);
  } catch (const std::exception&) {
    // The first error is the one to report.
  }
}

void save_and_read_back(FileSystem& fs, const std::string& dir) {
  const StateInfo state{.run_id = "probe", .step = 1};
  const std::vector<Tensor> tensors{{"probe", Role::master, DType::f32, {16}}};
  std::array<float, 16> values{}, back{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
  const ChunkData chunk{0, {0, 16, 0, 1}, values.data()};
  prepare_saving(fs, dir, state);
  const ShardReceipt receipt =
      write_shard(fs, saving_directory(dir, state), shard_file_name(0, 1), state, tensors, {&chunk, 1});
  publish(fs, dir, state, tensors, {&receipt, 1});
  Checkpoint::open(fs, step_directory(dir, 1))->read("probe", Role::master, chunk.box, back.data());
  if (back != values) throw Error(ErrorCode::kIo, fmt::format("{} does not return what was written to it", dir));
  move_to_trash(fs, dir, base_name(step_directory(dir, 1)));
}

}  // namespace

void try_saving(FileSystem& fs, const std::string& dir) {
  // Of a trial whose process was killed, too: a folder of checkpoints has one supervisor.
  if (fs.is_directory(dir))
    for (const std::string& name : fs.list(dir))
      if (name.starts_with(kProbe)) remove_quietly(fs, dir + "/" + name);
  const std::string probe = fmt::format("{}/{}{}", dir, kProbe, ::getpid());
  try {
    save_and_read_back(fs, probe);
  } catch (...) {
    remove_quietly(fs, probe);
    throw;
  }
  fs.remove_tree(probe);
}

}  // namespace trainctl::ckpt
