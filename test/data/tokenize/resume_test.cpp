// Goal: work that was interrupted at any point goes on and gives the bytes of an undisturbed run; work of
// other inputs or settings is refused by name; a failure leaves nothing that is not named, and a set is
// never half there.
// Method: runs that end at every block, in every format; a simulated file system that runs full or loses
// power at every effect, and then a second run on what survived.
#include <filesystem>
#include <map>

#include "data/inspect.h"
#include "data/tokenize/attempt.h"
#include "data/tokenize/tokenize.h"
#include "test/data/corpus/pack.h"
#include "test/data/token_fixtures.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;
using trainctl::test::Fault;
using trainctl::test::PowerLossFileSystem;
using trainctl::test::PowerLost;
using trainctl::test::Survival;

namespace {

/// The end of a process, for which no code is prepared.
struct Killed {};

const std::string kGolden = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/";

std::string json_lines(int n) {
  std::string text;
  for (int i = 0; i < n; ++i)
    text += "{\"text\":\"" + std::string(size_t(i % 40), 'x') + " document " + std::to_string(i) + "\"}\n";
  return text;
}

/// The files of a folder by name, without folders.
std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[entry.path().lexically_relative(folder)] = read_bytes(entry.path());
  return files;
}

/// Runs until `blocks` blocks are written; false if the run was complete before.
bool run_until(TokenizeOptions options, int blocks) {
  int done = 0;
  options.record_every_s = 0;
  options.progress = [&](const TokenizeOptions::Progress& at) {
    if (std::string(at.doing) == "tokenizing" && done++ == blocks) throw Killed();
  };
  try {
    tokenize(options);
  } catch (const Killed&) {
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a run that was interrupted at any block goes on with the same bytes", "[tokenize]") {
  TemporaryFolder folder("test", "/dev/shm");  // syncs often
  const std::string lines = json_lines(120);
  std::string text;
  for (int i = 0; i < 900; ++i) text += "line " + std::to_string(i) + (i % 9 == 0 ? "\nEND\n" : "\n");
  write_bytes(folder / "a.jsonl", lines);
  write_bytes(folder / "a.jsonl.gz", gzipped(lines));
  write_bytes(folder / "a.jsonl.zst", zstd_packed(lines));
  write_bytes(folder / "a.txt", text);
  write_bytes(folder / "bad.jsonl", json_lines(20) + "bad\n" + json_lines(20));
  const std::string table = kGolden + "parquet/list-1.parquet";
  struct Case {
    std::vector<std::string> inputs;
    std::string separator, tokenizer;
    int64_t val_share;
    Format to;
  };
  const std::string gpt2 = kGolden + "tokenizers/gpt2.json";
  for (const Case& c : {Case{{folder / "a.jsonl", table}, "", "bytes", 0, Format::megatron},
                        Case{{folder / "a.jsonl.gz", folder / "a.jsonl.zst"}, "", gpt2, 7, Format::megatron},
                        Case{{folder / "a.txt", folder / "bad.jsonl"}, "END", gpt2, 3, Format::llmc},
                        Case{{folder / "a.txt"}, "", "bytes", 30, Format::megatron}}) {
    CAPTURE(c.inputs, c.separator, c.tokenizer);
    TokenizeOptions options{.inputs = c.inputs,
                            .tokenizer = TokenizerChoice::of(c.tokenizer),
                            .train_share = 97,
                            .val_share = c.val_share,
                            .to = c.to,
                            .separator = c.separator,
                            .skip_bad = true,
                            .threads = 3,
                            .block_bytes = 200};
    real_file_system().make_directory(folder / "whole");
    options.out = folder / "whole/t";
    const auto whole = tokenize(options);
    const auto expected = files_in(folder / "whole");
    int interrupted = 0;
    for (int blocks = 0;; blocks += 1 + blocks / 3) {
      CAPTURE(blocks);
      real_file_system().make_directory(folder / "again");
      options.out = folder / "again/t";
      const bool complete = run_until(options, blocks);
      interrupted += !complete;
      TokenizeResult result;
      if (!complete) {
        CHECK(read_sidecar(options.out) == std::nullopt);
        run_until(options, 2);  // a second time, a little later
        std::string notes;
        options.note = [&](const std::string& note) { notes += note; };
        result = tokenize(options);
        options.note = nullptr;
        REQUIRE(result.resumed_at);
        CHECK_THAT(notes, Contains("going on in " + options.out + ".partial: "));
        CHECK(result.empty_documents == whole.empty_documents);
        CHECK(result.left_out_count == whole.left_out_count);
        CHECK(result.parts[0].sidecar.documents == whole.parts[0].sidecar.documents);
      }
      CHECK(files_in(folder / "again") == expected);
      std::filesystem::remove_all(folder / "again");
      if (complete) break;
    }
    CHECK(interrupted > 4);
    std::filesystem::remove_all(folder / "whole");
  }
}

TEST_CASE("unfinished work of other inputs or settings is named and kept, unless it is forced",
          "[tokenize]") {
  TemporaryFolder folder("test", "/dev/shm");  // syncs often
  write_bytes(folder / "a.jsonl", json_lines(100));
  write_bytes(folder / "b.jsonl", json_lines(90));
  const TokenizeOptions options{.inputs = {folder / "a.jsonl"},
                                .out = folder / "t",
                                .threads = 1,
                                .block_bytes = 200,
                                .kept_after_s = 0};
  REQUIRE_FALSE(run_until(options, 4));
  const auto before = files_in(folder.path());
  const auto refused = [&](const std::function<void(TokenizeOptions&)>& change) {
    TokenizeOptions other = options;
    change(other);
    const std::string error = usage_error([&] { tokenize(other); });
    CHECK_THAT(error, Contains("t.partial holds unfinished work (") && Contains("--force"));
    CHECK(files_in(folder.path()) == before);
    return error;
  };
  CHECK_THAT(refused([&](auto& o) { o.inputs = {folder / "b.jsonl"}; }),
             Contains("the inputs (") && Contains("b.jsonl"));
  CHECK_THAT(refused([&](auto& o) { o.inputs.push_back(folder / "b.jsonl"); }), Contains("1 files, now 2"));
  CHECK_THAT(refused([&](auto& o) { o.tokenizer = TokenizerChoice::file(kGolden + "tokenizers/gpt2.json"); }),
             Contains("the tokenizer (bytes"));
  CHECK_THAT(refused([&](auto& o) { o.train_vocab = 300; }), Contains("--train-vocab (0, now 300)"));
  CHECK_THAT(refused([&](auto& o) { o.val_share = 1; }), Contains("--split (1:0, now 1:1)"));
  CHECK_THAT(refused([&](auto& o) { o.to = Format::llmc; }), Contains("--to (megatron, now llmc)"));
  CHECK_THAT(refused([&](auto& o) { o.text_key = "body"; }), Contains("--text-key"));
  CHECK_THAT(refused([&](auto& o) { o.separator = "\n"; }), Contains("--separator (\"\", now \"\\n\")"));
  CHECK_THAT(refused([&](auto& o) { o.longest_document = 1000; }), Contains("--longest-document"));
  // A higher limit, bad records from here on, and more threads change nothing of what is done.
  std::string notes;
  TokenizeOptions forced = options;
  forced.inputs = {folder / "b.jsonl"};
  forced.force = true;
  forced.note = [&](const std::string& note) { notes += note; };
  TokenizeOptions lenient = options;
  lenient.skip_bad = true;
  lenient.longest_document *= 2;
  lenient.threads = 2;
  CHECK(tokenize(lenient).resumed_at);
  const auto complete = files_in(folder.path());
  CHECK(complete.size() == 5);
  // Begun anew by force, over the set that is there.
  TokenizeOptions again = options;
  again.force = true;
  REQUIRE_FALSE(run_until(again, 4));
  CHECK_FALSE(tokenize(forced).resumed_at);
  CHECK_THAT(notes, Contains("starting over"));
  CHECK(files_in(folder.path()) != complete);
  // Repeated with --force, work goes on.
  REQUIRE_FALSE(run_until(again, 4));
  CHECK(tokenize(again).resumed_at);
  CHECK(files_in(folder.path()) == complete);
  // An input that was written to since.
  std::filesystem::remove(folder / "t.idx"), std::filesystem::remove(folder / "t.bin"),
      std::filesystem::remove(folder / "t.json");
  REQUIRE_FALSE(run_until(options, 4));
  std::string changed = json_lines(100);
  changed[changed.size() / 2 + 20] = 'y';
  const auto time = std::filesystem::last_write_time(folder / "a.jsonl");
  write_bytes(folder / "a.jsonl", changed);
  std::filesystem::last_write_time(folder / "a.jsonl", time + std::chrono::seconds(2));
  CHECK_THAT(usage_error([&] { tokenize(options); }), Contains("a.jsonl, which was written to since"));
}

TEST_CASE("a bad record after hours of work costs nothing: the work is kept and named", "[tokenize]") {
  TemporaryFolder folder("test", "/dev/shm");  // syncs often
  write_bytes(folder / "a.jsonl", json_lines(60) + "bad\n" + json_lines(60));
  TokenizeOptions options{.inputs = {folder / "a.jsonl"},
                          .out = folder / "t",
                          .threads = 2,
                          .block_bytes = 200,
                          .record_every_s = 0,
                          .kept_after_s = 0};
  const std::string error = data_error([&] { tokenize(options); });
  CHECK_THAT(error, Contains("a.jsonl, line 61: no JSON object") &&
                        Contains("are done and kept in " + folder.path() + "/t.partial"));
  options.skip_bad = true;
  const auto result = tokenize(options);
  CHECK(result.resumed_at);
  CHECK(result.left_out_count == 1);
  CHECK(result.left_out.at(0).place == folder / "a.jsonl, line 61");
  const auto resumed = files_in(folder.path());
  options.force = true;
  CHECK_FALSE(tokenize(options).resumed_at);
  CHECK(files_in(folder.path()) == resumed);
  // With records left out, the work cannot go on as if none may be.
  std::filesystem::remove(folder / "t.idx"), std::filesystem::remove(folder / "t.bin"),
      std::filesystem::remove(folder / "t.json");
  options.force = false;
  REQUIRE_FALSE(run_until(options, 18));
  options.skip_bad = false;
  CHECK_THAT(usage_error([&] { tokenize(options); }), Contains("--skip-bad"));
}

TEST_CASE("a few seconds of unfinished work are neither kept after an error nor protected", "[tokenize]") {
  TemporaryFolder folder("test", "/dev/shm");
  write_bytes(folder / "a.jsonl", json_lines(60) + "bad\n" + json_lines(60));
  write_bytes(folder / "b.jsonl", json_lines(60));
  TokenizeOptions options{.inputs = {folder / "a.jsonl"},
                          .out = folder / "t",
                          .threads = 1,
                          .block_bytes = 200,
                          .record_every_s = 0};
  CHECK(options.kept_after_s == 5);
  options.kept_after_s = kKeepsNothing;  // more seconds than a busy machine takes
  const std::string error = data_error([&] { tokenize(options); });
  CHECK_THAT(error, Contains("a.jsonl, line 61: ") && !Contains("kept"));
  CHECK(files_in(folder.path()).size() == 2);
  REQUIRE_FALSE(run_until(options, 4));
  options.inputs = {folder / "b.jsonl"};
  CHECK_FALSE(tokenize(options).resumed_at);
}

TEST_CASE("two processes do not work on one token set", "[tokenize]") {
  TemporaryFolder folder("test", "/dev/shm");  // syncs often
  write_bytes(folder / "a.jsonl", json_lines(100));
  const Attempt other(real_file_system(), folder / "t.partial");
  CHECK_THAT(data_error([&] { tokenize({.inputs = {folder / "a.jsonl"}, .out = folder / "t"}); }),
             Contains("another trainctl works in ") && Contains("t.partial"));
  CHECK(files_in(folder.path()).size() == 2);
}

TEST_CASE("a tokenizer that was trained first is not trained again", "[tokenize]") {
  TemporaryFolder folder("test", "/dev/shm");  // syncs often
  write_bytes(folder / "a.jsonl", json_lines(400));
  TokenizeOptions options{.inputs = {folder / "a.jsonl"},
                          .out = folder / "t",
                          .train_vocab = 280,
                          .train_kind = TrainedKind::bpe,
                          .threads = 1,
                          .block_bytes = 2000};
  REQUIRE_FALSE(run_until(options, 3));
  CHECK_FALSE(real_file_system().exists(folder / "tokenizer.json"));
  bool trained = false;
  options.progress = [&](const TokenizeOptions::Progress& at) {
    trained = trained || std::string(at.doing) != "tokenizing";
  };
  const auto result = tokenize(options);
  CHECK_FALSE(trained);
  CHECK(result.resumed_at);
  CHECK(inspect({.path = folder / "t"}, {}).warnings.empty());
  CHECK(files_in(folder.path()).size() == 5);
}

namespace {

/// A small corpus and, if `replaces`, an older token set in a simulated file system.
void prepare(PowerLossFileSystem& fs, bool replaces) {
  fs.make_directory("/d");
  fs.write_new_text("/d/a.jsonl", json_lines(12));
  if (replaces)
    for (const char* name : {"/d/t.idx", "/d/t.bin", "/d/t.json"}) fs.write_new_text(name, "old");
  fs.sync_directory("/");
}

TokenizeOptions simulated(PowerLossFileSystem& fs, Format format) {
  return {.inputs = {"/d/a.jsonl"},
          .out = "/d/t",
          .to = format,
          .threads = 1,
          .force = true,
          .block_bytes = 120,
          .record_every_s = 0,
          .kept_after_s = 0,
          .file_system = &fs};
}

/// The token set that an undisturbed run makes.
std::map<std::string, std::string> undisturbed(Format format) {
  PowerLossFileSystem fs;
  prepare(fs, false);
  tokenize(simulated(fs, format));
  return fs.files();
}

}  // namespace

TEST_CASE("power loss at any effect: no half set, and a second run completes the same one", "[tokenize]") {
  for (const Format format : {Format::megatron, Format::llmc}) {
    const auto expected = undisturbed(format);
    REQUIRE(expected.size() == (format == Format::megatron ? 4 : 3));
    for (uint64_t after = 0;; ++after) {
      PowerLossFileSystem fs;
      prepare(fs, true);
      fs.lose_power_after(after);
      bool lost = false;
      try {
        tokenize(simulated(fs, format));
      } catch (const PowerLost&) {
        lost = true;
      }
      for (const Survival survival : {Survival::nothing, Survival::everything, Survival::random})
        for (uint64_t seed = 0; seed < (survival == Survival::random ? 3u : 1u); ++seed) {
          const auto left = fs.after_power_loss(survival, seed);
          const auto files = left->files();
          CAPTURE(int(format), after, int(survival), seed);
          const auto is = [&](const char* name, const std::string& content) {
            const auto file = files.find(name);
            return file != files.end() && file->second == content;
          };
          if (format == Format::megatron && files.count("/d/t.idx") && files.count("/d/t.bin"))
            CHECK(((is("/d/t.idx", "old") && is("/d/t.bin", "old")) ||
                   (is("/d/t.idx", expected.at("/d/t.idx")) && is("/d/t.bin", expected.at("/d/t.bin")))));
          if (format == Format::llmc && files.count("/d/t.bin"))
            CHECK((is("/d/t.bin", "old") ||
                   (is("/d/t.bin", expected.at("/d/t.bin")) && !files.count("/d/t.idx"))));
          tokenize(simulated(*left, format));
          CHECK(left->files() == expected);
        }
      if (!lost) break;
    }
  }
}

TEST_CASE("killed at any effect: the same command goes on, unless it has all been done", "[tokenize]") {
  const auto expected = undisturbed(Format::megatron);
  const auto without_force = [](PowerLossFileSystem& fs) {
    TokenizeOptions options = simulated(fs, Format::megatron);
    options.force = false;
    return options;
  };
  int refused = 0;
  for (uint64_t after = 0;; ++after) {
    CAPTURE(after);
    PowerLossFileSystem fs;
    prepare(fs, false);
    fs.lose_power_after(after);
    bool killed = false;
    try {
      tokenize(without_force(fs));
    } catch (const PowerLost&) {
      killed = true;
    }
    const auto left = fs.after_power_loss(Survival::everything, 0);
    const bool is_done = left->exists("/d/t.json") && !left->exists("/d/t.partial/progress.json");
    if (is_done) {
      ++refused;
      CHECK_THROWS_WITH(tokenize(without_force(*left)), Contains("exists already"));
    } else {
      tokenize(without_force(*left));
    }
    CHECK(left->files() == expected);
    if (!killed) break;
  }
  CHECK(refused > 1);
}

TEST_CASE("a full disk at any effect: the old set stays, and a second run completes the new one",
          "[tokenize]") {
  for (const Format format : {Format::megatron, Format::llmc}) {
    const auto expected = undisturbed(format);
    for (const auto& [fault, kept_after_s] :
         {std::pair{Fault::no_space_from_here, 0.}, std::pair{Fault::io_error_once, 0.},
          std::pair{Fault::no_space_from_here, 60.}, std::pair{Fault::io_error_once, 60.}})
      for (uint64_t at = 0;; ++at) {
        PowerLossFileSystem fs;
        prepare(fs, true);
        fs.fail_at(at, fault);
        CAPTURE(int(format), int(fault), kept_after_s, at);
        TokenizeOptions options = simulated(fs, format);
        options.kept_after_s = kept_after_s;
        std::string error;
        try {
          tokenize(options);
        } catch (const Error& e) {
          CHECK(e.code() == ErrorCode::kData);
          error = e.what();
        }
        fs.repair();
        const auto files = fs.files();
        const bool kept = std::any_of(files.begin(), files.end(), [](const auto& f) {
          return f.first.find("t.partial/progress.json") != f.first.npos;
        });
        if (!error.empty() && kept) CHECK_THAT(error, Contains("kept in /d/t.partial"));
        if (!error.empty() && !kept) {
          CHECK((files.at("/d/t.bin") == "old" || files == expected));
          if (fault == Fault::no_space_from_here) CHECK(files.size() == 4);
        }
        tokenize(simulated(fs, format));
        CHECK(fs.files() == expected);
        if (error.empty()) break;
      }
  }
}
