#include "runtime/exchange/new_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include "ckpt/folders.h"
#include "runtime/base/error.h"

namespace trainctl {
namespace {

void remove_quietly(FileSystem& fs, const std::string& path) {
  try {
    if (fs.exists(path)) fs.remove_tree(path);
  } catch (const Error&) {
    // Its name says what it is.
  }
}

void publish(FileSystem& fs, const std::string& from, const std::string& to) {
  fs.sync_directory(from);
  if (fs.exists(to)) fs.remove_directory(to);  // empty, or Error(kIo)
  fs.rename_no_replace(from, to);
  fs.sync_directory(ckpt::parent_of(to));
}

}  // namespace

std::string folder_name(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void make_new_folder(FileSystem& fs, const std::string& path,
                     const std::function<std::string(const std::string& partial)>& write) {
  const std::string name = folder_name(path), partial = fmt::format("{}.partial-{}", name, ::getpid());
  if (name.empty()) throw Error(ErrorCode::kUsage, "--out is empty; name a folder to make");
  if (fs.exists(name) && !(fs.is_directory(name) && fs.list(name).empty()))
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} exists and is not an empty folder; nothing is overwritten, name another --out",
                    name));
  try {
    ckpt::make_durable_directory(fs, ckpt::parent_of(name));
    remove_quietly(fs, partial);  // of an older process that had this id
    fs.make_directory(partial);
    publish(fs, write(partial), name);
  } catch (const std::exception&) {
    remove_quietly(fs, partial);
    throw;
  }
  remove_quietly(fs, partial);  // what is left around a folder in it
}

}  // namespace trainctl
