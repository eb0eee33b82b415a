// A file system in memory that knows which effects are durable, and can lose power or fail at any of them.
//
// The model is POSIX without favours: a file's content is durable only once File::sync has returned, a name only
// once sync_directory of the folder that holds it has (for a rename: the folder it moves to). Until then each effect may or may not
// survive, in any combination, and a write may survive in part. A rename is atomic: it survives as a whole or not at all.
// After a failed sync the file's unsynced writes are gone for good, whatever a second sync says.
//
// Every call that changes something (create, write, rename, remove, make_directory and the syncs) is one effect, numbered from 0.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"

namespace trainctl::test {

/// Thrown by every call from the moment the power is gone. No std::exception: nothing that cleans up after errors may catch it.
struct PowerLost {};

enum class Survival { nothing, everything, random };

/// What goes wrong at an effect.
enum class Fault {
  no_space_from_here,  ///< the disk is full: this and every later create, write and make_directory fail, until repair()
  io_error_once,  ///< this effect fails (a write after half of its bytes, a sync losing what was not yet durable)
  io_error_from_here,  ///< this and every later effect fail, until repair()
};

class PowerLossFileSystem final : public FileSystem {
 public:
  PowerLossFileSystem();

  /// The power goes when `effects` more effects have happened (0: at once).
  void lose_power_after(uint64_t effects);
  /// The effect number `effect` from now on fails.
  void fail_at(uint64_t effect, Fault fault);
  void repair();
  /// How many effects have failed.
  uint64_t failures() const;
  /// Reads of files whose path contains `part` fail as on a disk that does not answer, until repair().
  void fail_reads_of(const std::string& part);
  /// The file system refuses renameat2's flag, as NFS, Lustre and CephFS do (EINVAL, ENOSYS or EOPNOTSUPP all come to this).
  void refuse_rename_no_replace() { refuses_no_replace_ = true; }
  /// The file system cannot sync a folder. It makes names durable by itself and in order, as a server does that answers only after its
  /// own disk has: nothing else could give a promise there.
  void refuse_sync_directory() { refuses_sync_directory_ = true; }
  /// Every plain rename is done, but reported as a missing file: an NFS server whose first answer was lost.
  void lose_answers_of_rename() { loses_answers_ = true; }
  /// Syncs of paths that end like this, a word of a claim aside, report success and do nothing; for tests of tests.
  void ignore_syncs_of(const std::string& path_end) { ignored_syncs_.insert(path_end); }

  /// The machine as it comes up again: what was durable, and of the rest what `survival` says. No faults, everything durable.
  std::unique_ptr<PowerLossFileSystem> after_power_loss(Survival survival, uint64_t seed) const;
  /// A copy of everything as it is now, faults aside.
  std::unique_ptr<PowerLossFileSystem> copy() const;

  /// Effects so far, as text ("write /ckpt/x 4096"), for messages.
  const std::vector<std::string>& effects() const { return effects_; }
  /// Every file by path with its content, as a running program sees it.
  std::map<std::string, std::string> files() const;
  /// Every folder by path, likewise.
  std::vector<std::string> folders() const;
  /// Overwrites bytes of a file behind everybody's back.
  void poke(const std::string& path, const std::function<void(std::string&)>& change);

  std::unique_ptr<File> create(const std::string& path) override;
  std::unique_ptr<File> open_read(const std::string& path) override;
  std::unique_ptr<File> open_write(const std::string& path) override { return open_read(path); }
  void make_directory(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  bool try_rename_no_replace(const std::string& from, const std::string& to) override;
  void remove_file(const std::string& path) override;
  void remove_directory(const std::string& path) override;
  bool try_sync_directory(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  bool exists(const std::string& path) override;
  bool is_directory(const std::string& path) override;

 private:
  friend class PowerLossFile;

  struct Node {
    bool directory = false;
    std::string content, durable_content;
    std::map<std::string, size_t> entries, durable_entries;  // name -> node
  };
  enum class Kind { add, remove, move, write };
  struct Pending {
    Kind kind;
    size_t node = 0;
    size_t folder = 0, from_folder = 0;  // of add, remove, move
    std::string name, from_name;
    uint64_t offset = 0;  // of write
    std::string data;
  };
  struct Place {
    size_t folder = 0;
    std::string name;
  };

  size_t find(const std::string& path) const;  // kNone if absent
  Place place(const std::string& path) const;  // the folder must exist
  size_t need(const std::string& path, const char* what) const;
  const char* why() const;  ///< the errno text of the fault
  /// Counts an effect; throws PowerLost, or returns true if it must fail.
  bool begin_effect(const std::string& text, bool needs_space);
  void move(const std::string& from, const std::string& to, bool replace);
  /// Every change of names so far becomes durable where the file system cannot sync a folder.
  void keep_names();
  void write(size_t node, const std::string& path, uint64_t offset, std::span<const std::byte> data);
  void sync(size_t node, const std::string& path);
  bool sync_is_ignored(const std::string& path) const;
  /// Applies an effect to the durable state, as far as it still makes sense there.
  void make_durable(const Pending& effect);
  void check_power() const;

  mutable std::mutex mutex_;
  std::vector<Node> nodes_;
  std::vector<Pending> pending_;
  std::vector<std::string> effects_;
  std::set<std::string> ignored_syncs_;
  std::string unread_;  // reads of paths that contain it fail; "": none
  uint64_t power_until_ = ~uint64_t(0), fault_at_ = ~uint64_t(0), failures_ = 0;
  Fault fault_ = Fault::io_error_once;
  bool refuses_no_replace_ = false, refuses_sync_directory_ = false, loses_answers_ = false;
};

}  // namespace trainctl::test
