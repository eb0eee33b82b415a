// Goal: what one set of writers saved, any reader gets back exactly, and the state's identity does not depend on who wrote what.
// Method: one state in plain arrays, written as 1, 2, 3 and 8 shards in several random ownerships; root hashes compared, whole
// tensors and random boxes compared byte for byte with the arrays. Seeds are in the test's messages.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/forwarding_file_system.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/seed.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("any writers, any reader") {
  const PlainState state = make_state(1, 100);
  std::string root;
  for (const int shards : {1, 2, 3, 8})
    for (const uint64_t seed : test_seeds(4)) {
      INFO("TRAINCTL_TEST_SEED=" << seed << ", shards " << shards);
      PowerLossFileSystem fs;
      const std::string written = save(fs, "/run/ckpt", state, shards, seed);
      if (root.empty()) root = written;
      CHECK(written == root);
      const auto checkpoint = ckpt::Checkpoint::open(fs, "/run/ckpt/step-00000100");
      CHECK(checkpoint->root_hash() == root);
      CHECK(checkpoint->state().extra_json == state.info.extra_json);
      CHECK(checkpoint->state().resolved_spec_json == state.info.resolved_spec_json);
      CHECK(checkpoint->state().run_id == state.info.run_id);
      CHECK(checkpoint->tensors() == state.tensors);
      CHECK(reads_back(*checkpoint, state));
      std::mt19937_64 random(seed);
      for (int i = 0; i < 200; ++i) {
        const size_t t = random() % state.tensors.size();
        const parallel::Box all = whole(state.tensors[t]);
        parallel::Box box{int64_t(random() % uint64_t(all.row_end)), 0,
                          int64_t(random() % uint64_t(all.col_end)), 0};
        box.row_end = box.row_begin + 1 + int64_t(random() % uint64_t(all.row_end - box.row_begin));
        box.col_end = box.col_begin + 1 + int64_t(random() % uint64_t(all.col_end - box.col_begin));
        std::vector<std::byte> out(size_t(box.count()) * 4);
        checkpoint->read(state.tensors[t].name, state.tensors[t].role, box, out.data());
        REQUIRE(out == cut_out(state, t, box));
      }
    }
  PlainState other = state;
  other.values[5][17] ^= std::byte{1};
  PowerLossFileSystem fs;
  CHECK(save(fs, "/run/ckpt", other, 2) != root);
}

TEST_CASE("a checkpoint says what computed it, and its root does not depend on that") {
  PlainState state = make_state(1, 100);
  PowerLossFileSystem a, b;
  state.info.numerics = "cpu v4 oneDNN 2.6.3";
  const std::string root = save(a, "/ckpt", state, 2);
  CHECK(ckpt::Checkpoint::open(a, "/ckpt/step-00000100")->state().numerics == "cpu v4 oneDNN 2.6.3");
  state.info.numerics = "cuda sm_90 cuBLASLt 13.1.0";
  CHECK(save(b, "/ckpt", state, 2) == root);
  // One of an older program, which does not say.
  const std::string path = "/ckpt/step-00000100/";
  std::string manifest = b.read_text(path + "manifest.json");
  const std::string entry = "\"numerics\":\"cuda sm_90 cuBLASLt 13.1.0\",";
  REQUIRE(manifest.find(entry) != std::string::npos);
  manifest.erase(manifest.find(entry), entry.size());
  b.replace_text(path + "manifest.json", manifest);
  b.replace_text(path + "COMMIT", ckpt::commit_text(manifest, ckpt::parse_manifest(manifest, path)));
  CHECK(ckpt::Checkpoint::open(b, path)->state().numerics.empty());
}

TEST_CASE("a shard is an ordinary safetensors file with plain names") {
  PowerLossFileSystem fs;
  const PlainState state = make_state(1, 100, 1 << 20);   // chunks as large as the degrees 1, 2, 4 allow
  save(fs, "/ckpt", state, 1);
  const std::string path = "/ckpt/step-00000100/shard-00000-of-00001.safetensors";
  const auto file = ckpt::open_safetensors(fs, path);
  CHECK(file.metadata ==
        std::map<std::string, std::string>{{"format", "pt"}, {"run_id", "tiny-7Q2K"}, {"step", "100"}});
  const auto folder = ckpt::TensorFolder::open(fs, path);
  CHECK(folder->shape("layers.0.norm.weight") == std::vector<int64_t>{13});
  CHECK(folder->has("layers.0.norm.weight.first_moment"));
  CHECK(folder->has("layers.0.norm.weight.second_moment"));
  CHECK(folder->shape("layers.0.proj.weight.first_moment[0:8,6:12]") == std::vector<int64_t>{8, 6});
  const std::vector<float> norm = folder->read_f32("layers.0.norm.weight");
  CHECK(std::memcmp(norm.data(), state.values[9].data(), state.values[9].size()) == 0);
}

TEST_CASE("a manifest stays small, receipts survive the channel") {
  // The bound holds for real names and boxes: 59 bytes a chunk were measured for 584 352 chunks (ckpt/FORMAT.md).
  PowerLossFileSystem fs;
  PlainState state = make_state(1, 100, 1);
  save(fs, "/ckpt", state, 8);
  const auto checkpoint = ckpt::Checkpoint::open(fs, "/ckpt/step-00000100");
  size_t chunks = 0;
  for (const auto& file : checkpoint->files()) {
    chunks += file.entries.size();
    const std::string text = file.to_json();
    CHECK(text.find('\n') == std::string::npos);
    CHECK(ckpt::ShardReceipt::from_json(text).to_json() == text);
  }
  CHECK(fs.files()["/ckpt/step-00000100/manifest.json"].size() < 60 * chunks + 4000);
  for (const char* bad :
       {"", "{", "[]", "{}",
        R"({"file":"f","bytes":8,"chunks":[[0,0,1,"00"]],"tensors":[["w","master","f32",[1]]]})",
        R"({"file":"f","bytes":8,"chunks":[[7,0,1,"00"]],"tensors":[]})",
        R"({"file":"f","bytes":8,"chunks":[],"tensors":[["w","mistress","f32",[1]]]})"})
    CHECK_THROWS_WITH(ckpt::ShardReceipt::from_json(bad), Catch::Contains("a shard's receipt cannot be read"));
}

TEST_CASE("memory that changes while it is being saved voids the save") {
  /// Changes the source as a file is made.
  struct Meddler final : ForwardingFileSystem {
    Meddler(FileSystem& below, std::vector<float>& v) : ForwardingFileSystem(below), values(v) {}
    std::unique_ptr<File> create(const std::string& path) override {
      values[3] += 1;
      return ForwardingFileSystem::create(path);
    }
    std::vector<float>& values;
  };
  std::vector<float> values(8, 1.0f);
  PowerLossFileSystem inner;
  Meddler fs(inner, values);
  const ckpt::StateInfo info{.run_id = "r", .step = 1};
  const std::vector<ckpt::Tensor> tensors{{"w", ckpt::Role::master, DType::f32, {8}}};
  const std::vector<ckpt::ChunkData> chunks{{0, {0, 8, 0, 1}, values.data()}};
  ckpt::prepare_saving(fs, "/ckpt", info);
  CHECK_THROWS_WITH(
      ckpt::write_shard(fs, ckpt::saving_directory("/ckpt", info), "s.safetensors", info, tensors, chunks),
      Catch::Contains("w changed in memory while it was being saved"));
}

// The state of a device comes piece by piece, cut anywhere: also inside a chunk and over several.
TEST_CASE("a shard's bytes and hashes do not depend on the pieces in which its chunks are read") {
  struct Pieces final : ckpt::ChunkSource {
    explicit Pieces(size_t n) : bytes(n) {}
    void read(std::span<const std::span<const std::byte>> chunks, const Take& take) override {
      ++passes;
      std::vector<std::byte> buffer;   // used again, as staging memory is
      for (size_t i = 0; i < chunks.size(); ++i)
        for (size_t at = 0; at < chunks[i].size(); at += buffer.size()) {
          const size_t count = std::min(bytes, chunks[i].size() - at);
          buffer.assign(chunks[i].begin() + ptrdiff_t(at), chunks[i].begin() + ptrdiff_t(at + count));
          take(i, buffer);
        }
    }
    size_t bytes, passes = 0;
  };
  const PlainState state = make_state(1, 100);
  std::vector<std::vector<std::byte>> held;
  std::vector<ckpt::ChunkData> chunks;
  for (size_t t = 0; t < state.tensors.size(); ++t)
    for (const parallel::Box& box : state.grids[t]) {
      held.push_back(cut_out(state, t, box));
      chunks.push_back({int(t), box, held.back().data()});
    }
  const auto write = [&](PowerLossFileSystem& fs, ckpt::ChunkSource& source) {
    ckpt::prepare_saving(fs, "/ckpt", state.info);
    return ckpt::write_shard(fs, ckpt::saving_directory("/ckpt", state.info), "s.safetensors", state.info, state.tensors, chunks, source)
        .to_json();
  };
  PowerLossFileSystem whole_fs;
  const std::string whole = write(whole_fs, ckpt::host_chunks());
  for (const size_t bytes : {4, 12, 28, 1000}) {
    Pieces source(bytes);
    PowerLossFileSystem fs;
    CHECK(write(fs, source) == whole);
    CHECK(source.passes == 2);
    CHECK(fs.files() == whole_fs.files());
  }
}

TEST_CASE("a bad write or sync of a shard is answered with one new file") {
  for (const Fault fault : {Fault::io_error_once, Fault::io_error_from_here}) {
    PowerLossFileSystem fs;
    const PlainState state = make_state(1, 100);
    ckpt::prepare_saving(fs, "/ckpt", state.info);
    fs.fail_at(2, fault);   // create, write, sync
    const std::vector<ckpt::ChunkData> chunks{{0, state.grids[0][0], state.values[0].data()}};
    const auto write = [&] {
      return ckpt::write_shard(fs, ckpt::saving_directory("/ckpt", state.info), "s.safetensors", state.info,
                               state.tensors, chunks);
    };
    if (fault == Fault::io_error_once) {
      CHECK(write().file == "s.retry.safetensors");
      CHECK(fs.list(ckpt::saving_directory("/ckpt", state.info)) ==
            std::vector<std::string>{"s.retry.safetensors"});
    } else {
      CHECK_THROWS_WITH(write(), Catch::Contains("Input/output error"));
    }
  }
}

TEST_CASE("chunks whose rows lie apart are written from a source that knows where, and from no other") {
  const PlainState state = make_state(1, 100);
  const TemporaryFolder dir;
  const std::string path = dir.path() + "/stderr";
  struct Apart final : ckpt::ChunkSource {
    void read(std::span<const std::span<const std::byte>> chunks, const Take& take) override {
      for (size_t i = 0; i < chunks.size(); ++i) take(i, chunks[i]);
    }
    bool has_rows_apart() const override { return true; }
  } apart;
  const std::vector<ckpt::ChunkData> chunks{
      {.tensor = 0, .box = state.grids[0][0], .data = state.values[0].data(), .rows_apart = true}};
  const auto write = [&](ckpt::ChunkSource& source) {
    PowerLossFileSystem fs;
    ckpt::prepare_saving(fs, "/ckpt", state.info);
    return ckpt::write_shard(fs, ckpt::saving_directory("/ckpt", state.info), "s.safetensors", state.info,
                             state.tensors, chunks, source);
  };
  CHECK(write(apart).entries.size() == 1);
  const pid_t child = fork();
  if (child == 0) {
    if (freopen(path.c_str(), "w", stderr) == nullptr) _exit(3);
    std::signal(SIGABRT, SIG_DFL);  // not the test framework's
    write(ckpt::host_chunks());
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
  CHECK_THAT(real_file_system().read_text(path),
             Catch::Contains("lie apart, its source takes them as contiguous"));
}
