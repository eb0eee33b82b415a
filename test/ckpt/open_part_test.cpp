// Goal: a rank that loads its part of a checkpoint opens the manifest and the shards that hold the part, and
// nothing else; it gets the bytes of the whole checkpoint; harm elsewhere does not stop it but is found by
// the look at the whole; another manifest than the chosen one is refused. Method: states of random shapes,
// saved by 16 writers, loaded by those and by meshes of other cuts; a file system that counts what is
// opened; then every kind of harm to shards, to the manifest and to COMMIT.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <atomic>
#include <mutex>
#include <set>

#include "ckpt/folders.h"
#include "ckpt/manifest.h"
#include "ckpt/open_part.h"
#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/error_text.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr int kWriters = 16;
const std::string kPartDir = "/ckpt";

/// The files of a checkpoint; notes which of them are looked at.
class WatchedFiles final : public ckpt::StoredFiles {
 public:
  WatchedFiles(FileSystem& fs, const std::string& folder, std::multiset<std::string>& opened)
      : below_(ckpt::stored_folder(fs, folder)), opened_(opened) {}
  std::string where() const override { return below_->where(); }
  std::optional<int64_t> named_step() const override { return below_->named_step(); }
  bool has(const std::string& name) override { return note(name), below_->has(name); }
  std::vector<std::string> names() override { return note("all names"), below_->names(); }
  bool are_on_disk() const override { return true; }
  std::unique_ptr<File> open(const std::string& name) override { return note(name), below_->open(name); }

 private:
  void note(const std::string& name) {
    const std::lock_guard lock(mutex_);
    opened_.insert(name);
  }
  const std::unique_ptr<ckpt::StoredFiles> below_;
  std::mutex mutex_;
  std::multiset<std::string>& opened_;
};

/// The chunks of a state with their writer.
struct Owned {
  size_t tensor;
  parallel::Box box;
  int writer;
};

/// Saves with chunk i of all written by writer i % kWriters.
std::vector<Owned> save_owned(FileSystem& fs, const PlainState& state) {
  std::vector<Owned> all;
  std::vector<std::vector<ckpt::ChunkData>> chunks(kWriters);
  std::vector<std::vector<std::byte>> held;
  for (size_t t = 0; t < state.tensors.size(); ++t)
    for (const parallel::Box& box : state.grids[t]) {
      all.push_back({t, box, int(all.size()) % kWriters});
      held.push_back(cut_out(state, t, box));
      chunks[size_t(all.back().writer)].push_back({int(t), box, held.back().data()});
    }
  ckpt::prepare_saving(fs, kPartDir, state.info);
  std::vector<ckpt::ShardReceipt> receipts;
  for (int w = 0; w < kWriters; ++w)
    receipts.push_back(ckpt::write_shard(fs, ckpt::saving_directory(kPartDir, state.info),
                                         ckpt::shard_file_name(w, kWriters), state.info, state.tensors,
                                         chunks[size_t(w)]));
  ckpt::publish(fs, kPartDir, state.info, state.tensors, receipts);
  return all;
}

struct Want {
  size_t tensor;
  parallel::Box box;
};

/// A reader's boxes on a mesh of `readers`: rows of each tensor, or columns.
std::vector<Want> share_of(const PlainState& state, int reader, int readers, bool by_columns) {
  std::vector<Want> wants;
  for (size_t t = 0; t < state.tensors.size(); ++t) {
    const parallel::Box all = whole(state.tensors[t]);
    const bool columns = by_columns && all.cols() >= readers;
    const int64_t size = columns ? all.cols() : all.rows();
    const int64_t begin = size * reader / readers, end = size * (reader + 1) / readers;
    if (begin == end) continue;
    wants.push_back(
        {t, columns ? parallel::Box{0, all.rows(), begin, end} : parallel::Box{begin, end, 0, all.cols()}});
  }
  return wants;
}

std::unique_ptr<ckpt::Checkpoint> open_part(const PlainState& state, const std::vector<Want>& wants,
                                            std::unique_ptr<ckpt::StoredFiles> files,
                                            const std::string& manifest = "") {
  std::vector<ckpt::WantedBox> boxes;
  for (const Want& want : wants)
    boxes.push_back({state.tensors[want.tensor].name, state.tensors[want.tensor].role, want.box});
  return ckpt::open_part(std::move(files), boxes, manifest);
}

/// Reads all wants at once and compares.
bool reads_part_back(ckpt::Checkpoint& part, const PlainState& state, const std::vector<Want>& wants) {
  std::vector<std::vector<std::byte>> out;
  std::vector<ckpt::BoxRead> reads;
  for (const Want& want : wants) {
    out.emplace_back(size_t(want.box.count()) * sizeof(float));
    reads.push_back({.name = state.tensors[want.tensor].name,
                     .role = state.tensors[want.tensor].role,
                     .box = want.box,
                     .out = out.back().data()});
  }
  part.read_all(reads, [](uint64_t) {});
  for (size_t i = 0; i < wants.size(); ++i)
    if (out[i] != cut_out(state, wants[i].tensor, wants[i].box)) return false;
  return true;
}

std::set<std::string> shards_of(const std::vector<Owned>& all, const std::vector<Want>& wants) {
  std::set<std::string> names;
  for (const Owned& owned : all)
    for (const Want& want : wants)
      if (owned.tensor == want.tensor && parallel::intersect(owned.box, want.box).count() > 0)
        names.insert(ckpt::shard_file_name(owned.writer, kWriters));
  return names;
}

void flip(FileSystem& fs, const std::string& path, uint64_t at) {
  std::string text = fs.read_text(path);
  text[at] = char(text[at] ^ 1);
  fs.remove_file(path);
  fs.write_new_text(path, text);
}

}  // namespace

TEST_CASE("a rank opens the manifest and the shards of its part, on any mesh", "[part]") {
  for (const uint64_t seed : test_seeds(8)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    PowerLossFileSystem fs;
    const PlainState state = make_state(seed, 20, 20 + int64_t(seed % 60));
    const std::vector<Owned> all = save_owned(fs, state);
    const std::string folder = ckpt::step_directory(kPartDir, 20);
    const auto whole_one = ckpt::Checkpoint::open(fs, folder);
    const std::string manifest = ckpt::manifest_sha256(whole_one->stored());
    const auto check = [&](const std::vector<Want>& wants, const std::set<std::string>& expected) {
      std::multiset<std::string> opened;
      const auto part = open_part(state, wants, std::make_unique<WatchedFiles>(fs, folder, opened), manifest);
      CHECK(opened == std::multiset<std::string>{ckpt::kManifestName});
      CHECK(part->root_hash() == whole_one->root_hash());
      CHECK(part->tensors() == whole_one->tensors());
      CHECK(part->state().resolved_spec_json == whole_one->state().resolved_spec_json);
      CHECK(part->files().size() == expected.size());
      CHECK(reads_part_back(*part, state, wants));
      opened.erase(ckpt::kManifestName);
      CHECK(std::set(opened.begin(), opened.end()) == expected);
      CHECK(opened.size() == expected.size());  // each of these small ones once
    };
    for (int rank = 0; rank < kWriters; ++rank) {  // the mesh that saved
      std::vector<Want> own;
      for (const Owned& owned : all)
        if (owned.writer == rank) own.push_back({owned.tensor, owned.box});
      check(own, {ckpt::shard_file_name(rank, kWriters)});
    }
    size_t most = 0;
    for (const int readers : {2, 3, 8})
      for (const bool by_columns : {false, true})
        for (int reader = 0; reader < readers; ++reader) {
          const std::vector<Want> wants = share_of(state, reader, readers, by_columns);
          check(wants, shards_of(all, wants));
          most = std::max(most, shards_of(all, wants).size());
        }
    CHECK(most > 1);
    check({}, {});
  }
}

TEST_CASE("harm to a shard stops the ranks that read it and no other, and the look at the whole finds it",
          "[part]") {
  const PlainState state = make_state(5, 20);
  for (int harmed = 0; harmed < kWriters; ++harmed)
    for (const std::string how : {"removed", "cut", "changed"}) {
      PowerLossFileSystem fs;
      const std::vector<Owned> all = save_owned(fs, state);
      const std::string folder = ckpt::step_directory(kPartDir, 20);
      const std::string shard = ckpt::shard_file_name(harmed, kWriters), path = folder + "/" + shard;
      const std::string text = fs.read_text(path);
      if (how == "changed") {
        flip(fs, path, text.size() - 1);
      } else {
        fs.remove_file(path);
        if (how == "cut") fs.write_new_text(path, text.substr(0, text.size() - 1));
      }
      INFO(shard << " " << how);
      for (int reader = 0; reader < 5; ++reader) {
        const std::vector<Want> wants = share_of(state, reader, 5, false);
        const auto part = open_part(state, wants, ckpt::stored_folder(fs, folder));
        const bool reads_it = shards_of(all, wants).contains(shard);
        bool same = false;
        const std::string said =
            error_text(ErrorCode::kCheckpoint, [&] { same = reads_part_back(*part, state, wants); });
        // The last byte of a shard is of its last chunk, which this reader may not want.
        if (!reads_it)
          CHECK((said == "no error" && same));
        else if (how != "changed")
          CHECK_THAT(said, Catch::Contains(shard));
      }
      std::string found = error_text(ErrorCode::kCheckpoint, [&] {
        for (const auto& finding : ckpt::verify(*ckpt::Checkpoint::open(fs, folder)).findings)
          throw Error(ErrorCode::kCheckpoint, finding.file + ": " + finding.message);
      });
      CHECK_THAT(found, Catch::Contains(shard));
      if (how != "changed")
        CHECK_THAT(error_text(ErrorCode::kCheckpoint, [&] { ckpt::Checkpoint::open(fs, folder); }), Catch::Contains(shard));
    }
}

TEST_CASE("each changed byte of the manifest is found, and so is another checkpoint's", "[part]") {
  const PlainState state = make_state(6, 20), other = make_state(7, 20);
  PowerLossFileSystem fs, fs_of_other;
  save_owned(fs, state);
  save_owned(fs_of_other, other);
  const std::string folder = ckpt::step_directory(kPartDir, 20);
  const std::string manifest = ckpt::manifest_sha256(*ckpt::stored_folder(fs, folder));
  const std::vector<Want> wants = share_of(state, 1, 3, false);
  const auto why_not = [&](FileSystem& files, const std::string& sha256) {
    return error_text(ErrorCode::kCheckpoint, [&] { open_part(state, wants, ckpt::stored_folder(files, folder), sha256); });
  };
  CHECK(why_not(fs, manifest) == "no error");
  CHECK(why_not(fs, "") == "no error");
  CHECK(why_not(fs_of_other, "") == "no error");
  CHECK_THAT(why_not(fs_of_other, manifest), Catch::Contains("instead of " + manifest));
  const std::string path = folder + "/" + ckpt::kManifestName;
  const size_t bytes = fs.read_text(path).size();
  for (size_t at = 0; at < bytes; at += 1 + at % 23) {
    flip(fs, path, at);
    for (const std::string& sha256 : {manifest, std::string()})
      CHECK_THAT(why_not(fs, sha256),
                 Catch::Contains("it is damaged, or not that of the checkpoint that was chosen"));
    flip(fs, path, at);
  }
  fs.remove_file(folder + "/" + ckpt::kCommitName);
  CHECK(why_not(fs, manifest) == "no error");
  CHECK_THAT(why_not(fs, ""), Catch::Contains(ckpt::kCommitName));
  fs.write_new_text(folder + "/" + ckpt::kCommitName, "{}");
  CHECK_THAT(why_not(fs, ""), Catch::Contains("is damaged"));
  fs.rename(folder, ckpt::step_directory(kPartDir, 21));
  CHECK_THAT(error_text(ErrorCode::kCheckpoint, [&] {
               open_part(state, wants, ckpt::stored_folder(fs, ckpt::step_directory(kPartDir, 21)), manifest);
             }),
             Catch::Contains("holds step 20: the folder was renamed"));
  CHECK_THAT(why_not(fs, manifest), Catch::Contains(ckpt::kManifestName));
}
