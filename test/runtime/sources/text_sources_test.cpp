// Goal: tokens made of objects are, byte for byte, those made of the same files, in every format, through a
// cache of any size, also if the work is interrupted at any block or the store fails on the way; objects that
// changed are refused and nothing is left out for a failure of the store; URLs name what a user expects, in
// one order.
// Method: a store in memory; data::tokenize of its objects and of files.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "data/tokenize/tokenize.h"
#include "runtime/sources/text_sources.h"
#include "test/data/corpus/pack.h"
#include "test/runtime/sources/object_rig.h"
#include "test/support/child.h"
#include "test/support/error_text.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;
using data::test::gzipped;
using data::test::zstd_packed;

namespace {

/// The end of a process, for which no code is prepared.
struct Killed {};

std::string json_lines(int n) {
  std::string text;
  for (int i = 0; i < n; ++i)
    text +=
        "{\"text\":\"" + std::string(size_t(i % 40), 'x') + " document " + std::to_string(i * 7919) + "\"}\n";
  return text;
}

/// The token files of a set; its sidecar names other inputs.
std::map<std::string, std::string> tokens_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const std::string& name : real_file_system().list(folder))
    if (!name.ends_with(".json")) files[name] = read_file(folder + "/" + name);
  return files;
}

/// A corpus in every format, as files and as objects below s3://texts/c/.
struct SourcesBench {
  SourcesBench() {
    const std::string golden = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/parquet/";
    std::string plain;
    for (int i = 0; i < 700; ++i) plain += "line " + std::to_string(i * i) + (i % 9 == 0 ? "\nEND\n" : "\n");
    add("a.jsonl", json_lines(200));
    add("b.jsonl.gz", gzipped(json_lines(300)));
    add("c.json.zst", zstd_packed(json_lines(400)));
    add("d.txt", plain);
    add("e.txt.gz", gzipped(plain));
    for (const char* name :
         {"dictionary-1-zstd.parquet", "list-1.parquet", "many-pages.parquet", "plain-1-gzip.parquet"})
      add(name, read_file(golden + name));
    std::sort(files.begin(), files.end());
    REQUIRE(files.size() >= 7);
  }
  void add(const std::string& name, const std::string& bytes) {
    write_file(folder / name, bytes);
    files.push_back(folder / name);
    store.poke("texts/c/" + name, bytes);
  }

  static data::TokenizeOptions options(const std::string& out) {
    real_file_system().make_directories(out.substr(0, out.rfind('/')));
    return {.out = out,
            .train_share = 9,
            .val_share = 1,
            .separator = "END",
            .threads = 2,
            .block_bytes = 500,
            .record_every_s = 0};
  }
  TextSources sources(const std::vector<std::string>& inputs, uint64_t cache_bytes = 20000) {
    return TextSources(
        real_file_system(), store.access(), inputs,
        {.bytes = cache_bytes, .folder = folder.path(), .block_bytes = 1500, .connections = 2});
  }
  data::TokenizeResult tokenize(data::TokenizeOptions options, TextSources& sources) {
    options.inputs = sources.paths();
    options.input_versions = sources.versions();
    options.input_files = &sources.files();
    return data::tokenize(options);
  }
  std::map<std::string, std::string> expected() {
    data::TokenizeOptions local = options(folder / "local/t");
    local.inputs = files;
    data::tokenize(local);
    return tokens_in(folder / "local");
  }

  SharedObjects store;
  const TemporaryFolder folder{"test", "/dev/shm"};  // syncs often
  std::vector<std::string> files;
};

}  // namespace

TEST_CASE("sources: objects of every format give the tokens of the files, through any cache", "[sources]") {
  SourcesBench bench;
  const auto expected = bench.expected();
  int i = 0;
  for (const uint64_t cache_bytes : {1500, 4000, 20000, 10000000}) {
    CAPTURE(cache_bytes);
    const std::string out = bench.folder / ("s" + std::to_string(i++));
    auto sources = bench.sources({"s3://texts/c/"}, cache_bytes);
    data::TokenizeOptions options = SourcesBench::options(out + "/t");
    uint64_t on_disk = 0;
    options.progress = [&](const auto&) { on_disk = std::max(on_disk, cache_on_disk().size); };
    const auto result = bench.tokenize(options, sources);
    CHECK(tokens_in(out) == expected);
    CHECK(result.parts[0].sidecar.inputs.front() == "s3://texts/c/a.jsonl");
    CHECK((on_disk > 0 && on_disk <= cache_bytes));
  }
}

TEST_CASE("sources: work that is interrupted at any block goes on with the same bytes", "[sources]") {
  SourcesBench bench;
  const auto expected = bench.expected();
  int interrupted = 0;
  bool is_complete = false;
  for (int blocks = 0; !is_complete; blocks += 1 + blocks / 3) {
    CAPTURE(blocks);
    const std::string out = bench.folder / ("k" + std::to_string(blocks));
    data::TokenizeOptions options = SourcesBench::options(out + "/t");
    int done = 0;
    options.progress = [&](const auto& at) {
      if (std::string(at.doing) == "tokenizing" && done++ == blocks) throw Killed();
    };
    try {
      auto sources = bench.sources({"s3://texts/c/"});
      bench.tokenize(options, sources);
      is_complete = true;
    } catch (const Killed&) {
      ++interrupted;
    }
    options.progress = nullptr;
    if (!is_complete) {
      auto again = bench.sources({"s3://texts/c/"});
      const auto result = bench.tokenize(options, again);
      CHECK(result.resumed_at.has_value() == (blocks > 0));  // the first block is recorded after it
    }
    CHECK(tokens_in(out) == expected);
  }
  CHECK(interrupted > 5);
}

TEST_CASE("sources: a tokenizer is trained on objects as on files", "[sources]") {
  SourcesBench bench;
  data::TokenizeOptions options = SourcesBench::options(bench.folder / "local/t");
  options.train_vocab = 300;
  options.train_kind = data::TrainedKind::bpe;
  options.inputs = bench.files;
  data::tokenize(options);
  options.out = bench.folder / "s/t";
  real_file_system().make_directory(bench.folder / "s");
  auto sources = bench.sources({"s3://texts/c/"});
  bench.tokenize(options, sources);
  CHECK(tokens_in(bench.folder / "s") == tokens_in(bench.folder / "local"));
  CHECK(read_file(bench.folder / "s/tokenizer.json") == read_file(bench.folder / "local/tokenizer.json"));
}

TEST_CASE("sources: files and objects side by side; an object can only be read, within its bounds",
          "[sources]") {
  SourcesBench bench;
  auto sources = bench.sources({bench.files[0], "s3://texts/c/d.txt"});
  const auto file = sources.files().open_read(bench.files[0]),
             object = sources.files().open_read("s3://texts/c/d.txt");
  const std::string text = read_file(bench.folder / "d.txt");
  CHECK(file->size() == std::filesystem::file_size(bench.files[0]));
  REQUIRE(object->size() == text.size());
  std::string end(10, 0);
  object->read_at(text.size() - 10, std::as_writable_bytes(std::span(end)));
  CHECK(text.ends_with(end));
  CHECK_THAT(error_text(ErrorCode::kIo,
                        [&] { object->read_at(text.size() - 9, std::as_writable_bytes(std::span(end))); }),
             Contains("s3://texts/c/d.txt ends at byte"));
  CHECK_THAT(error_text(ErrorCode::kIo, [&] { object->write_at(0, {}); }), Contains("can only be read"));
  CHECK_THAT(error_text(ErrorCode::kIo, [&] { sources.files().open_read("s3://texts/c/a.jsonl"); }),
             Contains("s3://texts/c/a.jsonl was not looked up"));
  CHECK(sources.files().exists("s3://texts/c/d.txt"));
  CHECK_FALSE(sources.files().exists("s3://texts/c/a.jsonl"));
  CHECK_FALSE(sources.files().is_directory("s3://texts/c/d.txt"));
  CHECK(sources.files().is_directory(bench.folder.path()));
}

TEST_CASE("sources: a store that fails costs no record, not even with --skip-bad", "[sources]") {
  SourcesBench bench;
  const auto expected = bench.expected();
  auto sources = bench.sources({"s3://texts/c/"});
  data::TokenizeOptions options = SourcesBench::options(bench.folder / "f/t");
  options.skip_bad = true;
  options.kept_after_s = 0;
  for (const uint64_t requests : {0, 3, 9}) {
    CAPTURE(requests);
    auto failing = bench.sources({"s3://texts/c/"}, 1500);  // no read ahead
    bench.store.fail_at(requests, ObjectFault::server_error, 1000000);
    CHECK_THAT(error_text(ErrorCode::kData, [&] { bench.tokenize(options, failing); }),
               Contains("cannot be read: ") && Contains("500") && Contains("no token files were written"));
    bench.store.repair();
  }
  const auto result = bench.tokenize(options, sources);
  CHECK(result.left_out_count == 0);
  CHECK(tokens_in(bench.folder / "f") == expected);
}

TEST_CASE("sources: an object that changed is refused, and the work goes on when it is back", "[sources]") {
  SourcesBench bench;
  const auto expected = bench.expected();
  const std::string out = bench.folder / "x";
  data::TokenizeOptions options = SourcesBench::options(out + "/t");
  options.kept_after_s = 0;
  const std::string other = read_file(bench.folder / "d.txt") + "more\n",
                    same = read_file(bench.folder / "d.txt");

  // On the way: what was done is kept.
  {
    auto sources = bench.sources({"s3://texts/c/"});
    bench.store.poke("texts/c/d.txt", other);
    const std::string message = error_text(ErrorCode::kData, [&] { bench.tokenize(options, sources); });
    CHECK_THAT(message,
               Contains("s3://texts/c/d.txt is not the object any more that it was when the work began") &&
                   Contains("are done and kept in") && Contains("no token files were written"));
    CHECK(real_file_system().list(out) == std::vector<std::string>{"t.partial"});
  }
  // Between two calls.
  {
    auto sources = bench.sources({"s3://texts/c/"});
    const std::string message = error_text(ErrorCode::kUsage, [&] { bench.tokenize(options, sources); });
    CHECK_THAT(message, Contains("the size of s3://texts/c/d.txt"));
  }
  bench.store.poke("texts/c/d.txt", std::string(same.size(), 'x'));
  {
    auto sources = bench.sources({"s3://texts/c/"});
    const std::string message = error_text(ErrorCode::kUsage, [&] { bench.tokenize(options, sources); });
    CHECK_THAT(message,
               Contains("s3://texts/c/d.txt, which is another object now (version ") && Contains("--force"));
  }
  bench.store.poke("texts/c/d.txt", same);
  {
    auto sources = bench.sources({"s3://texts/c/"});
    CHECK(bench.tokenize(options, sources).resumed_at.has_value());
    CHECK(tokens_in(out) == expected);
  }
}

TEST_CASE("sources: what URLs name", "[sources]") {
  SharedObjects store;
  for (const char* path :
       {"b/p/B.jsonl", "b/p/a.txt", "b/p/", "b/p/_SUCCESS", "b/p/x.csv", "b/p/sub/z.parquet",
        "b/p/sub/y.json.gz", "b/pq.txt", "other/k", "b/p/1.crc", "b/p/2.crc", "b/p/3.crc", "b/p/4.crc"})
    store.poke(path, "x");
  const TemporaryFolder folder;
  const auto open = [&](const std::vector<std::string>& inputs) {
    return TextSources(real_file_system(), store.access(), inputs, {.folder = folder.path()});
  };
  const auto sources = open({"local.txt", "s3://b/p/", "s3://other/k", "s3://b/p/a.txt"});
  CHECK(sources.paths() == std::vector<std::string>{"local.txt", "s3://b/p/B.jsonl", "s3://b/p/a.txt",
                                                    "s3://b/p/sub/y.json.gz", "s3://b/p/sub/z.parquet",
                                                    "s3://other/k", "s3://b/p/a.txt"});
  CHECK(sources.versions()[0].empty());
  CHECK(sources.versions()[2] == store.version_of("b/p/a.txt"));
  CHECK(sources.versions()[6] == sources.versions()[2]);
  CHECK(sources.left_out_text() ==
        "left out, because their names do not end as those of texts: s3://b/p/1.crc, s3://b/p/2.crc, "
        "s3://b/p/3.crc, s3://b/p/4.crc, s3://b/p/_SUCCESS and 1 more");
  CHECK(open({"s3://b/"}).paths().size() == 5);  // the whole bucket
  const auto message = [&](ErrorCode code, const std::string& input) {
    return error_text(code, [&] { open({input}); });
  };
  CHECK_THAT(message(ErrorCode::kUsage, "s3://b"), Contains("s3://b names no object: give s3://bucket/key"));
  CHECK_THAT(message(ErrorCode::kUsage, "s3:///k"), Contains("names no object"));
  CHECK_THAT(message(ErrorCode::kData, "s3://b/none.txt"),
             Contains("there is no object s3://b/none.txt at https://store.test"));
  CHECK_THAT(message(ErrorCode::kUsage, "s3://b/p"),
             Contains("s3://b/p is no object, but 11 objects are below it; give s3://b/p/"));
  CHECK_THAT(message(ErrorCode::kData, "s3://other/"),
             Contains("there is no text below s3://other/") && Contains("1 other"));
  CHECK_THAT(message(ErrorCode::kData, "s3://zz/k"), Contains("there is no bucket zz at https://store.test"));
  const double begin = store.clock.monotonic_s();
  store.fail_at(0, ObjectFault::slow_down, 1000);
  CHECK_THAT(message(ErrorCode::kIo, "s3://b/p/"), Contains("s3://b/p/ cannot be read: ") && Contains("503"));
  CHECK(store.clock.monotonic_s() - begin <= 20);  // a person waits
  store.fail_at(0, ObjectFault::refused, 100);
  CHECK_THAT(message(ErrorCode::kIo, "s3://b/p/"),
             Contains("refuses to read s3://b/p/") && Contains("check the credentials"));
}
