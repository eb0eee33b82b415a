// Goal: the bytes of a checkpoint and its root hash stay those of version 1 of the format, so that older
// checkpoints load. Method: golden hashes of every file of one fixed state, taken from the program before
// stores existed. A change of these numbers is a change of the format: it needs a new version and a reader of
// the old one.
#include <catch2/catch.hpp>

#include "runtime/base/hash.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("the bytes of version 1") {
  PlainState state = make_state(1, 12, 40);
  for (size_t t = 0; t < state.values.size(); ++t)  // no library's random numbers
    for (size_t i = 0; i < state.values[t].size() / 4; ++i) {
      const float value = float(t) - float(i) / 8;
      std::memcpy(state.values[t].data() + i * 4, &value, 4);
    }
  PowerLossFileSystem fs;
  std::vector<ckpt::ShardReceipt> receipts;
  ckpt::prepare_saving(fs, "/ckpt", state.info);
  for (int shard = 0; shard < 2; ++shard) {
    std::vector<ckpt::ChunkData> chunks;
    std::vector<std::vector<std::byte>> held;
    for (size_t t = size_t(shard); t < state.tensors.size(); t += 2)
      for (const auto& box : state.grids[t]) {
        held.push_back(cut_out(state, t, box));
        chunks.push_back({int(t), box, held.back().data()});
      }
    receipts.push_back(ckpt::write_shard(fs, ckpt::saving_directory("/ckpt", state.info),
                                         ckpt::shard_file_name(shard, 2), state.info, state.tensors, chunks));
  }
  CHECK(ckpt::publish(fs, "/ckpt", state.info, state.tensors, receipts) ==
        "45504f556c9af62e93ee5a03c979770187e88d946dffe5c936d7fde2087b8db9");
  std::string hashes;
  for (const auto& [path, content] : fs.files())
    hashes += path.substr(path.rfind('/') + 1) + " " + sha256_hex(content).substr(0, 16) + "\n";
  CHECK(hashes ==
        "COMMIT 16ce03352f6883d1\n"
        "manifest.json 229cfb4e76aba1b3\n"
        "shard-00000-of-00002.safetensors fba3bb3cda8433b9\n"
        "shard-00001-of-00002.safetensors ae166d7bef40b881\n");
}
