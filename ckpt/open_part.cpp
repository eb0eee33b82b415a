#include "ckpt/open_part.h"

#include <fmt/format.h>

#include <exception>
#include <istream>
#include <streambuf>
#include <vector>

#include "ckpt/fail.h"
#include "ckpt/manifest.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"

namespace trainctl::ckpt {
namespace {

/// The text of a file, in blocks, which are hashed on their way.
class HashedText final : public std::streambuf {
 public:
  explicit HashedText(std::unique_ptr<File> file)
      : file_(std::move(file)), bytes_(file_->size()), block_(kBlock) {}
  /// Of the whole file, whatever was read of it.
  std::string sha256() {
    while (next()) {
    }
    return hash_.hex();
  }

 protected:
  int_type underflow() override { return next() ? traits_type::to_int_type(*gptr()) : traits_type::eof(); }

 private:
  static constexpr uint64_t kBlock = uint64_t(1) << 18;
  bool next() {
    const uint64_t count = std::min(kBlock, bytes_ - at_);
    if (count == 0) return false;
    file_->read_at(at_, std::as_writable_bytes(std::span(block_).first(count)));
    hash_.update({block_.data(), count});
    at_ += count;
    setg(block_.data(), block_.data(), block_.data() + count);
    return true;
  }

  const std::unique_ptr<File> file_;
  const uint64_t bytes_;
  uint64_t at_ = 0;
  std::vector<char> block_;
  Sha256Stream hash_;
};

Manifest read_manifest(StoredFiles& files, std::span<const WantedBox> wanted, const std::string& sha256) {
  const std::string path = files.where() + "/" + kManifestName;
  HashedText text(files.open(kManifestName));
  std::istream stream(&text);
  stream.exceptions(std::ios::badbit);  // errors of reads get through
  Manifest manifest;
  std::exception_ptr problem;
  try {
    manifest = parse_manifest_part(stream, path, wanted);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo) throw;
    problem = std::current_exception();
  }
  if (const std::string found = text.sha256(); found != sha256)
    fail(fmt::format(
        "{} has the SHA-256 {} instead of {}: it is damaged, or not that of the checkpoint that was chosen",
        path, found, sha256));
  if (problem) std::rethrow_exception(problem);
  return manifest;
}

}  // namespace

std::string manifest_sha256(StoredFiles& files) {
  const std::string path = files.where() + "/" + kCommitName;
  try {
    const auto commit = Json::parse(files.read_text(kCommitName));
    return commit.at("manifest_sha256").get<std::string>();
  } catch (const JsonError& error) {
    fail(fmt::format("{} is damaged: {}", path, error.what()));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    fail(error.what());
  }
}

std::unique_ptr<Checkpoint> open_part(std::unique_ptr<StoredFiles> files, std::span<const WantedBox> wanted,
                                      const std::string& sha256) {
  try {
    Manifest manifest = read_manifest(*files, wanted, sha256.empty() ? manifest_sha256(*files) : sha256);
    const auto named_step = files->named_step();
    if (named_step && *named_step != manifest.state.step)
      fail(fmt::format("{} holds step {}: the folder was renamed", files->where(), manifest.state.step));
    return open_with_manifest(std::move(files), std::move(manifest), ShardSizes::unchecked);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    fail(error.what());
  }
}

}  // namespace trainctl::ckpt
