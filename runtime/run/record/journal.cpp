#include "runtime/run/record/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {
namespace {

off_t size_of_file(int fd) {
  struct stat s;
  return ::fstat(fd, &s) == 0 ? s.st_size : 0;
}

/// Offset just after the last newline of an open file.
off_t end_of_whole_lines(int fd) {
  const off_t size = size_of_file(fd);
  off_t end = size;
  char buffer[4096];
  while (end > 0) {
    const off_t begin = std::max<off_t>(0, end - off_t(sizeof buffer));
    const ssize_t n = ::pread(fd, buffer, size_t(end - begin), begin);
    if (n <= 0) return size;
    for (ssize_t i = n - 1; i >= 0; --i)
      if (buffer[i] == '\n') return begin + i + 1;
    end = begin;
  }
  return 0;
}

/// The step of a line of metrics; nullopt: it has none, or is damaged. What begins and ends as the lines that
/// runs write is not parsed, since a long run has a million, unless it has what a lost write leaves: zeros, or
/// two lines in one.
std::optional<int64_t> step_of_metrics(const std::string& line) {
  constexpr std::string_view kBegin = "{\"v\":", kKey = "\"step\":";
  const size_t key = std::string_view(line).substr(0, 128).find(kKey);
  int64_t step = 0;
  if (key != std::string::npos && line.starts_with(kBegin) && line.ends_with('}') &&
      line.find('\0') == std::string::npos && line.find(kBegin, 1) == std::string::npos)
    if (const char* digits = line.data() + key + kKey.size();
        std::from_chars(digits, line.data() + line.size(), step).ptr != digits)
      return step;
  const Json j = try_parse_json(line);
  if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer()) return std::nullopt;
  return j["step"].get<int64_t>();
}

}  // namespace

Journal::Journal(const std::string& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0)
    throw Error(ErrorCode::kIo, fmt::format("cannot open {} for appending: {}", path, std::strerror(errno)));
  const off_t end = end_of_whole_lines(fd_);
  if (end < size_of_file(fd_) && ::ftruncate(fd_, end) != 0)
    error_ = Problem(fmt::format("cannot truncate {}: {}", path, std::strerror(errno)));
}

Journal::~Journal() { ::close(fd_); }

void Journal::append(const std::string& line) {
  waiting_ += line + "\n";
  write_waiting();
  if (waiting_.size() <= kMostWaitingBytes) return;
  // The first may be the rest of a line that is in the file in part.
  const size_t first = waiting_.find('\n') + 1;
  const size_t end = waiting_.find('\n', std::max(first, waiting_.size() - kMostWaitingBytes));
  waiting_.erase(first, end + 1 - first);
}

/// One write, so that a reader sees whole lines; a short write (full disk) is finished later, never repeated
/// whole.
void Journal::write_waiting() {
  while (!waiting_.empty()) {
    const ssize_t n = ::write(fd_, waiting_.data(), waiting_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (error_.is_none())
        error_ = Problem(fmt::format("cannot append to {}: {}", path_, std::strerror(errno)));
      return;
    }
    waiting_.erase(0, size_t(n));
  }
}

void Journal::sync() {
  write_waiting();
  if (::fsync(fd_) != 0 && error_.is_none())
    error_ = Problem(fmt::format("cannot sync {}: {}", path_, std::strerror(errno)));
}

int64_t Journal::bytes() const { return size_of_file(fd_); }

void BoundedJournal::append(const std::string& line) try {
  if (!journal_) bytes_ = journal_.emplace(path_).bytes();
  if (bytes_ > 0 && bytes_ + int64_t(line.size()) >= most_bytes_) {
    journal_.reset();
    real_file_system().rename(path_, earlier_path_);
    journal_.emplace(path_);
    bytes_ = 0;
  }
  journal_->append(line);
  bytes_ += int64_t(line.size()) + 1;
} catch (const Error&) {
  journal_.reset();
}

std::string event_line(double unix_s, EventKind kind, const std::string& text) {
  Json line = {{"v", 1}, {"t", unix_s}, {"kind", word_of(kind)}};
  const Json fields = try_parse_json(text.empty() ? "{}" : text);
  if (fields.is_object()) {
    for (const auto& [key, value] : fields.items())
      if (!line.contains(key)) line[key] = value;
  } else {
    line["value"] = text;
  }
  return dump_json(line);
}

std::vector<std::string> lines_of(FileSystem& fs, const std::string& path) {
  std::vector<std::string> lines;
  if (!fs.exists(path)) return lines;
  const std::string text = fs.read_text(path);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // torn
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::optional<std::string> last_line_that(FileSystem& fs, const std::string& path,
                                          const std::function<bool(const std::string&)>& is_it) {
  if (!fs.exists(path)) return std::nullopt;
  const std::unique_ptr<File> file = fs.open_read(path);
  std::string text;       // what was read, up to the newest line that was not looked at
  bool is_whole = false;  // its last line ends; what is behind the last newline is torn
  for (uint64_t at = file->size(); at > 0;) {
    std::string block(std::min(at, kReadBytes), 0);
    at -= block.size();
    file->read_at(at, std::as_writable_bytes(std::span(block)));
    text.insert(0, block);
    for (size_t end; (end = text.rfind('\n')) != std::string::npos; text.resize(end)) {
      if (std::string line = text.substr(end + 1); is_whole && is_it(line)) return line;
      is_whole = true;
    }
  }
  return is_whole && is_it(text) ? std::optional(text) : std::nullopt;
}

int64_t supersede_metrics(FileSystem& fs, const std::string& metrics_path, int64_t step,
                          const std::string& side_path) {
  std::string kept, moved;
  int64_t count = 0, last = 0;
  for (const std::string& line : lines_of(fs, metrics_path)) {
    const std::optional<int64_t> at = step_of_metrics(line);
    if (at && *at <= step && *at > last) {
      (kept += line) += '\n';
      last = *at;
    } else {
      moved += line + "\n";
      ++count;
    }
  }
  if (count == 0) return 0;
  // The side file first: a crash between the two leaves a line twice, never nowhere.
  fs.replace_text(side_path, (fs.exists(side_path) ? fs.read_text(side_path) : "") + moved);
  fs.replace_text(metrics_path, kept);
  return count;
}

std::string tail_of(const std::string& path, int most) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  struct stat s;
  std::string text;
  if (::fstat(fd, &s) == 0) {
    constexpr off_t kMostBytes = 64 * 1024;
    const off_t begin = std::max<off_t>(0, s.st_size - kMostBytes);
    text.resize(size_t(s.st_size - begin));
    const ssize_t n = ::pread(fd, text.data(), text.size(), begin);
    text.resize(size_t(std::max<ssize_t>(0, n)));
  }
  ::close(fd);
  size_t at = text.size();
  if (at > 0 && text[at - 1] == '\n') --at;
  for (int line = 0; line < most && at != std::string::npos && at > 0; ++line) at = text.rfind('\n', at - 1);
  return at == std::string::npos || at == 0 ? text : text.substr(at + 1);
}

}  // namespace trainctl
