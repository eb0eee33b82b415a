#include "runtime/supervise/care/data_digests.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/record.h"
#include "runtime/base/units.h"
#include "runtime/supervise/care/low_priority.h"

namespace trainctl {
namespace {

constexpr uint64_t kBlockBytes = 4 << 20;
constexpr double kSaveIntervalS = 5;
/// Of a file that changes while it is read.
constexpr int kMostTries = 3;

/// Size and time of change now; none if the file is missing or cannot be seen.
std::optional<DataFile> look_at(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return DataFile{.path = path,
                  .bytes = uint64_t(info.st_size),
                  .changed_s = info.st_mtim.tv_sec,
                  .changed_ns = info.st_mtim.tv_nsec,
                  .digest = ""};
}

std::string difference(const DataFile& then, const DataFile& now) {
  const std::string what = then.bytes != now.bytes
                               ? fmt::format("{} bytes then, {} now", then.bytes, now.bytes)
                               : fmt::format("digest {} then, {} now", then.digest, now.digest);
  return fmt::format("{} is not the file that the run began with: {}; put the old file back", now.path, what);
}

}  // namespace

/// Also owned by the thread.
struct DataDigests::Work {
  Work(FileSystem& f, Options o) : fs(f), options(std::move(o)) {
    try {
      if (fs.exists(options.record))
        for (DataFile& file : read_record<DataFiles>(fs.read_text(options.record), options.record).files)
          known.emplace(file.path, file);
    } catch (const Error&) {
      // Every file is read again.
    }
  }

  std::optional<DataFile> find(const std::string& path) const {
    const std::lock_guard lock(mutex);
    const auto found = known.find(path);
    return found == known.end() ? std::nullopt : std::optional(found->second);
  }

  /// The file with its digest; none if it was given up, or the file changed while it was read.
  std::optional<DataFile> read(DataFile file, double bytes_per_s,
                               const std::function<bool()>& is_given_up) const {
    const auto source = fs.open_read(file.path);
    Xxh3Stream hash;
    std::vector<std::byte> block(size_t(std::min(kBlockBytes, std::max<uint64_t>(1, file.bytes))));
    const double begun_s = real_clock().monotonic_s();
    for (uint64_t offset = 0; offset < file.bytes;) {
      if (is_given_up()) return std::nullopt;
      const auto part = std::span(block).first(size_t(std::min<uint64_t>(block.size(), file.bytes - offset)));
      source->read_at(offset, part);
      hash.update(part);
      offset += part.size();
      const double due_s = bytes_per_s > 0 ? begun_s + double(offset) / bytes_per_s : 0;
      while (real_clock().monotonic_s() < due_s && !is_given_up())
        real_clock().sleep_s(std::min(0.1, due_s - real_clock().monotonic_s()));
    }
    const auto now = look_at(file.path);
    if (!now || !now->looks_like(file)) return std::nullopt;
    file.digest = hex64(hash.digest());
    return file;
  }

  void record(const DataFile& file) {
    const std::lock_guard lock(mutex);
    known[file.path] = file;
  }

  /// A record that cannot be written costs that files are read again.
  void save() {
    const std::lock_guard lock(mutex);
    if (options.must_hold) options.must_hold();
    DataFiles all;
    for (const auto& [path, file] : known) all.files.push_back(file);
    try {
      fs.replace_text(options.record, record_text(all) + "\n");
    } catch (const Error&) {
    }
  }

  /// In the thread. A file that cannot be read now is read by the next supervisor.
  void record_missing() {
    take_lowest_priority();
    const auto is_given_up = [this] { return ends.load(); };
    double saved_s = real_clock().monotonic_s();
    bool has_news = false;
    for (const std::string& path : options.paths) {
      if (is_given_up()) break;
      if (find(path)) continue;
      try {
        const auto file = look_at(path);
        const auto whole = file ? read(*file, options.read_bytes_per_s, is_given_up) : std::nullopt;
        if (!whole) continue;
        record(*whole);
        has_news = true;
      } catch (const Error&) {
        continue;
      }
      if (real_clock().monotonic_s() < saved_s + kSaveIntervalS) continue;
      save();
      saved_s = real_clock().monotonic_s();
      has_news = false;
    }
    if (has_news) save();
  }

  FileSystem& fs;
  const Options options;
  mutable std::mutex mutex;  ///< of what follows, and of the record
  std::map<std::string, DataFile> known;
  std::atomic<bool> ends = false, is_over = false;
};

DataDigests::DataDigests(FileSystem& fs, Options options)
    : work_(std::make_shared<Work>(fs, std::move(options))) {}

DataDigests::~DataDigests() {
  if (!thread_.joinable()) return;
  work_->ends = true;
  constexpr double kPatienceS = 5, kLookS = 0.01;
  for (double waited_s = 0; !work_->is_over && waited_s < kPatienceS; waited_s += kLookS)
    real_clock().sleep_s(kLookS);
  work_->is_over ? thread_.join() : thread_.detach();
}

Problem DataDigests::find_changed(const std::function<void(const std::string&)>& say,
                                  const std::function<bool()>& is_given_up) {
  bool has_news = false;
  Problem changed = Problem::none();
  for (const std::string& path : work_->options.paths) {
    const auto then = work_->find(path);
    auto file = then ? look_at(path) : std::nullopt;
    if (!file || file->looks_like(*then)) continue;
    say(fmt::format("   {} was written to since the run began: comparing its {}B", path,
                    short_number(double(file->bytes))));
    try {
      std::optional<DataFile> now;
      for (int tries = 0; tries < kMostTries && file && file->bytes == then->bytes && !now; ++tries) {
        now = work_->read(*file, 0, is_given_up);
        if (is_given_up()) return Problem::none();
        if (!now) file = look_at(path);
      }
      if (!file) continue;  // removed: who opens it says so
      if (file->bytes == then->bytes && !now)
        changed = Problem(fmt::format("{} is being written to; wait until that has ended", path));
      else if (!now || now->digest != then->digest)
        changed = Problem(difference(*then, now ? *now : *file));
      if (changed.exists()) break;
      work_->record(*now);
      has_news = true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIo) throw;
      say(fmt::format(" ! {} is not compared: {}", path, error.what()));
    }
  }
  if (has_news) work_->save();
  return changed;
}

void DataDigests::begin() {
  if (thread_.joinable()) return;
  thread_ = std::thread([work = work_] {
    try {
      work->record_missing();
    } catch (const std::exception&) {
      // The run is another supervisor's now.
    }
    work->is_over = true;
  });
}

}  // namespace trainctl
