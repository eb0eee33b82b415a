// Goal: no damage goes unnoticed, and what is reported names the file and the tensor.
// Method: exhaustive. Every single bit of every file of a small checkpoint is flipped in turn; every pair of equally large chunks is
// swapped; every shard is cut short, removed, or replaced by one of another run, step or checkpoint.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

const std::string kVerifiedStep = "/ckpt/step-00000007";

/// A state small enough to flip every bit of.
PlainState small_state(int64_t step = 7) {
  PlainState state = make_state(5, step, 40);
  state.tensors.resize(3);
  for (auto& tensor : state.tensors) tensor.shape = {4, 5}, tensor.name = "w";
  for (size_t t = 0; t < 3; ++t) {
    state.values[t].resize(80);
    state.grids[t] = {{0, 2, 0, 5}, {2, 4, 0, 2}, {2, 4, 2, 5}};
  }
  return state;
}

struct Result {
  std::string refused;                 ///< by open
  std::vector<ckpt::VerifyFinding> findings;
  bool found() const { return !refused.empty() || !findings.empty(); }
};

Result check(FileSystem& fs, const std::string& path = kVerifiedStep) {
  Result result;
  try {
    result.findings = ckpt::verify(*ckpt::Checkpoint::open(fs, path)).findings;
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kCheckpoint);
    result.refused = error.what();
  }
  return result;
}

}  // namespace

TEST_CASE("every flipped bit is found and its file and tensor are named") {
  PowerLossFileSystem fs;
  save(fs, "/ckpt", small_state(), 2);
  CHECK_FALSE(check(fs).found());
  const auto checkpoint = ckpt::Checkpoint::open(fs, kVerifiedStep);
  size_t flips = 0;
  for (const auto& [path, content] : fs.files()) {
    const std::string file = path.substr(path.rfind('/') + 1);
    const ckpt::ShardReceipt* shard = nullptr;
    for (const auto& candidate : checkpoint->files())
      if (candidate.file == file) shard = &candidate;
    for (size_t bit = 0; bit < content.size() * 8; ++bit, ++flips) {
      const auto flip = [&](std::string& text) { text[bit / 8] = char(text[bit / 8] ^ (1 << bit % 8)); };
      fs.poke(path, flip);
      const Result result = check(fs);
      fs.poke(path, flip);
      INFO(path << " bit " << bit << ": " << result.refused);
      if (!shard) {
        REQUIRE(result.refused.find(file) != std::string::npos);
        continue;
      }
      REQUIRE(result.findings.size() == 1);
      REQUIRE(result.findings[0].file == file);
      const uint64_t byte = bit / 8;
      for (const auto& entry : shard->entries)
        if (byte >= entry.offset && byte < entry.offset + entry.bytes) {
          REQUIRE(result.findings[0].offset == entry.offset);
          REQUIRE(result.findings[0].tensor.find(entry.tensor) == 0);
        }
      if (byte < shard->entries[0].offset) REQUIRE(result.findings[0].offset == byte);
    }
  }
  CHECK(flips > 10000);
  CHECK_FALSE(check(fs).found());
}

TEST_CASE("read finds damage in the chunks it touches, and only there") {
  PowerLossFileSystem fs;
  const PlainState state = small_state();
  save(fs, "/ckpt", state, 1);
  const auto entry = ckpt::Checkpoint::open(fs, kVerifiedStep)->files()[0].entries[1];
  fs.poke(kVerifiedStep + "/shard-00000-of-00001.safetensors",
          [&](std::string& text) { text[entry.offset + 3] ^= 1; });
  const auto checkpoint = ckpt::Checkpoint::open(fs, kVerifiedStep);
  for (size_t t = 0; t < state.tensors.size(); ++t)
    for (const auto& box : state.grids[t]) {
      std::vector<std::byte> out(size_t(box.count()) * 4);
      const auto read = [&] { checkpoint->read("w", state.tensors[t].role, box, out.data()); };
      if (state.tensors[t].role == entry.role && box == entry.box) {
        CHECK_THROWS_WITH(read(), Catch::Contains("shard-00000-of-00001.safetensors is damaged") &&
                                      Catch::Contains("w [2:4,0:2] at byte " + std::to_string(entry.offset)));
      } else {
        read();
        CHECK(out == cut_out(state, t, box));
      }
    }
  CHECK_THROWS_WITH(checkpoint->read("v", ckpt::Role::master, {0, 1, 0, 1}, nullptr),
                    Catch::Contains("has no tensor v"));
}

TEST_CASE("every pair of swapped chunks is found") {
  PowerLossFileSystem fs;
  save(fs, "/ckpt", small_state(), 1);
  const std::string path = kVerifiedStep + "/shard-00000-of-00001.safetensors";
  const auto entries = ckpt::Checkpoint::open(fs, kVerifiedStep)->files()[0].entries;
  int swaps = 0;
  for (size_t i = 0; i < entries.size(); ++i)
    for (size_t j = i + 1; j < entries.size(); ++j) {
      if (entries[i].bytes != entries[j].bytes) continue;
      const auto swap = [&](std::string& text) {
        std::swap_ranges(text.begin() + ptrdiff_t(entries[i].offset),
                         text.begin() + ptrdiff_t(entries[i].offset + entries[i].bytes),
                         text.begin() + ptrdiff_t(entries[j].offset));
      };
      fs.poke(path, swap);
      CHECK(check(fs).findings.size() == 2);
      fs.poke(path, swap);
      ++swaps;
    }
  CHECK(swaps == 9);
}

TEST_CASE("missing, short, foreign and surplus files are found") {
  PowerLossFileSystem fs;
  save(fs, "/ckpt", small_state(), 2);
  const std::string shard = kVerifiedStep + "/shard-00001-of-00002.safetensors";
  const std::string good = fs.files()[shard];
  for (const size_t size : {size_t(0), size_t(7), size_t(100), good.size() - 1}) {
    fs.poke(shard, [&](std::string& text) { text.resize(size); });
    CHECK(check(fs).refused.find("shard-00001-of-00002.safetensors has " + std::to_string(size) + " bytes") !=
          std::string::npos);
  }
  fs.remove_file(shard);
  CHECK(check(fs).refused.find("shard-00001-of-00002.safetensors is missing") != std::string::npos);
  fs.write_new_text(shard, good);
  CHECK_FALSE(check(fs).found());

  SECTION("cut short after it was opened") {
    const auto checkpoint = ckpt::Checkpoint::open(fs, kVerifiedStep);
    fs.poke(shard, [&](std::string& text) { text.resize(text.size() - 1); });
    const auto report = ckpt::verify(*checkpoint);
    REQUIRE(report.findings.size() == 2);
    CHECK(report.findings[1].tensor.find("w") == 0);
  }
  SECTION("the same shard of another run, all zero in both") {
    PlainState zero = small_state();
    for (auto& values : zero.values) std::fill(values.begin(), values.end(), std::byte{0});
    PowerLossFileSystem ours, theirs;
    save(ours, "/ckpt", zero, 2);
    zero.info.run_id = "tiny-8XXX";
    save(theirs, "/ckpt", zero, 2);
    ours.poke(shard, [&](std::string& text) { text = theirs.files()[shard]; });
    const Result result = check(ours);
    REQUIRE(result.findings.size() == 1);
    CHECK(result.findings[0].message.find("written by run \"tiny-8XXX\"") != std::string::npos);
  }
  SECTION("the same shard of another step") {
    PowerLossFileSystem other;
    save(other, "/ckpt", small_state(8), 2);
    fs.poke(shard, [&](std::string& text) {
      text = other.files()["/ckpt/step-00000008/shard-00001-of-00002.safetensors"];
    });
    CHECK(check(fs).findings.size() > 1);
  }
  SECTION("a file that is no part of it") {
    fs.write_new_text(kVerifiedStep + "/notes.txt", "hello");
    REQUIRE(check(fs).findings.size() == 1);
    CHECK(check(fs).findings[0].file == "notes.txt");
  }
  SECTION("another checkpoint's COMMIT, a renamed folder, a folder without COMMIT") {
    PowerLossFileSystem other;
    save(other, "/ckpt", small_state(8), 2);
    fs.rename(kVerifiedStep, "/ckpt/step-00000009");
    CHECK(check(fs, "/ckpt/step-00000009").refused.find("holds step 7") != std::string::npos);
    fs.poke("/ckpt/step-00000009/COMMIT",
            [&](std::string& text) { text = other.files()["/ckpt/step-00000008/COMMIT"]; });
    CHECK(check(fs, "/ckpt/step-00000009").refused.find("SHA-256") != std::string::npos);
    fs.remove_file("/ckpt/step-00000009/COMMIT");
    CHECK(check(fs, "/ckpt/step-00000009").refused.find("it has no COMMIT") != std::string::npos);
    CHECK(check(fs, "/ckpt/step-00000010").refused.find("it has no COMMIT") != std::string::npos);
  }
}

TEST_CASE("values that are not finite are counted, statistics are those of the definition") {
  PlainState state = small_state();
  const auto set = [&](size_t t, size_t i, float value) { std::memcpy(state.values[t].data() + i * 4, &value, 4); };
  for (size_t i = 0; i < 20; ++i) set(0, i, float(i));
  set(1, 3, NAN), set(1, 4, INFINITY), set(1, 19, -INFINITY), set(2, 0, 0.0f), set(2, 1, -0.0f);
  PowerLossFileSystem fs;
  save(fs, "/ckpt", state, 3);
  const auto checkpoint = ckpt::Checkpoint::open(fs, kVerifiedStep);
  const auto report = ckpt::verify(*checkpoint);
  CHECK(report.findings.empty());
  CHECK((report.nan_values == 1 && report.infinite_values == 2 && report.files == 3 && report.chunks == 9));
  const auto ramp = ckpt::stats(*checkpoint, state.tensors[0]);
  CHECK(ramp.mean == Approx(9.5));
  CHECK(ramp.std == Approx(std::sqrt(399.0 / 12)));   // of 0..19
  CHECK((ramp.abs_max == 19 && ramp.zeros == 1 && ramp.nan_values == 0));
  const auto odd = ckpt::stats(*checkpoint, state.tensors[1]);
  CHECK((odd.nan_values == 1 && odd.infinite_values == 2 && std::isfinite(odd.mean)));
  CHECK(ckpt::stats(*checkpoint, state.tensors[2]).zeros == 2);
}

TEST_CASE("diff: nothing between equal states on other meshes and grids, else exactly what differs") {
  PlainState state = make_state(9, 7);
  PowerLossFileSystem fs;
  save(fs, "/a", state, 3, 1);
  PlainState other_grid = make_state(9, 7, 1000);
  save(fs, "/b", other_grid, 2, 5);
  const auto a = ckpt::Checkpoint::open(fs, "/a/step-00000007"), b = ckpt::Checkpoint::open(fs, "/b/step-00000007");
  CHECK(ckpt::diff(*a, *b).empty());

  const float far = 100;
  std::memcpy(state.values[4].data() + 40, &far, 4);
  state.values[11][3] ^= std::byte{0x80};   // the sign of element 0
  state.tensors[0].name = "renamed";
  save(fs, "/c", state, 8, 2);
  const auto c = ckpt::Checkpoint::open(fs, "/c/step-00000007");
  for (auto* left : {a.get(), b.get()}) {
    const auto found = ckpt::diff(*left, *c);
    REQUIRE(found.size() == 4);
    CHECK((found[0].tensor == "embed.weight" && found[0].what == ckpt::DifferenceIn::only_in_a));
    CHECK((found[1].tensor == state.tensors[4].name && found[1].role == ckpt::Role::first_moment &&
           found[1].differing == 1));
    CHECK(found[1].max_abs > 90);
    CHECK(found[2].tensor == "layers.0.norm.weight");
    CHECK((found[2].what == ckpt::DifferenceIn::values && found[2].differing == 1));
    CHECK((found[3].tensor == "renamed" && found[3].what == ckpt::DifferenceIn::only_in_b));
  }
}
