#include "test/support/store_rig.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "ckpt/memory_store.h"
#include "ckpt/object_store.h"
#include "runtime/base/error.h"
#include "test/support/faulty_objects.h"

namespace trainctl::test {
namespace {

const std::string kDir = "/runs/a/ckpt";

// ---- folders

class FolderRig final : public StoreRig {
 public:
  explicit FolderRig(std::unique_ptr<PowerLossFileSystem> fs)
      : fs_(std::move(fs)), store_(ckpt::directory_store(*fs_, kDir)) {}
  ckpt::Store& store() override { return *store_; }
  std::unique_ptr<StoreRig> copy() const override { return std::make_unique<FolderRig>(fs_->copy()); }
  std::unique_ptr<StoreRig> after_crash(Survival survival, uint64_t seed) const override {
    return std::make_unique<FolderRig>(fs_->after_power_loss(survival, seed));
  }
  void crash_after(uint64_t effects) override { fs_->lose_power_after(effects); }
  void fail_at(uint64_t effect, Fault fault) override { fs_->fail_at(effect, fault); }
  void repair() override { fs_->repair(); }
  std::vector<std::string> effects() const override { return fs_->effects(); }
  void lie_about(const std::string& name_end) override { fs_->ignore_syncs_of(name_end); }
  std::vector<std::string> leftovers() const override {
    std::vector<std::string> result;
    for (const char* folder : {"/.saving", "/.trash"})
      if (fs_->exists(kDir + folder))
        for (const std::string& name : fs_->list(kDir + folder)) result.push_back(folder + ("/" + name));
    return result;
  }

 private:
  const std::unique_ptr<PowerLossFileSystem> fs_;
  const std::unique_ptr<ckpt::Store> store_;
};

StoreKind folder_kind(const char* name, bool no_replace, bool folder_sync, bool answers_arrive = true) {
  return {.name = name, .make = [=] {
            auto fs = std::make_unique<PowerLossFileSystem>();
            if (!no_replace) fs->refuse_rename_no_replace();
            if (!folder_sync) fs->refuse_sync_directory();
            if (!answers_arrive) fs->lose_answers_of_rename();
            return std::make_unique<FolderRig>(std::move(fs));
          }};
}

// ---- memory of a node

/// Memory whose writer is killed on request. Each write is one effect; the one at which it dies is done in
/// part.
class KillableMemory final : public ckpt::NodeMemory {
 public:
  explicit KillableMemory(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  void write(uint64_t offset, std::span<const std::byte> data) override {
    ENSURE(offset <= size() && data.size() <= size() - offset, "{} bytes at {}", data.size(), offset);
    if (effects.size() >= killed_at) {
      // Killed in this write: a later copy has any part of it.
      dying = {offset, {data.begin(), data.end()}};
      killed_at = 0;
      throw PowerLost{};
    }
    const uint64_t number = effects.size();
    effects.push_back(fmt::format("write {} bytes at {}", data.size(), offset));
    const bool fails = number >= fail_at && (fault != Fault::io_error_once || number == fail_at);
    const size_t count = fails ? data.size() / 2 : data.size();
    if (!is_lost(data)) std::memcpy(bytes_.data() + offset, data.data(), count);
    if (fails)
      throw Error(ErrorCode::kIo,
                  fault == Fault::no_space_from_here ? "No space left on device" : "Input/output error");
  }
  void read(uint64_t offset, std::span<std::byte> data) override {
    if (killed_at == 0) throw PowerLost{};
    ENSURE(offset <= size() && data.size() <= size() - offset, "{} bytes at {}", data.size(), offset);
    std::memcpy(data.data(), bytes_.data() + offset, data.size());
  }
  /// With the first `part` bytes of the write in which the writer died.
  std::vector<std::byte> bytes(size_t part) const {
    std::vector<std::byte> result = bytes_;
    if (!dying.second.empty()) std::memcpy(result.data() + dying.first, dying.second.data(), part);
    return result;
  }

  std::vector<std::string> effects;
  std::string lost;  ///< writes that hold this text are not done
  uint64_t killed_at = ~uint64_t(0), fail_at = ~uint64_t(0);
  Fault fault = Fault::io_error_once;
  std::pair<uint64_t, std::vector<std::byte>> dying;

 private:
  bool is_lost(std::span<const std::byte> data) const {
    return !lost.empty() && std::search(data.begin(), data.end(), std::as_bytes(std::span(lost)).begin(),
                                        std::as_bytes(std::span(lost)).end()) != data.end();
  }
  std::vector<std::byte> bytes_;
};

class MemoryRig final : public StoreRig {
 public:
  explicit MemoryRig(std::vector<std::byte> bytes)
      : memory_(std::move(bytes)), store_(ckpt::memory_store(memory_, "memory")) {}
  ckpt::Store& store() override { return *store_; }
  std::unique_ptr<StoreRig> copy() const override { return std::make_unique<MemoryRig>(memory_.bytes(0)); }
  std::unique_ptr<StoreRig> after_crash(Survival survival, uint64_t seed) const override {
    const size_t whole = memory_.dying.second.size();
    const size_t part = survival == Survival::nothing      ? 0
                        : survival == Survival::everything ? whole
                                                           : std::mt19937_64(seed)() % (whole + 1);
    return std::make_unique<MemoryRig>(memory_.bytes(part));
  }
  void crash_after(uint64_t effects) override { memory_.killed_at = memory_.effects.size() + effects; }
  void fail_at(uint64_t effect, Fault fault) override {
    memory_.fail_at = memory_.effects.size() + effect;
    memory_.fault = fault;
  }
  void repair() override { memory_.fail_at = ~uint64_t(0); }
  std::vector<std::string> effects() const override { return memory_.effects; }
  void lie_about(const std::string& text) override { memory_.lost = text; }
  std::vector<std::string> leftovers() const override { return {}; }

 private:
  KillableMemory memory_;
  const std::unique_ptr<ckpt::Store> store_;
};

// ---- object stores

class HandClock final : public Clock {
 public:
  double monotonic_s() override { return now_; }
  double unix_s() override { return now_; }
  void sleep_s(double seconds) override { now_ += seconds; }

 private:
  double now_ = 1e6;
};

class ObjectRig final : public StoreRig {
 public:
  explicit ObjectRig(std::unique_ptr<FaultyObjects> objects)
      : objects_(std::move(objects)),
        client_(ckpt::retrying(*objects_, clock_)),
        store_(ckpt::object_store(*client_,
                                  {.prefix = "runs/a", .where = "s3://bucket/runs/a", .part_bytes = 700})) {}
  ckpt::Store& store() override { return *store_; }
  std::unique_ptr<StoreRig> copy() const override { return std::make_unique<ObjectRig>(objects_->copy()); }
  /// Requests are done or not: the last one that was not answered too.
  std::unique_ptr<StoreRig> after_crash(Survival, uint64_t) const override { return copy(); }
  void crash_after(uint64_t effects) override { objects_->stop_after(effects); }
  void fail_at(uint64_t effect, Fault fault) override {
    const uint64_t count = fault == Fault::io_error_once ? 1 : ~uint64_t(0);
    objects_->fail_at_effect(effect, effect % 2 ? ObjectFault::lost_answer : ObjectFault::server_error,
                             count);
  }
  void repair() override { objects_->repair(); }
  std::vector<std::string> effects() const override { return objects_->effects(); }
  void lie_about(const std::string& name_end) override { objects_->forget_puts_of(name_end); }
  void settle() override { objects_->settle(); }
  std::vector<std::string> leftovers() const override {
    std::vector<std::string> result;
    for (const auto& [key, content] : objects_->objects()) {
      const std::string folder = key.substr(0, key.rfind('/'));
      if (!key.ends_with("/INDEX") && !objects_->objects().count(folder + "/COMMIT")) result.push_back(key);
    }
    return result;
  }

 private:
  const std::unique_ptr<FaultyObjects> objects_;
  HandClock clock_;
  const std::unique_ptr<ckpt::ObjectClient> client_;
  const std::unique_ptr<ckpt::Store> store_;
};

StoreKind object_kind(const char* name, int lag) {
  return {.name = name,
          .make = [=] { return std::make_unique<ObjectRig>(std::make_unique<FaultyObjects>(lag)); },
          .least_failing = 0};
}

}  // namespace

const std::vector<StoreKind>& store_kinds() {
  static const std::vector<StoreKind> kinds{
      folder_kind("POSIX", true, true),
      folder_kind("NFS, Lustre, CephFS: no flags of rename", false, true),
      folder_kind("CIFS, some FUSE: no sync of a folder", true, false),
      folder_kind("neither", false, false),
      folder_kind("NFS that loses answers", false, true, false),
      {.name = "memory of a node",
       .make = [] { return std::make_unique<MemoryRig>(std::vector<std::byte>(200000)); },
       .least_failing = 4,
       .least_absorbed = 3,
       .keeps_all = false},
      object_kind("object store", 0),
      object_kind("object store, listings lag", 5),
  };
  return kinds;
}

const StoreKind& store_kind(const std::string& name) {
  for (const StoreKind& kind : store_kinds())
    if (name == kind.name) return kind;
  ENSURE(false, "no store {}", name);
}

}  // namespace trainctl::test
