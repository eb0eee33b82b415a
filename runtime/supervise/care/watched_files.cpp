#include "runtime/supervise/care/watched_files.h"

namespace trainctl {
namespace {

class WatchedFile final : public File {
 public:
  WatchedFile(std::unique_ptr<File> file, const FileWatch& watch) : file_(std::move(file)), watch_(watch) {
    if (watch_.from_medium) file_->drop_cache();
  }
  void write_at(uint64_t offset, std::span<const std::byte> data) override { file_->write_at(offset, data); }
  void read_at(uint64_t offset, std::span<std::byte> data) override {
    file_->read_at(offset, data);
    watch_.on_read(data.size());
  }
  uint64_t size() override { return file_->size(); }
  void sync() override { file_->sync(); }

 private:
  const std::unique_ptr<File> file_;
  const FileWatch watch_;
};

class WatchedFiles final : public ckpt::StoredFiles {
 public:
  WatchedFiles(std::unique_ptr<ckpt::StoredFiles> files, FileWatch watch)
      : files_(std::move(files)), watch_(std::move(watch)) {}
  std::string where() const override { return files_->where(); }
  std::optional<int64_t> named_step() const override { return files_->named_step(); }
  bool has(const std::string& name) override { return files_->has(name); }
  std::unique_ptr<File> open(const std::string& name) override {
    return std::make_unique<WatchedFile>(files_->open(name), watch_);
  }
  std::vector<std::string> names() override { return files_->names(); }
  std::unique_ptr<ckpt::NewFile> replace(const std::string& name, uint64_t bytes) override {
    return files_->replace(name, bytes);
  }

 private:
  const std::unique_ptr<ckpt::StoredFiles> files_;
  const FileWatch watch_;
};

}  // namespace

std::unique_ptr<ckpt::StoredFiles> watched_files(std::unique_ptr<ckpt::StoredFiles> files, FileWatch watch) {
  return std::make_unique<WatchedFiles>(std::move(files), std::move(watch));
}

}  // namespace trainctl
