#include "runtime/sources/object_files.h"

#include <fmt/format.h>

namespace trainctl {
namespace {

class ObjectFile final : public File {
 public:
  ObjectFile(ObjectCache& cache, size_t object) : cache_(cache), object_(object) {}

  void read_at(uint64_t offset, std::span<std::byte> data) override {
    const StoredObject& object = cache_.objects()[object_];
    if (offset > object.bytes || data.size() > object.bytes - offset)
      throw Error(ErrorCode::kIo, fmt::format("{} ends at byte {}, {} more were expected at {}", object.url,
                                              object.bytes, data.size(), offset));
    cache_.read(object_, offset, data);
  }
  uint64_t size() override { return cache_.objects()[object_].bytes; }
  void write_at(uint64_t, std::span<const std::byte>) override { refuse(); }
  void sync() override { refuse(); }

 private:
  [[noreturn]] void refuse() const {
    throw Error(ErrorCode::kIo, fmt::format("{} can only be read", cache_.objects()[object_].url));
  }

  ObjectCache& cache_;
  const size_t object_;
};

}  // namespace

ObjectFiles::ObjectFiles(FileSystem& below, ObjectCache& cache) : below_(below), cache_(cache) {
  for (size_t i = 0; i < cache.objects().size(); ++i) objects_[cache.objects()[i].url] = i;
}

std::unique_ptr<File> ObjectFiles::open_read(const std::string& path) {
  if (!is_object_url(path)) return below_.open_read(path);
  const auto at = objects_.find(path);
  if (at == objects_.end())
    throw Error(ErrorCode::kIo, fmt::format("{} was not looked up in the object store", path));
  return std::make_unique<ObjectFile>(cache_, at->second);
}

bool ObjectFiles::exists(const std::string& path) {
  return is_object_url(path) ? objects_.contains(path) : below_.exists(path);
}

bool ObjectFiles::is_directory(const std::string& path) {
  return !is_object_url(path) && below_.is_directory(path);
}

}  // namespace trainctl
