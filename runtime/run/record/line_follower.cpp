#include "runtime/run/record/line_follower.h"

#include <algorithm>
#include <span>

namespace trainctl {
namespace {

/// Lines differ within so many bytes: each has a time.
constexpr size_t kCompared = 512;
constexpr uint64_t kAtOnce = 4 << 20;

std::string text_at(File& file, uint64_t offset, uint64_t size) {
  std::string text(size, '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

bool LineFollower::still_there() const {
  if (offset_ == 0) return true;
  if (!fs_.exists(path_)) return false;
  const auto file = fs_.open_read(path_);
  return file->size() >= offset_ &&
         text_at(*file, offset_ - end_of_read_.size(), end_of_read_.size()) == end_of_read_;
}

bool LineFollower::read(const std::function<void(std::string_view)>& take, uint64_t most_bytes) {
  rest_.clear();
  if (!fs_.exists(path_)) return true;
  const auto file = fs_.open_read(path_);
  const uint64_t size = file->size();
  const uint64_t first = offset_;
  for (uint64_t at = offset_; at < size;) {
    if (at - first >= most_bytes) return false;
    const uint64_t count = std::min(kAtOnce, size - at);
    const std::string text = rest_ + text_at(*file, at, count);
    at += count;
    size_t begin = 0;
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
      take(std::string_view(text).substr(begin, end - begin));
      begin = end + 1;
    }
    if (begin > 0) {
      offset_ = at - (text.size() - begin);
      const size_t kept = std::min(begin, kCompared);
      end_of_read_ = text.substr(begin - kept, kept);
    }
    rest_ = text.substr(begin);
  }
  return true;
}

}  // namespace trainctl
