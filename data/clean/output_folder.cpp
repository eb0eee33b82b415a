#include "data/clean/output_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}
std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

OutputFolder::OutputFolder(FileSystem& fs, std::string path)
    : fs_(fs), path_(without_slashes(std::move(path))), partial_(path_ + ".partial") {
  if (path_.empty()) throw Error(ErrorCode::kUsage, "--out is empty; give the name of a folder to make");
  if (fs_.exists(path_) && (!fs_.is_directory(path_) || !fs_.list(path_).empty()))
    throw Error(ErrorCode::kUsage,
                fmt::format("{} exists and is no empty folder; choose another --out, or remove it", path_));
  std::vector<std::string> made;  // from the lowest up
  for (std::string folder = parent_of(path_); !fs_.exists(folder); folder = parent_of(folder))
    made.push_back(folder);
  fs_.make_directories(parent_of(path_));
  for (const std::string& folder : made) fs_.sync_directory(parent_of(folder));
  fs_.make_directory(partial_);
  lock();
  try {
    clear();
  } catch (...) {
    if (lock_ >= 0) ::close(lock_);
    throw;
  }
}

OutputFolder::~OutputFolder() {
  if (!is_published_) {
    try {
      fs_.remove_tree(partial_);
    } catch (...) {  // the first error is the one to report
    }
  }
  if (lock_ >= 0) ::close(lock_);
}

void OutputFolder::lock() {
  if (&fs_ != &real_file_system()) return;
  lock_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat opened {
  }, named{};
  const bool is_same = lock_ >= 0 && ::fstat(lock_, &opened) == 0 && ::stat(partial_.c_str(), &named) == 0 &&
                       opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
  if (is_same && try_lock(lock_).state != LockState::held) return;
  if (lock_ >= 0) ::close(lock_);
  throw Error(
      ErrorCode::kData,
      fmt::format("another trainctl works in {}; wait for its end, or choose another --out", partial_));
}

void OutputFolder::clear() {
  const std::vector<std::string> names = fs_.list(partial_);
  for (const std::string& name : names)
    if (!name.ends_with(".jsonl") && !name.ends_with(".jsonl.zst"))
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}/{} is no rest of an interrupted command; move it, or choose "
                              "another --out, because this command works in {}",
                              partial_, name, partial_));
  for (const std::string& name : names) fs_.remove_tree(partial_ + "/" + name);
}

void OutputFolder::publish() {
  fs_.sync_directory(partial_);
  // rename(2) puts a folder in the place of an empty one, in one step, and refuses any other.
  if (fs_.exists(path_))
    fs_.rename(partial_, path_);
  else
    fs_.rename_no_replace(partial_, path_);
  is_published_ = true;
  fs_.sync_directory(parent_of(path_));
}

}  // namespace trainctl::data
