// Goal: a file that most spikes read is named if few other steps read it, and no file is named by chance.
// Method: made-up histories: a corrupt shard among many, one that every step reads, spikes without a cause.
#include <fmt/format.h>
#include <catch2/catch.hpp>
#include <random>

#include "runtime/observe/spike_data.h"

using namespace trainctl;

namespace {

using Shards = std::set<DataShard>;

DataShard web(int shard) { return {"web", fmt::format("/data/web-{:03}.bin", shard)}; }

/// A step that reads books in any case, and some shards of 100 of the web.
Shards step_of(std::mt19937_64& random, int shards = 3) {
  Shards read{{"books", "/data/books.bin"}};
  for (int i = 0; i < shards; ++i) read.insert(web(int(random() % 100)));
  return read;
}

}  // namespace

TEST_CASE("a shard that most spikes read and few steps do is named", "[loss]") {
  std::mt19937_64 random(1);
  std::vector<Shards> ordinary, spikes;
  for (int i = 0; i < 256; ++i) ordinary.push_back(step_of(random));
  for (int i = 0; i < 20; ++i) {
    spikes.push_back(step_of(random));
    if (i < 18) spikes.back().insert(web(31));
    if (i >= 18) spikes.back().erase(web(31));
  }
  const auto blamed = blamed_shard(spikes, ordinary);
  REQUIRE(blamed);
  CHECK(blamed->shard == web(31));
  CHECK(blamed->with == 18);
  CHECK(blamed->spikes == 20);
  CHECK(blamed->text().starts_with("18 of 20 spikes read source web, web-031.bin, which "));
  CHECK(blamed->usual < 0.1);
}

TEST_CASE("a source that every step reads is not to blame", "[loss]") {
  std::mt19937_64 random(2);
  std::vector<Shards> ordinary, spikes;
  for (int i = 0; i < 256; ++i) ordinary.push_back(step_of(random));
  for (int i = 0; i < 20; ++i) spikes.push_back(step_of(random));
  CHECK(!blamed_shard(spikes, ordinary));
}

TEST_CASE("spikes without a common cause blame nothing, whatever the seed", "[loss]") {
  int blamed = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Shards> ordinary, spikes;
    for (int i = 0; i < 256; ++i) ordinary.push_back(step_of(random));
    for (int i = 0; i < 5; ++i) spikes.push_back(step_of(random));
    blamed += blamed_shard(spikes, ordinary).has_value();
  }
  CHECK(blamed == 0);
}

TEST_CASE("one spike blames nothing, and half of them are too few", "[loss]") {
  std::mt19937_64 random(3);
  std::vector<Shards> ordinary;
  for (int i = 0; i < 256; ++i) ordinary.push_back(step_of(random));
  CHECK(!blamed_shard({{web(5)}}, ordinary));
  CHECK(!blamed_shard({{web(5)}, {web(5)}, {web(6)}, {web(7)}}, ordinary));
  CHECK(blamed_shard({{web(5)}, {web(5)}, {web(5)}, {web(7)}}, ordinary));
  CHECK(!blamed_shard({}, {}));
}
