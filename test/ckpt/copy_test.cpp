// Goal: a checkpoint is copied between any two kinds of store with the same bytes, or not published at all.
// Method: every pair of stores; damaged sources; every effect of the target fails; copies that are there
// already.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/store_rig.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

std::unique_ptr<ckpt::Checkpoint> open(ckpt::Store& store, int64_t step) {
  auto files = store.open(step);
  return files ? ckpt::Checkpoint::open(std::move(files)) : nullptr;
}

std::map<std::string, std::string> all_files(ckpt::Store& store, int64_t step) {
  std::map<std::string, std::string> result;
  const auto files = store.open(step);
  REQUIRE(files);
  for (const std::string& name : files->names()) result[name] = files->read_text(name);
  return result;
}

}  // namespace

TEST_CASE("a checkpoint is copied between any two stores, byte for byte") {
  const PlainState state = make_state(4, 30);
  for (const StoreKind& from : store_kinds())
    for (const StoreKind& to : store_kinds()) {
      INFO(from.name << " to " << to.name);
      const auto source = from.make(), target = to.make();
      save(source->store(), state, 3);
      source->settle();
      const auto checkpoint = open(source->store(), 30);
      const ckpt::CopyReport report = ckpt::copy(*checkpoint, target->store());
      target->settle();
      CHECK((report.files == 3 && !report.was_there && report.chunks > 20));
      CHECK(all_files(target->store(), 30) == all_files(source->store(), 30));
      CHECK(reads_back(*open(target->store(), 30), state));
      CHECK(ckpt::copy(*checkpoint, target->store()).was_there);
      CHECK(target->leftovers().empty());
    }
}

TEST_CASE("a copy that fails publishes nothing, and a later one succeeds") {
  const PlainState state = make_state(4, 30);
  const auto source = store_kinds()[0].make();
  save(source->store(), state, 3);
  const auto checkpoint = open(source->store(), 30);
  for (const StoreKind& kind : store_kinds()) {
    int failed = 0;
    for (uint64_t n = 0;; ++n) {
      const auto target = kind.make();
      save(target->store(), make_state(4, 20), 1);
      const size_t before = target->effects().size();
      target->fail_at(n, Fault::io_error_from_here);
      INFO(kind.name << " effect " << n);
      bool copied = false;
      try {
        ckpt::copy(*checkpoint, target->store());
        copied = true;
      } catch (const Error&) {
        ++failed;
      }
      const bool is_beyond = target->effects().size() <= before + n;
      target->repair();
      target->settle();
      const auto there = open(target->store(), 30);
      if (copied) REQUIRE(there);
      if (there) REQUIRE((reads_back(*there, state) && ckpt::verify(*there).findings.empty()));
      REQUIRE(reads_back(*open(target->store(), 20), make_state(4, 20)));
      ckpt::copy(*checkpoint, target->store());
      REQUIRE(reads_back(*open(target->store(), 30), state));
      if (is_beyond) break;
    }
    CHECK(failed > 5);
  }
}

TEST_CASE("damage is not copied, and what is out of date does not replace") {
  PowerLossFileSystem fs;
  const auto source = ckpt::directory_store(fs, "/a"), target = ckpt::directory_store(fs, "/b");
  PlainState state = make_state(4, 30);
  save(*source, state, 2);
  const std::string shard = "/a/step-00000030/shard-00001-of-00002.safetensors";
  const auto checkpoint = open(*source, 30);
  fs.poke(shard, [&](std::string& text) { text[text.size() - 1] ^= 1; });
  CHECK_THROWS_WITH(ckpt::copy(*checkpoint, *target),
                    Catch::Contains("shard-00001-of-00002.safetensors is damaged"));
  CHECK(target->list().empty());
  fs.poke(shard, [&](std::string& text) { text[text.size() - 1] ^= 1; });
  state.info.epoch = 9;
  save(*target, state, 2);
  CHECK_THROWS_WITH(ckpt::copy(*checkpoint, *target), Catch::Contains("is out of date"));
  CHECK(open(*target, 30)->state().epoch == 9);
}
