// Goal: all damage to a checkpoint is found and located; it is repaired to the same bytes where a good copy
// of every chunk exists, and refused with nothing written where one is missing; clean checkpoints give no
// alarm. Method: 10,000 seeded random injections (TRAINCTL_TEST_SEED) of bit flips, zeroed pages, swapped and
// stale chunks, cut and lost files, files and manifests of other checkpoints, up to three at once. What must
// be found follows from a byte by byte comparison with the original, what can be repaired from the bytes that
// the sources hold. A million injections under the tag [soak]. Then power is lost after every effect of
// a repair.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>

#include "ckpt/folders.h"
#include "ckpt/repair.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

using Contents = std::map<std::string, std::string>;
using FileOffset = std::pair<std::string, uint64_t>;  // file and offset
const std::string kStep = "/a/step-00000007";
const std::vector<std::string> kOthers{"/a/step-00000006", "/epoch/step-00000007", "/equal/step-00000007"};

/// Three tensors of nine chunks; `seed` gives the values of the second and third, the first is the same for
/// all seeds.
PlainState repair_state(int64_t step, uint64_t seed, uint64_t epoch = 3) {
  PlainState state = make_state(5, 7, 40);
  state.info.step = step;
  state.info.epoch = epoch;
  state.tensors.resize(3);
  std::mt19937_64 random(seed);
  for (size_t t = 0; t < 3; ++t) {
    state.tensors[t].shape = {4, 5}, state.tensors[t].name = "w";
    state.values[t].resize(80);
    state.grids[t] = {{0, 2, 0, 5}, {2, 4, 0, 2}, {2, 4, 2, 5}};
    for (size_t i = 0; i < 80; ++i) state.values[t][i] = t == 0 ? std::byte(i) : std::byte(random());
  }
  return state;
}

Contents files_below(const PowerLossFileSystem& fs, const std::string& folder) {
  Contents result;
  for (const auto& [path, content] : fs.files())
    if (path.starts_with(folder + "/")) result[path.substr(folder.size() + 1)] = content;
  return result;
}

/// The checkpoint, its replica, one of equal content by other writers of another run, an older step, and one
/// of the same step.
struct RepairSetup {
  RepairSetup() {
    save(fs, "/a", repair_state(7, 1), 3);
    save(fs, "/replica", repair_state(7, 1), 3);
    PlainState other_run = repair_state(7, 1);
    other_run.info.run_id = "tiny-8XXX";
    save(fs, "/equal", other_run, 2, 9);
    save(fs, "/a", repair_state(6, 2), 3);
    save(fs, "/epoch", repair_state(7, 3, 4), 3);
    original = files_below(fs, kStep);
    const auto checkpoint = ckpt::Checkpoint::open(fs, kStep);
    shards = checkpoint->files();
  }
  std::unique_ptr<ckpt::StoredFiles> folder(const std::string& path) { return ckpt::stored_folder(fs, path); }
  PowerLossFileSystem fs;
  Contents original;
  std::vector<ckpt::ShardReceipt> shards;
};

/// What must be found in `now`: by comparison of bytes.
std::set<FileOffset> expected_damage(const RepairSetup& setup, const Contents& now) {
  std::set<FileOffset> result;
  const auto first_difference = [](const std::string& a, const std::string& b) {
    return uint64_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  };
  for (const char* name : {"manifest.json", "COMMIT"}) {
    const std::string have = now.count(name) ? now.at(name) : "";
    if (have != setup.original.at(name))
      result.insert({name, first_difference(have, setup.original.at(name))});
  }
  for (const auto& shard : setup.shards) {
    const std::string& good = setup.original.at(shard.file);
    const bool is_there = now.count(shard.file) > 0;
    const std::string have = is_there ? now.at(shard.file) : "";
    if (!is_there) result.insert({shard.file, 0});
    if (is_there && have.size() != good.size())
      result.insert({shard.file, std::min(have.size(), good.size())});
    const std::string header = good.substr(0, shard.entries[0].offset);
    const std::string have_header = have.substr(0, header.size());
    if (have_header != header.substr(0, have_header.size()))
      result.insert({shard.file, first_difference(have_header, header)});
    for (const auto& entry : shard.entries)
      if (have.size() < entry.offset + entry.bytes ||
          have.compare(entry.offset, entry.bytes, good, entry.offset, entry.bytes) != 0)
        result.insert({shard.file, entry.offset});
  }
  return result;
}

class Injector {
 public:
  Injector(RepairSetup& setup, std::mt19937_64& random) : setup_(setup), random_(random) {
    older_ = files_below(setup.fs, "/a/step-00000006");
    epoch_ = files_below(setup.fs, "/epoch/step-00000007");
    equal_ = files_below(setup.fs, "/equal/step-00000007");
  }
  static constexpr int kKinds = 10;
  void damage(int kind, Contents& files) {
    std::string& file = files.count(any_file()) ? files[last_] : files["manifest.json"];
    const std::string name = files.count(last_) ? last_ : "manifest.json";
    switch (kind) {
      case 0:
        return flip(file);
      case 1:
        return zero(file);
      case 2:
        return swap(files);
      case 3:
        return stale(files);
      case 4:
        file.resize(file.empty() ? 0 : random_() % file.size());
        return;
      case 5:
        files.erase(name);
        return;
      case 6:
        files[name] = older_.count(name) ? older_[name] : "";
        return;  // of another step
      case 7:
        files[name] = epoch_.count(name) ? epoch_[name] : "";
        return;  // of another epoch, same step
      case 8: {  // manifest and COMMIT that belong together, of another checkpoint
        Contents& from = random_() % 3 == 0 ? older_ : random_() % 2 ? epoch_ : equal_;
        for (const char* text : {"manifest.json", "COMMIT"}) files[text] = from[text];
        return;
      }
      case 9:
        file += std::string(1 + random_() % 40, 'x');
        return;
    }
  }

 private:
  std::string any_file() {
    auto at = setup_.original.begin();
    std::advance(at, random_() % setup_.original.size());
    return last_ = at->first;
  }
  void flip(std::string& file) {
    if (!file.empty()) file[random_() % file.size()] ^= char(1 << random_() % 8);
  }
  void zero(std::string& file) {
    constexpr size_t kPage = 64;
    if (file.empty()) return;
    const size_t begin = random_() % file.size() / kPage * kPage;
    std::fill_n(file.begin() + ptrdiff_t(begin), std::min(kPage, file.size() - begin), '\0');
  }
  std::pair<std::string, ckpt::ShardReceipt::Entry> any_chunk() {
    const auto& shard = setup_.shards[random_() % setup_.shards.size()];
    return {shard.file, shard.entries[random_() % shard.entries.size()]};
  }
  static bool holds(const Contents& files, const std::string& name, const ckpt::ShardReceipt::Entry& entry) {
    return files.count(name) && files.at(name).size() >= entry.offset + entry.bytes;
  }
  void swap(Contents& files) {
    const auto [a, x] = any_chunk();
    const auto [b, y] = any_chunk();
    if (!holds(files, a, x) || !holds(files, b, y)) return;
    const size_t bytes = std::min(x.bytes, y.bytes);
    const std::string left = files[a].substr(x.offset, bytes), right = files[b].substr(y.offset, bytes);
    files[a].replace(x.offset, bytes, right);
    files[b].replace(y.offset, bytes, left);
  }
  void stale(Contents& files) {
    const auto [name, entry] = any_chunk();  // both steps have the same layout
    if (holds(files, name, entry) && holds(older_, name, entry))
      files[name].replace(entry.offset, entry.bytes, older_[name], entry.offset, entry.bytes);
  }

  RepairSetup& setup_;
  std::mt19937_64& random_;
  Contents older_, epoch_, equal_;
  std::string last_;
};

void put_files(PowerLossFileSystem& fs, const std::string& folder, const Contents& now) {
  for (const auto& [name, content] : files_below(fs, folder))
    if (!now.count(name)) fs.remove_file(folder + "/" + name);
  for (const auto& [name, content] : now) {
    if (!fs.exists(folder + "/" + name)) fs.create(folder + "/" + name);
    fs.poke(folder + "/" + name, [&](std::string& text) { text = content; });
  }
}

/// What inspect-ckpt --verify says: files named, "" for none.
std::string verdict(FileSystem& fs) {
  try {
    std::string names;
    for (const auto& finding : ckpt::verify(*ckpt::Checkpoint::open(fs, kStep)).findings)
      names += finding.file + " ";
    return names;
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kCheckpoint);
    return error.what();
  }
}

/// Every content that stands at its own place, here or in a source. One that was moved to another place does
/// not count: a repair that is interrupted might lose it.
std::set<std::string> contents_at_hand(const RepairSetup& setup, const Contents& now,
                                       const std::vector<std::string>& sources) {
  std::set<std::string> result;
  const auto add = [&](const Contents& files, const std::vector<ckpt::ShardReceipt>& shards) {
    for (const auto& shard : shards)
      for (const auto& entry : shard.entries) {
        if (!files.count(shard.file) || files.at(shard.file).size() < entry.offset + entry.bytes) continue;
        const std::string content = files.at(shard.file).substr(entry.offset, entry.bytes);
        if (xxh3(content) == entry.content_hash) result.insert(content);
      }
  };
  add(now, setup.shards);
  for (const std::string& source : sources)
    add(files_below(setup.fs, source),
        ckpt::Checkpoint::open(const_cast<PowerLossFileSystem&>(setup.fs), source)->files());
  return result;
}

/// Its COMMIT is another checkpoint's: what it is can be argued about.
bool is_another(const RepairSetup& setup, const Contents& now) {
  const auto files = setup.fs.files();
  return std::any_of(kOthers.begin(), kOthers.end(), [&](const std::string& other) {
    const std::string sha = sha256_hex(files.at(other + "/manifest.json"));
    return now.count("COMMIT") && now.at("COMMIT").find(sha) != std::string::npos;
  });
}

/// May the manifest be believed, by the rule of ckpt/repair.h? `chunks`: damaged ones.
bool is_manifest_known(const RepairSetup& setup, const Contents& now, bool has_replica, size_t chunks) {
  const auto text = [&](const char* name) { return now.count(name) ? now.at(name) : std::string(); };
  const std::string& good = setup.original.at("COMMIT");
  const size_t at = good.find("\"manifest_sha256\""), end = good.find(',', at);
  const bool manifest_is_good = text("manifest.json") == setup.original.at("manifest.json");
  const bool commit_names_it = text("COMMIT").find(good.substr(at, end - at)) != std::string::npos;
  const bool is_mostly_here = 2 * chunks < 9;
  if (manifest_is_good && commit_names_it) return true;
  if (!has_replica) return false;
  return commit_names_it || is_mostly_here;
}

struct Tally {
  int injected[Injector::kKinds] = {}, repaired = 0, refused = 0, others = 0, harmless = 0, total = 0;
};

/// Repairs `now`, in which `expected` is damaged and of which a verification `said` something.
void repair_and_check(RepairSetup& setup, const Contents& now, const std::set<FileOffset>& expected,
                      const std::string& said, std::mt19937_64& random, Tally& tally) {
  std::vector<std::string> paths;
  if (random() % 2) paths.push_back("/a/step-00000006");
  if (random() % 3 == 0) paths.push_back("/equal/step-00000007");
  const bool has_replica = random() % 2;
  if (has_replica)
    paths.insert(paths.begin() + ptrdiff_t(random() % (paths.size() + 1)), "/replica/step-00000007");
  std::vector<std::unique_ptr<ckpt::StoredFiles>> sources;
  for (const std::string& path : paths) sources.push_back(setup.folder(path));

  size_t lost = 0, chunks = 0;
  const std::set<std::string> at_hand = contents_at_hand(setup, now, paths);
  for (const auto& shard : setup.shards)
    for (const auto& entry : shard.entries)
      if (expected.count({shard.file, entry.offset})) {
        ++chunks;
        lost += !at_hand.count(setup.original.at(shard.file).substr(entry.offset, entry.bytes));
      }
  const bool known = is_manifest_known(setup, now, has_replica, chunks);
  const auto effects = setup.fs.effects().size();
  const ckpt::RepairReport report = ckpt::repair(*setup.folder(kStep), sources);
  INFO((has_replica ? "with" : "without")
       << " a replica, " << paths.size() << " sources, " << report.found.size() << " found, "
       << report.missing.size() << " missing; said: " << said);
  const Contents after = files_below(setup.fs, kStep);
  if (!report.is_good()) {
    REQUIRE(after == now);
    REQUIRE(setup.fs.effects().size() == effects);
  }
  if (is_another(setup,
                 now)) {  // it is this checkpoint again, it became what its COMMIT says, or nothing was done
    ++tally.others;
    if (report.is_good() && after != setup.original)
      REQUIRE(after.at("manifest.json") != setup.original.at("manifest.json"));
    return;
  }
  REQUIRE(std::any_of(expected.begin(), expected.end(),
                      [&](const FileOffset& place) { return said.find(place.first) != std::string::npos; }));
  REQUIRE(report.is_good() == (known && lost == 0));
  ++(report.is_good() ? tally.repaired : tally.refused);
  if (report.is_good()) {
    REQUIRE(after == setup.original);
    REQUIRE(verdict(setup.fs) == "");
  }
  if (!known) return;
  std::set<FileOffset> found;
  for (const auto& finding : report.found) found.insert({finding.file, finding.offset});
  REQUIRE(found == expected);
  REQUIRE(report.missing.size() == lost);
}

/// A place of its own for some of the cases: what a file system in memory remembers grows.
void inject_some(int cases, std::mt19937_64& random, Tally& tally) {
  RepairSetup setup;
  Injector injector(setup, random);
  for (const int end = tally.total + cases; tally.total < end;) {
    Contents now = setup.original;
    std::string what;
    for (int n = 1 + int(random() % 3); n > 0; --n) {
      const int kind = int(random() % Injector::kKinds);
      injector.damage(kind, now);
      ++tally.injected[kind];
      what += fmt::format("{} ", kind);
    }
    put_files(setup.fs, kStep, now);
    INFO("case " << tally.total << ", damage of kind " << what);
    const std::set<FileOffset> expected = expected_damage(setup, now);
    const std::string said = verdict(setup.fs);
    if (expected.empty()) {
      REQUIRE(said == "");  // no alarm where nothing changed
      ++tally.harmless;
      continue;
    }
    ++tally.total;
    REQUIRE(said != "");
    repair_and_check(setup, now, expected, said, random, tally);
  }
}

void inject(int cases) {
  const uint32_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  Tally tally;
  while (tally.total < cases) inject_some(2000, random, tally);
  for (const int count : tally.injected) CHECK(count > cases / 10);
  WARN(tally.total << " cases of damage: " << tally.repaired << " repaired, " << tally.refused << " refused, "
                   << tally.others << " others, " << tally.harmless
                   << " harmless; TRAINCTL_TEST_SEED=" << seed);
  CHECK((tally.repaired > cases / 4 && tally.refused > cases / 6 && tally.harmless > cases / 300));
}

}  // namespace

TEST_CASE("ten thousand injections of damage are found, located, and repaired or refused", "[all]") { inject(10000); }
TEST_CASE("a million injections of damage", "[.][soak]") { inject(1000000); }

TEST_CASE("ten thousand clean loads give no alarm, and a repair of them writes nothing") {
  PowerLossFileSystem fs;
  for (int round = 0; round < 100; ++round) {
    PlainState state = repair_state(round, uint64_t(round));
    state.tensors[1].dtype = state.tensors[2].dtype = DType::bf16;
    for (size_t t : {1, 2}) state.tensors[t].shape = {4, 10};
    for (size_t t : {1, 2}) state.grids[t] = {{0, 2, 0, 10}, {2, 4, 0, 4}, {2, 4, 4, 10}};
    save(fs, "/c", state, 1 + round % 4, uint64_t(round));
    const std::string path = ckpt::step_directory("/c", round);
    const size_t effects = fs.effects().size();
    for (int load = 0; load < 100; ++load)
      REQUIRE(ckpt::verify(*ckpt::Checkpoint::open(fs, path)).findings.empty());
    const auto report = ckpt::repair(*ckpt::stored_folder(fs, path), {});
    REQUIRE((report.is_good() && report.found.empty() && report.rewritten.empty()));
    REQUIRE(fs.effects().size() == effects);
  }
  WARN("10000 clean loads");
}

TEST_CASE("power lost at every effect of a repair leaves no new damage, and the next repair ends it") {
  RepairSetup setup;
  Contents damaged = setup.original;
  for (const auto& shard : setup.shards) damaged[shard.file][shard.entries.back().offset + 1] ^= 4;
  damaged.erase(setup.shards[1].file);
  damaged["COMMIT"][3] ^= 1;
  put_files(setup.fs, kStep, damaged);
  const auto before = setup.fs.after_power_loss(Survival::everything, 0);
  int losses = 0;
  for (uint64_t n = 0;; ++n) {
    const auto machine = before->copy();
    machine->lose_power_after(n);
    const auto repair_on = [](PowerLossFileSystem& fs) {
      std::vector<std::unique_ptr<ckpt::StoredFiles>> sources;
      sources.push_back(ckpt::stored_folder(fs, "/replica/step-00000007"));
      return ckpt::repair(*ckpt::stored_folder(fs, kStep), sources);
    };
    bool lost = false;
    try {
      const size_t rewritten = repair_on(*machine).rewritten.size();
      CHECK(rewritten == 4);
    } catch (const PowerLost&) {
      lost = true;
    }
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const Survival survival = seed == 0   ? Survival::nothing
                                : seed == 1 ? Survival::everything
                                            : Survival::random;
      const auto survivor = machine->after_power_loss(survival, seed + n * 100);
      for (const auto& [name, content] : files_below(*survivor, kStep)) {
        if (name.ends_with(".repair")) continue;
        INFO(n << " " << name);
        REQUIRE((content == setup.original[name] || (damaged.count(name) && content == damaged[name])));
      }
      if (!lost) REQUIRE(files_below(*survivor, kStep) == setup.original);
      REQUIRE(repair_on(*survivor).is_good());
      REQUIRE(files_below(*survivor, kStep) == setup.original);
      ++losses;
    }
    if (!lost) break;
  }
  CHECK(losses > 150);
}

TEST_CASE("of two repairs of a file at once the first gives way, and the file is never half of one") {
  PowerLossFileSystem fs;
  fs.make_directories(kStep);
  fs.write_new_text(kStep + "/f", "damaged!");
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  const auto folder = ckpt::stored_folder(fs, kStep);
  const auto first = folder->replace("f", 8);
  first->append(bytes("good"));
  const auto second = folder->replace("f", 8);
  second->append(bytes("good"));
  first->append(bytes(" too"));
  CHECK_THROWS_WITH(first->finish(), Catch::Contains("another repair of " + kStep + "/f has begun"));
  CHECK(fs.read_text(kStep + "/f") == "damaged!");
  second->append(bytes(" too"));
  second->finish();
  CHECK(fs.read_text(kStep + "/f") == "good too");
  CHECK(fs.list(kStep) == std::vector<std::string>{"f"});
}

TEST_CASE("what a repair says: origins, foreign files, and where no replica can be trusted") {
  RepairSetup setup;
  const auto with = [&](const std::vector<std::string>& paths, bool only_look = false) {
    std::vector<std::unique_ptr<ckpt::StoredFiles>> sources;
    for (const std::string& path : paths) sources.push_back(setup.folder(path));
    return ckpt::repair(*setup.folder(kStep), sources, only_look);
  };
  Contents damaged = setup.original;
  for (const auto& shard : setup.shards)
    for (const auto& entry : shard.entries) damaged[shard.file][entry.offset] ^= 1;
  damaged["notes.txt"] = "hello";
  put_files(setup.fs, kStep, damaged);
  // The older step has the three chunks of the first tensor; the rest is in the checkpoint of the other run.
  const auto none = with({"/a/step-00000006"});
  CHECK((none.found.size() == 9 && none.missing.size() == 6 && none.origins.size() == 1 &&
         none.origins[0].chunks == 3));
  CHECK(none.foreign == std::vector<std::string>{"notes.txt"});
  CHECK(files_below(setup.fs, kStep) == damaged);
  const auto look = with({"/a/step-00000006", "/equal/step-00000007"}, true);
  CHECK((look.is_good() && look.rewritten.empty() && look.origins.size() == 2));
  CHECK(look.origins[1].where == "/equal/step-00000007");
  CHECK(look.origins[1].chunks == 6);
  CHECK(files_below(setup.fs, kStep) == damaged);
  CHECK(with({"/a/step-00000006", "/equal/step-00000007"}).rewritten.size() == setup.shards.size());
  CHECK(setup.fs.exists(kStep + "/notes.txt"));
  setup.fs.remove_file(kStep + "/notes.txt");
  CHECK(files_below(setup.fs, kStep) == setup.original);

  // Manifest and COMMIT of another epoch of the same step agree with each other, but not with the chunks.
  Contents mixed = setup.original;
  const Contents epoch = files_below(setup.fs, "/epoch/step-00000007");
  for (const char* name : {"manifest.json", "COMMIT"}) mixed[name] = epoch.at(name);
  put_files(setup.fs, kStep, mixed);
  CHECK_FALSE(with({}).is_good());
  const auto settled = with({"/epoch/step-00000007", "/replica/step-00000007"});
  CHECK(settled.rewritten == std::vector<std::string>{"manifest.json", "COMMIT"});
  CHECK(files_below(setup.fs, kStep) == setup.original);

  // Both texts are gone and nothing is left that the replica's manifest names: it might be any checkpoint.
  damaged.erase("notes.txt"), damaged.erase("COMMIT"), damaged.erase("manifest.json");
  put_files(setup.fs, kStep, damaged);
  const auto lost = with({"/replica/step-00000007"});
  REQUIRE(lost.missing.size() == 1);
  CHECK(lost.missing[0].file == "manifest.json");
  CHECK(files_below(setup.fs, kStep) == damaged);
}
