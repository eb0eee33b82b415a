// Goal: what is read through the cache, by one thread or several, is what the object has, whatever fails for
// a while; the cache never has more on disk than it may; each block is fetched once when objects are read in
// order; a failure that stays is one sentence, and the next read tries again.
// Method: a store in memory that fails at every request in every way; caches of a few small blocks on a real
// disk.
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "runtime/sources/object_cache.h"
#include "test/runtime/sources/object_rig.h"
#include "test/support/child.h"
#include "test/support/error_text.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/seed.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

constexpr uint64_t kBlock = 4096;

std::string random_bytes(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(count, 0);
  for (char& byte : bytes) byte = char(random());
  return bytes;
}

/// Objects of these sizes in a store, and a cache of `slots` blocks.
struct CacheBench {
  explicit CacheBench(const std::vector<size_t>& sizes) {
    for (size_t i = 0; i < sizes.size(); ++i)
      add("b/" + std::to_string(i) + ".txt", random_bytes(sizes[i], unsigned(i)));
  }
  void add(const std::string& path, const std::string& bytes) {
    store.poke(path, bytes);
    contents.push_back(bytes);
    const size_t slash = path.find('/');
    stored.push_back({.url = "s3://" + path,
                      .bucket = path.substr(0, slash),
                      .key = path.substr(slash + 1),
                      .bytes = bytes.size(),
                      .version = store.version_of(path)});
  }
  std::unique_ptr<ObjectCache> cache(size_t slots, size_t connections = 3) {
    return std::make_unique<ObjectCache>(real_file_system(), store.access(),
                                         CacheOptions{.bytes = slots * kBlock + kBlock / 2,
                                                      .folder = folder.path(),
                                                      .block_bytes = kBlock,
                                                      .connections = connections},
                                         stored);
  }
  std::string read(ObjectCache& cache, size_t object, uint64_t offset, size_t bytes) const {
    std::string out(bytes, 0);
    cache.read(object, offset, std::as_writable_bytes(std::span(out)));
    return out;
  }
  /// In pieces of 1000 bytes, from the first object to the last.
  void read_in_order(ObjectCache& cache) const {
    for (size_t i = 0; i < contents.size(); ++i)
      for (size_t at = 0; at < contents[i].size(); at += 1000) {
        const size_t n = std::min<size_t>(1000, contents[i].size() - at);
        REQUIRE(read(cache, i, at, n) == contents[i].substr(at, n));
      }
  }

  SharedObjects store;
  std::vector<std::string> contents;
  std::vector<StoredObject> stored;
  const TemporaryFolder folder;
};

uint64_t blocks_in(size_t bytes) { return (bytes + kBlock - 1) / kBlock; }

}  // namespace

TEST_CASE("cache: any bytes of any object, and never more on disk than it may have", "[sources]") {
  const uint64_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  const std::vector<size_t> sizes{0, 1, kBlock - 1, kBlock, kBlock + 1, 10 * kBlock + 7, 3 * kBlock};
  for (const size_t slots : {1, 2, 3, 7, 100}) {
    CAPTURE(slots);
    CacheBench bench(sizes);
    const auto cache = bench.cache(slots);
    CHECK(cache_on_disk().files == 0);
    uint64_t largest = 0;
    for (int i = 0; i < 400; ++i) {
      const size_t object = random() % sizes.size();
      const size_t offset = random() % (sizes[object] + 1), bytes = random() % (sizes[object] - offset + 1);
      REQUIRE(bench.read(*cache, object, offset, bytes) == bench.contents[object].substr(offset, bytes));
      largest = std::max({largest, cache_on_disk().size, cache_on_disk().stored});
    }
    CHECK(cache_on_disk().files == 1);
    CHECK(largest > 0);
    CHECK(largest <= slots * kBlock);
    CHECK(std::filesystem::is_empty(bench.folder.path()));  // no name that a killed process would leave
  }
  CHECK(cache_on_disk().files == 0);
}

TEST_CASE("cache: several threads read what is there", "[sources]") {
  CacheBench bench({5 * kBlock, 9 * kBlock + 1, 2 * kBlock});
  for (const size_t slots : {1, 2, 5}) {
    CAPTURE(slots);
    const auto cache = bench.cache(slots);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> readers;
    for (unsigned reader = 0; reader < 4; ++reader)
      readers.emplace_back([&, reader] {
        std::mt19937 random(reader);
        for (int i = 0; i < 200; ++i) {
          const size_t object = random() % 3, size = bench.contents[object].size();
          const size_t offset = random() % size, bytes = std::min<size_t>(random() % 9000, size - offset);
          wrong += bench.read(*cache, object, offset, bytes) != bench.contents[object].substr(offset, bytes);
        }
      });
    for (std::thread& reader : readers) reader.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("cache: objects read in order are fetched once, ahead of the reader", "[sources]") {
  const std::vector<size_t> sizes{20 * kBlock + 5, 1, 0, 7 * kBlock};
  uint64_t blocks = 0;
  for (const size_t size : sizes) blocks += blocks_in(size);
  for (const size_t slots : {2, 5, 16, 100}) {
    CAPTURE(slots);
    CacheBench bench(sizes);
    const uint64_t before = bench.store.requests();
    const auto cache = bench.cache(slots);
    bench.read_in_order(*cache);
    CHECK(bench.store.requests() - before == blocks);
    CHECK(bench.store.bytes_got() == 27 * kBlock + 6);
    // What fits is not fetched again.
    if (slots == 100) bench.read_in_order(*cache);
    CHECK(bench.store.requests() - before == blocks);
  }
  // The reader of one byte has the blocks after it fetched, up to half of the cache.
  CacheBench bench(sizes);
  const auto cache = bench.cache(8);
  bench.read(*cache, 0, 0, 1);
  CHECK(eventually(600, [&] { return bench.store.bytes_got() >= 5 * kBlock; }));
  CHECK(bench.store.bytes_got() == 5 * kBlock);
}

TEST_CASE("cache: of a large table little is fetched that is not read", "[sources]") {
  CacheBench bench({});
  bench.add("b/t.parquet", random_bytes(100 * kBlock, 1));
  const auto cache = bench.cache(50, 1);
  bench.read(*cache, 0, 100 * kBlock - 8, 8);  // its end
  bench.read(*cache, 0, 98 * kBlock, 100);     // its footer
  for (uint64_t group = 0; group < 90; group += 30)
    for (uint64_t block = group; block < group + 5; ++block) bench.read(*cache, 0, block * kBlock, kBlock);
  // Each of the three runs of 5 blocks, with at most 4 after it.
  CHECK(bench.store.bytes_got() >= 17 * kBlock);
  CHECK(bench.store.bytes_got() <= (17 + 3 * 4) * kBlock);
}

TEST_CASE("cache: whatever passes at any request, the bytes are those of the object", "[sources]") {
  const std::vector<size_t> sizes{3 * kBlock + 100, kBlock};
  for (const ObjectFault fault : kPassingFaults)
    for (uint64_t at = 0; at < 5; ++at)
      for (const uint64_t count : {1, 3}) {
        CAPTURE(int(fault), at, count);
        CacheBench bench(sizes);
        bench.store.fail_at(at, fault, count);
        const auto cache = bench.cache(4, 2);
        bench.read_in_order(*cache);
      }
}

TEST_CASE("cache: what does not pass is said in one sentence, and the next read tries again", "[sources]") {
  CacheBench bench({2 * kBlock, kBlock});
  const auto cache = bench.cache(4, 1);
  const auto message = [&](ErrorCode code) {
    return error_text(code, [&] { bench.read(*cache, 0, kBlock, 10); });
  };
  bench.store.fail_at(0, ObjectFault::slow_down, 1000000);
  CHECK_THAT(message(ErrorCode::kIo), Contains("s3://b/0.txt cannot be read: ") && Contains(" times in ") &&
                                          Contains("503") &&
                                          Contains("check AWS_ENDPOINT_URL and the network"));
  bench.store.fail_at(0, ObjectFault::refused, 1000000);
  CHECK_THAT(message(ErrorCode::kIo), Contains("https://store.test refuses to read s3://b/0.txt: ") &&
                                          Contains("403") && Contains("check the credentials"));
  bench.store.repair();
  CHECK(bench.read(*cache, 0, kBlock, 10) == bench.contents[0].substr(kBlock, 10));
  // Also of a block that was fetched ahead.
  const auto other = bench.cache(4, 1);
  bench.store.poke("b/0.txt", random_bytes(2 * kBlock, 99));
  CHECK_THAT(error_text(ErrorCode::kIo, [&] { bench.read(*other, 0, 0, 10); }),
             Contains("s3://b/0.txt is not the object any more that it was when the work began"));
  bench.store.remove("b/0.txt");
  CHECK_THAT(error_text(ErrorCode::kIo, [&] { bench.read(*other, 0, 0, 10); }),
             Contains("s3://b/0.txt is gone from"));
  bench.store.poke("b/0.txt", bench.contents[0]);
  CHECK(bench.read(*other, 0, 5, kBlock + 10) == bench.contents[0].substr(5, kBlock + 10));
}

TEST_CASE("cache: a failure ahead of the reader is no failure of what is read before it", "[sources]") {
  CacheBench bench({kBlock, kBlock});
  const auto cache = bench.cache(4, 1);
  bench.store.poke("b/1.txt", "other");
  CHECK(bench.read(*cache, 0, 0, kBlock) == bench.contents[0]);
  CHECK_THAT(error_text(ErrorCode::kIo, [&] { bench.read(*cache, 1, 0, 1); }),
             Contains("s3://b/1.txt is not the object"));
  CHECK(bench.read(*cache, 0, 0, kBlock) == bench.contents[0]);
}

TEST_CASE("cache: a disk that is too small, or no folder, is said before anything is fetched", "[sources]") {
  CacheBench bench({10 * kBlock});
  ObjectCache cache(real_file_system(), bench.store.access(), {.folder = bench.folder / "none"},
                    bench.stored);
  CHECK_THAT(error_text(ErrorCode::kIo, [&] { bench.read(cache, 0, 0, 1); }),
             Contains(bench.folder / "none"));

  StoredObject huge = bench.stored[0];
  huge.bytes = uint64_t(1) << 60;
  const CacheOptions all{.bytes = huge.bytes, .folder = bench.folder.path()};
  ObjectCache too_large(real_file_system(), bench.store.access(), all, {huge});
  CHECK_THAT(error_text(ErrorCode::kUsage, [&] { bench.read(too_large, 0, 0, 1); }),
             Contains("does not fit " + bench.folder.path() + ", where") && Contains("--cache-dir"));
  CHECK(std::filesystem::is_empty(bench.folder.path()));
  CHECK(bench.store.bytes_got() == 0);
}

TEST_CASE("cache: a disk that becomes full is said, and the next read tries again", "[sources]") {
  CacheBench bench({10 * kBlock});
  PowerLossFileSystem fs;
  fs.make_directory("/c");
  fs.fail_at(2, Fault::no_space_from_here);  // after the file is made and has lost its name
  ObjectCache cache(fs, bench.store.access(), {.folder = "/c", .block_bytes = kBlock, .connections = 2},
                    bench.stored);
  CHECK_THAT(error_text(ErrorCode::kIo, [&] { bench.read(cache, 0, 0, 1); }),
             Contains("the cache of objects: ") && Contains("--cache-dir"));
  fs.repair();
  CHECK(bench.read(cache, 0, 0, 10 * kBlock) == bench.contents[0]);
  CHECK(fs.list("/c").empty());
}
