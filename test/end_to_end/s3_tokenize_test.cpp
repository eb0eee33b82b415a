// Goal: `data tokenize` of objects of an S3 store, killed (kill -9) at random moments and repeated, makes the
// bytes that it makes of the same files; its cache keeps its bound and leaves nothing behind; no file has a
// credential; what the store refuses is one sentence.
// Method: the real program with moto's server on loopback, which the test ends and starts again.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "ckpt/s3_client.h"
#include "test/end_to_end/killed_tokenize.h"
#include "test/end_to_end/program.h"
#include "test/runtime/sources/object_rig.h"
#include "test/support/s3_server.h"
#include "test/support/seed.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

constexpr const char* kBucket = "texts";

struct TokenizeBench {
  TemporaryFolder folder;
  S3Server server{folder.path()};
  const std::string golden = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/";
  std::vector<std::string> files;

  void put(const std::string& name, const std::string& bytes) {
    ckpt::S3Options options{.endpoint = server.endpoint(),
                            .bucket = kBucket,
                            .credentials = {S3Server::kKey, S3Server::kSecret, ""}};
    ckpt::s3_client(options, real_clock())->put("c/" + name, std::as_bytes(std::span(bytes)));
  }
  void add(const std::string& name, const std::string& bytes) {
    write_file(folder / name, bytes);
    files.push_back(name);
    put(name, bytes);
  }
  /// A pattern without a scanner of its own: slow enough to be killed.
  std::vector<std::string> command(const std::vector<std::string>& inputs, const std::string& out) const {
    std::vector<std::string> words{"data", "tokenize", "--out", out + "/t", "--split", "9:1"};
    words.insert(words.end(), {"--tokenizer", golden + "tokenizers/cased.json"});
    words.insert(words.end(), inputs.begin(), inputs.end());
    return words;
  }
  std::vector<std::string> of_objects(const std::string& out,
                                      const std::string& input = "s3://texts/c/") const {
    std::vector<std::string> words = command({input}, out);
    words.insert(words.end(), {"--cache", "1MiB", "--cache-dir", folder / "cache"});
    return words;
  }
  Outcome run(const std::vector<std::string>& words) const {
    return run_trainctl(folder.path(), words, 120, server.access());
  }
  /// The token files; a sidecar names its inputs.
  std::vector<std::string> token_files(const std::string& out) const {
    std::vector<std::string> names;
    for (const std::string& name : real_file_system().list(folder / out))
      if (!name.ends_with(".json")) names.push_back(name);
    return names;
  }
  void require_no_credentials() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
      if (!entry.is_regular_file() || entry.path().string().find("moto") != std::string::npos) continue;
      const std::string text = read_file(entry.path());
      CHECK(text.find(S3Server::kSecret) == text.npos);
      CHECK(text.find("AWS4-HMAC-SHA256") == text.npos);
    }
  }
};

}  // namespace

TEST_CASE("data tokenize of objects, killed at random moments, makes the tokens of the files", "[.][s3]") {
  const uint64_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  TokenizeBench bench;
  bench.server.make_bucket(kBucket);
  real_file_system().make_directory(bench.folder / "cache");
  bench.add("a.jsonl", seeded_lines(7'000'000, 1));
  bench.add("b.parquet", read_file(bench.golden + "parquet/list-1.parquet"));
  bench.add("c.txt", seeded_lines(2'000'000, 2));
  bench.put("_SUCCESS", "");
  const double start_s = real_clock().monotonic_s();
  const Outcome whole = bench.run(bench.command(bench.files, "whole"));
  const double longest_s = std::min(0.25, (real_clock().monotonic_s() - start_s) / 2);
  INFO(whole.err);
  REQUIRE(whole.status == 0);
  REQUIRE(bench.token_files("whole").size() == 4);

  const std::string progress = bench.folder / "again/t.partial/progress.json";
  int kills = 0;
  uint64_t on_disk = 0;
  for (int starts = 0; kills < 6; ++starts) {
    REQUIRE(starts < 40);
    std::vector<std::string> words = bench.of_objects("again");
    words.insert(words.begin(), trainctl_path());
    Child child(words, bench.folder.path(), bench.server.access());
    const auto look = [&] { on_disk = std::max(on_disk, cache_on_disk(child.pid()).size); };
    // Every third kill at any moment, even before the first record.
    const bool any_moment = starts % 3 == 0, had_begun = std::filesystem::exists(progress);
    kills += kill_some_time(child, progress, any_moment, longest_s, random, look);
    const Outcome end = child.wait(60);
    INFO(end.err);
    REQUIRE((end.status == 0 || end.status == 128 + SIGKILL));
    if (had_begun && (end.status == 0 || !any_moment)) CHECK_THAT(end.err, Contains("going on in again/t.partial: "));
    CHECK(std::filesystem::is_empty(bench.folder / "cache"));
    if (!is_tokenized(bench.folder / "again/t")) {
      REQUIRE(end.status != 0);
      bench.require_no_credentials();
      continue;
    }
    for (const std::string& name : bench.token_files("whole"))
      CHECK(read_file(bench.folder / ("again/" + name)) == read_file(bench.folder / ("whole/" + name)));
    std::filesystem::remove_all(bench.folder / "again");
  }
  CHECK(on_disk > 0);
  CHECK(on_disk <= 1 << 20);

  const Outcome last = bench.run(bench.of_objects("again"));
  INFO(last.err);
  REQUIRE(last.status == 0);
  CHECK(bench.token_files("again") == bench.token_files("whole"));
  for (const std::string& name : bench.token_files("whole"))
    CHECK(read_file(bench.folder / ("again/" + name)) == read_file(bench.folder / ("whole/" + name)));
  CHECK_THAT(last.err, Contains("s3://texts/c/_SUCCESS"));
  bench.require_no_credentials();
}

TEST_CASE("data tokenize: what an object store refuses is one sentence, and nothing is left", "[.][s3]") {
  TokenizeBench bench;
  bench.server.make_bucket(kBucket);
  real_file_system().make_directory(bench.folder / "cache");
  bench.add("a.jsonl", seeded_lines(10'000, 1));
  const auto refusal = [&](const std::string& input, int status,
                           const std::vector<std::string>& environment) {
    const Outcome o = run_trainctl(bench.folder.path(), bench.of_objects("out", input), 200, environment);
    INFO(o.err);
    CHECK(o.status == status);
    CHECK(o.err.find(S3Server::kSecret) == o.err.npos);
    CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
    CHECK_FALSE(std::filesystem::exists(bench.folder / "out"));
    return o.err;
  };
  const auto access = bench.server.access();
  CHECK_THAT(refusal("s3://absent/c/a.jsonl", 6, access),
             Contains("there is no bucket absent at " + bench.server.endpoint()));
  CHECK_THAT(refusal("s3://absent/c/", 6, access), Contains("there is no bucket absent at"));
  CHECK_THAT(refusal("s3://texts/c/b.jsonl", 6, access), Contains("there is no object s3://texts/c/b.jsonl"));
  CHECK_THAT(refusal("s3://texts/c", 2, access), Contains("give s3://texts/c/ to read them"));
  CHECK_THAT(refusal("s3://texts/c/", 2,
                     {"AWS_ENDPOINT_URL=" + bench.server.endpoint(), "AWS_ACCESS_KEY_ID=",
                      "AWS_SECRET_ACCESS_KEY=", "AWS_SHARED_CREDENTIALS_FILE=" + bench.folder / "none"}),
             Contains("there are no credentials") && Contains("set AWS_ACCESS_KEY_ID"));
  const S3Server strict(bench.folder.path(), {"INITIAL_NO_AUTH_ACTION_COUNT=0"});
  CHECK_THAT(refusal("s3://texts/c/", 5, strict.access()),
             Contains("403") && Contains("check the credentials"));
  CHECK_THAT(refusal("s3://texts/c/a.jsonl", 5, strict.access()),
             Contains("403") && Contains("check the credentials"));
}
