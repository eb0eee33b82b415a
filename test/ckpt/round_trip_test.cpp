// Goal: what one set of writers saved, any reader gets back exactly, and the state's identity does not depend on who wrote what.
// Method: one state in plain arrays, written as 1, 2, 3 and 8 shards in several random ownerships; root hashes compared, whole
// tensors and random boxes compared byte for byte with the arrays. Seeds are in the test's messages.
#include <catch2/catch.hpp>
#include <cstring>

#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("any writers, any reader") {
  const PlainState state = make_state(1, 100);
  std::string root;
  for (const int shards : {1, 2, 3, 8})
    for (uint64_t seed = 0; seed < 4; ++seed) {
      INFO("shards " << shards << ", seed " << seed);
      PowerLossFileSystem fs;
      const std::string written = save(fs, "/run/ckpt", state, shards, seed);
      if (root.empty()) root = written;
      CHECK(written == root);
      const auto checkpoint = ckpt::Checkpoint::open(fs, "/run/ckpt/step-00000100");
      CHECK(checkpoint->root_hash() == root);
      CHECK(checkpoint->state().extra_json == state.info.extra_json);
      CHECK(checkpoint->state().resolved_spec_json == state.info.resolved_spec_json);
      CHECK(checkpoint->state().run_id == state.info.run_id);
      CHECK(checkpoint->tensors() == state.tensors);
      CHECK(reads_back(*checkpoint, state));
      std::mt19937_64 random(seed);
      for (int i = 0; i < 200; ++i) {
        const size_t t = random() % state.tensors.size();
        const parallel::Box all = whole(state.tensors[t]);
        parallel::Box box{int64_t(random() % uint64_t(all.row_end)), 0, int64_t(random() % uint64_t(all.col_end)), 0};
        box.row_end = box.row_begin + 1 + int64_t(random() % uint64_t(all.row_end - box.row_begin));
        box.col_end = box.col_begin + 1 + int64_t(random() % uint64_t(all.col_end - box.col_begin));
        std::vector<std::byte> out(size_t(box.count()) * 4);
        checkpoint->read(state.tensors[t].name, state.tensors[t].role, box, out.data());
        REQUIRE(out == cut_out(state, t, box));
      }
    }
  PlainState other = state;
  other.values[5][17] ^= std::byte{1};
  PowerLossFileSystem fs;
  CHECK(save(fs, "/run/ckpt", other, 2) != root);
}
