// Goal: of equal texts the first is kept, and its record stays byte for byte what it was; near ones are
// removed as their similarity says; results do not depend on threads; nothing half-written gets a name.
// Method: corpora of every format; random texts with random edits against the similarity by its definition;
// a file system that fails or loses power at every effect.
#include "data/clean/dedup.h"

#include <filesystem>
#include <map>
#include <sstream>

#include "data/clean/cleaning_output.h"
#include "data/corpus/byte_stream.h"
#include "data/ordered_work.h"
#include "runtime/base/json.h"
#include "test/data/clean/texts.h"
#include "test/data/corpus/pack.h"
#include "test/data/token_fixtures.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;
using trainctl::test::Fault;
using trainctl::test::PowerLossFileSystem;
using trainctl::test::PowerLost;
using trainctl::test::Survival;

namespace {

std::string line_of(const std::string& text) { return Json{{"text", text}}.dump() + "\n"; }

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) values.push_back(Json::parse(line));
  return values;
}

std::string unpacked(const std::string& path) {
  std::string text(size_t(content_bytes(real_file_system(), path)), '\0');
  open_bytes(real_file_system(), path)->read(text);
  return text;
}

std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename()] = read_bytes(entry.path());
  return files;
}

DedupOptions options_of(std::vector<std::string> inputs, const std::string& out) {
  DedupOptions options;
  options.cleaning.corpus.files = std::move(inputs);
  options.cleaning.out = out;
  options.cleaning.threads = 2;
  return options;
}

std::string refusal(const DedupOptions& options) {
  try {
    dedup(options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("dedup: kept lines are the bytes of the input, the rest is named", "[clean][dedup]") {
  TemporaryFolder folder;
  const std::string first = R"({ "id":7,  "text" : "one\u0041" , "x":[1, 2]})", second = R"({"text":"two"})";
  const std::string again = R"({"text":"oneA","id":8})", crlf = "{\"text\":\"three\"}\r";
  write_bytes(folder / "a.jsonl",
              first + "\n\n" + again + "\n" + R"({"text":""})" + "\n" + second + "\n" + crlf + "\n");
  write_bytes(folder / "b.jsonl.gz", gzipped(second + "\n" + R"({"text":"four"})"));  // no newline at its end
  write_bytes(folder / "c.txt", "four\n--\nfive \"\xff\"\n--\nfive \"\xff\"");
  DedupOptions options =
      options_of({folder / "a.jsonl", folder / "b.jsonl.gz", folder / "c.txt"}, folder / "out");
  options.cleaning.corpus.separator = "--";
  const CleaningResult result = dedup(options);
  CHECK(read_bytes(folder / "out/a.jsonl") == first + "\n" + second + "\n" + crlf + "\n");
  CHECK(read_bytes(folder / "out/b.jsonl") == "{\"text\":\"four\"}\n");
  // "four\n" and "five...\n" are other bytes than "four" and the one without a newline.
  CHECK(read_bytes(folder / "out/c.jsonl") ==
        line_of("four\n") + line_of("five \"\xef\xbf\xbd\"\n") + line_of("five \"\xef\xbf\xbd\""));
  const auto removed = json_lines(read_bytes(folder / "out/removed.jsonl"));
  REQUIRE(removed.size() == 2);
  CHECK(removed[0] == Json{{"file", folder / "a.jsonl"},
                                     {"line", 3},
                                     {"offset", first.size() + 2},
                                     {"reason", "exact"},
                                     {"kept", {{"file", folder / "a.jsonl"}, {"record", 1}}}});
  CHECK(removed[1]["file"] == folder / "b.jsonl.gz");
  CHECK(removed[1]["kept"] == Json{{"file", folder / "a.jsonl"}, {"record", 5}});
  CHECK(result.documents == 9);
  CHECK(result.kept == 7);
  CHECK(result.empty_documents == 1);
  CHECK(result.replaced_documents == 2);
  CHECK(result.reasons[0].documents == 2);
  CHECK(result.reasons[0].text_bytes == 4 + 3);
  REQUIRE(result.files.size() == 3);
  CHECK(result.files[0].output == folder / "out/a.jsonl");
  CHECK(result.files[0].documents == 4);
  CHECK(result.files[0].kept == 3);
  CHECK(!std::filesystem::exists(folder / "out.partial"));
}

TEST_CASE("dedup: rows of a table become lines; kept files are packed on demand", "[clean][dedup]") {
  TemporaryFolder folder;
  const std::string table = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/parquet/list-1.parquet";
  DedupOptions options = options_of({table, table}, folder / "plain");
  const CleaningResult plain = dedup(options);
  CHECK(plain.files[0].kept > 0);
  CHECK(plain.files[1].kept == 0);
  CHECK(json_lines(read_bytes(folder / "plain/removed.jsonl")).back().contains("row"));
  options.cleaning.zstd = true;
  std::map<std::string, std::string> packed;
  for (const int threads : {1, 3}) {
    options.cleaning.threads = threads;
    options.cleaning.out = folder / "packed" + std::to_string(threads);
    dedup(options);
    const auto files = files_in(options.cleaning.out);
    if (threads > 1) CHECK(files == packed);
    packed = files;
  }
  CHECK(unpacked(folder / "packed1/list-1.jsonl.zst") == read_bytes(folder / "plain/list-1.jsonl"));
  CHECK(unpacked(folder / "packed1/list-1-2.jsonl.zst").empty());
}

TEST_CASE("dedup: names of files", "[clean]") {
  CHECK(output_names({"x/a.jsonl.gz", "y/a.txt", "a.jsonl", "removed.txt", ".hidden", "a-2.json"}, false) ==
        std::vector<std::string>{"a.jsonl", "a-2.jsonl", "a-3.jsonl", "removed-2.jsonl", ".hidden.jsonl",
                                 "a-2-2.jsonl"});
  CHECK(output_names({"a.parquet"}, true) == std::vector<std::string>{"a.jsonl.zst"});
}

TEST_CASE("dedup: near ones are removed as their similarity says, the same for any threads",
          "[clean][dedup]") {
  for (const uint64_t seed : trainctl::test::test_seeds(2)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    TemporaryFolder folder;
    std::vector<Words> texts;
    std::vector<size_t> families;  // texts of two families have no sequence in common
    std::string lines;
    for (size_t i = 0; i < 600; ++i) {
      const bool is_new = i < 100 || random() % 4 == 0;
      const size_t of = is_new ? i : random() % i;
      texts.push_back(is_new ? random_words(random, 50 + random() % 300)
                             : edited(texts[of], random() % (texts[of].size() / 12), random));
      families.push_back(is_new ? i : families[of]);
      lines += line_of(dressed(texts.back(), random));
    }
    write_bytes(folder / "a.jsonl", lines);
    DedupOptions options = options_of({folder / "a.jsonl"}, folder / "out1");
    options.near = true;
    options.cleaning.threads = 1;
    dedup(options);
    const auto expected = files_in(folder / "out1");
    for (const int threads : {2, 5}) {
      options.cleaning.threads = threads;
      options.cleaning.corpus.block_bytes = size_t(1000 * threads);
      options.cleaning.out = folder / "out" + std::to_string(threads);
      dedup(options);
      CHECK(files_in(options.cleaning.out) == expected);
    }
    std::map<size_t, Json> removed;
    for (const auto& record : json_lines(expected.at("removed.jsonl")))
      removed[record["line"].get<size_t>() - 1] = record;
    int right = 0, wrong = 0, missed = 0, found = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (removed.count(i)) {
        const auto& record = removed[i];
        const size_t kept = record["kept"]["record"].get<size_t>() - 1;
        CHECK(!removed.count(kept));
        CHECK(kept < i);
        if (record["reason"] != "near") continue;
        const double exact = exact_jaccard(texts[i], texts[kept], 5);
        CHECK(std::abs(exact - record["similarity"].get<double>()) < 0.2);  // five standard deviations
        ++(exact >= options.threshold ? right : wrong);
        ++found;
      } else {
        for (size_t j = 0; j < i; ++j)
          if (!removed.count(j) && families[i] == families[j] &&
              exact_jaccard(texts[i], texts[j], 5) >= options.threshold) {
            ++missed;
            break;
          }
      }
    }
    INFO(right << " right, " << wrong << " wrong, " << missed << " missed");
    CHECK(found > 100);
    CHECK(wrong <= found / 8);   // their estimate is a little high
    CHECK(missed <= found / 8);  // or a little low
  }
}

TEST_CASE("dedup: what does not fit into --memory is refused and leaves nothing", "[clean][dedup]") {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 60'000; ++i) lines += line_of(std::to_string(i));
  write_bytes(folder / "a.jsonl", lines);
  DedupOptions options = options_of({folder / "a.jsonl"}, folder / "out");
  options.near = true;
  const uint64_t own = (80 + 2 * 24) << 20;
  options.memory = own;
  CHECK_THAT(refusal(options),
             Contains("--memory 128.0 MiB is too little for 2 threads; give 144.0 MiB or more"));
  options.memory = own + (16 << 20);
  const auto fit = uint64_t(double(16 << 20) / dedup_bytes_per_document(true, 0.8));
  REQUIRE(fit < 60'000);
  CHECK_THAT(refusal(options),
             Contains(std::to_string(fit) + " different documents fill --memory 144.0 MiB") &&
                 Contains("line " + std::to_string(fit + 1) + " of") && Contains("raise --memory"));
  CHECK(!std::filesystem::exists(folder / "out"));
  CHECK(!std::filesystem::exists(folder / "out.partial"));
  options.near = false;
  CHECK(refusal(options) == "");
  CHECK(read_bytes(folder / "out/a.jsonl") == lines);
}

TEST_CASE("dedup: bad input and bad places are one sentence", "[clean][dedup]") {
  TemporaryFolder folder;
  write_bytes(folder / "a.jsonl", "{\"text\":\"one\"}\nbad\n{\"text\":\"two\"}\n");
  for (const char* name : {"full", "mine.partial", "empty.partial"})
    std::filesystem::create_directory(folder / name);
  write_bytes(folder / "full/x", "");
  DedupOptions options = options_of({folder / "a.jsonl"}, folder / "out");
  CHECK_THAT(refusal(options), Contains("a.jsonl, line 2: no JSON object"));
  CHECK(!std::filesystem::exists(folder / "out"));
  CHECK(!std::filesystem::exists(folder / "out.partial"));
  options.threshold = 0.1;
  CHECK_THAT(refusal(options), Contains("--threshold 0.1 is not from 0.3 to 1"));
  options.threshold = 0.8;
  options.cleaning.corpus.skip_bad = true;
  options.cleaning.out = folder / "full";
  CHECK_THAT(refusal(options), Contains("full exists and is no empty folder"));
  options.cleaning.out = folder / "a.jsonl";
  CHECK_THAT(refusal(options), Contains("a.jsonl exists and is no empty folder"));
  write_bytes(folder / "mine.partial/notes.txt", "x");
  options.cleaning.out = folder / "mine";
  CHECK_THAT(refusal(options), Contains("notes.txt is no rest of an interrupted command"));
  CHECK(read_bytes(folder / "mine.partial/notes.txt") == "x");
  // An empty folder is taken; what a killed process left is removed.
  std::filesystem::create_directory(folder / "empty");
  write_bytes(folder / "empty.partial/old.jsonl", "x");
  options.cleaning.out = folder / "empty/";
  const CleaningResult result = dedup(options);
  CHECK(result.left_out_count == 1);
  CHECK(files_in(folder / "empty").size() == 2);
  CHECK_THAT(read_bytes(folder / "empty/removed.jsonl"), Contains("unreadable") && Contains("line 2"));
}

TEST_CASE("dedup: power that goes or a disk that fails at any effect leaves all or nothing",
          "[clean][dedup]") {
  const auto prepared = [] {
    auto fs = std::make_unique<PowerLossFileSystem>();
    fs->make_directory("/in");
    std::string lines;
    for (int i = 0; i < 40; ++i) lines += line_of("text " + std::to_string(i % 25));
    fs->write_new_text("/in/a.jsonl", lines);
    fs->write_new_text("/in/b.jsonl", lines);
    fs->sync_directory("/");
    return fs;
  };
  DedupOptions options = options_of({"/in/a.jsonl", "/in/b.jsonl"}, "/made/here/out");
  options.cleaning.corpus.block_bytes = 300;
  const auto outputs = [](PowerLossFileSystem& fs) {
    std::map<std::string, std::string> out;
    for (const auto& [path, content] : fs.files())
      if (path.starts_with("/made/here/out/")) out[path] = content;
    return out;
  };
  auto whole = prepared();
  options.cleaning.file_system = whole.get();
  const size_t before = whole->effects().size();
  dedup(options);
  const size_t effects = whole->effects().size() - before;
  const auto expected = outputs(*whole);
  REQUIRE(expected.size() == 3);
  int complete = 0, absent = 0;
  for (uint64_t at = 0; at <= effects; ++at) {
    CAPTURE(at);
    for (const Survival survival : {Survival::nothing, Survival::everything, Survival::random}) {
      auto fs = prepared();
      options.cleaning.file_system = fs.get();
      fs->lose_power_after(at);
      try {
        dedup(options);
      } catch (const PowerLost&) {
      }
      auto after = fs->after_power_loss(survival, at);
      const auto found = outputs(*after);
      CHECK((found.empty() || found == expected));
      ++(found.empty() ? absent : complete);
      if (found.empty()) {
        options.cleaning.file_system = after.get();
        dedup(options);
        CHECK(outputs(*after) == expected);
      }
    }
    auto fs = prepared();
    options.cleaning.file_system = fs.get();
    fs->fail_at(at, Fault::io_error_once);
    try {
      dedup(options);
    } catch (const Error& e) {
      CHECK(e.code() == ErrorCode::kIo);
    }
    const auto found = outputs(*fs);
    CHECK((found.empty() || found == expected));
  }
  CHECK(absent > 10);
  CHECK(complete > 2);
}
