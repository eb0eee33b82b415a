#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "cmd/data.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/units.h"

namespace trainctl::cmd {

DataProgress::DataProgress(bool quiet)
    : quiet_(quiet),
      terminal_(isatty(STDERR_FILENO)),
      start_(real_clock().monotonic_s()),
      next_(start_ + 2),
      said_s_(start_) {
  if (!quiet_ && terminal_) ticking_ = std::jthread([this](std::stop_token stop) { tick(std::move(stop)); });
}

DataProgress::~DataProgress() {
  ticking_ = {};  // waits for it
  clear();
}

void DataProgress::tick(std::stop_token stop) {
  constexpr double kSilentS = 1;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    stopping_.wait_for(lock, stop, std::chrono::milliseconds(500), [] { return false; });
    const double now = real_clock().monotonic_s();
    if (stop.stop_requested() || doing_.empty() || now - said_s_ < kSilentS || now < next_) continue;
    fmt::print(stderr, "\r{}, {}\x1b[K", text_, short_duration(now - start_));
    std::fflush(stderr);
    shown_ = true;
  }
}

void DataProgress::operator()(const data::CorpusProgress& at) {
  const std::lock_guard lock(mutex_);
  const double now = real_clock().monotonic_s();
  if (!first_ || doing_ != at.doing) {
    first_ = at;
    text_ = doing_ = at.doing;
    start_ = now;
  }
  if (quiet_ || now < next_) return;
  const double seconds = std::max(now - start_, 1e-3);
  const double rate = double(at.text_bytes - first_->text_bytes) / 1e6 / seconds;
  const uint64_t done = at.stored_bytes - first_->stored_bytes, left = at.stored_total - at.stored_bytes;
  std::string text = doing_;
  if (at.stored_bytes > 0)
    text += fmt::format(": {} of {}", size_text(at.stored_bytes), size_text(at.stored_total));
  if (done > 0 && at.text_bytes > 0)
    text += fmt::format(", {:.1f} MB/s of text, {} left", rate,
                        short_duration(seconds * double(left) / double(done)));
  fmt::print(stderr, "{}{}{}", terminal_ ? "\r" : "", text, terminal_ ? "\x1b[K" : "\n");
  std::fflush(stderr);
  shown_ = true;
  said_s_ = now;
  text_ = std::move(text);
  next_ = now + (terminal_ ? 0.5 : 10);
}

void DataProgress::note(const std::string& text) {
  if (quiet_) return;
  const std::lock_guard lock(mutex_);
  clear();
  fmt::print(stderr, "{}\n", text);
}

void DataProgress::clear() {
  if (shown_ && terminal_) fmt::print(stderr, "\r\x1b[K");
  shown_ = false;
}

std::string unescaped(const std::string& word) {
  std::string text;
  for (size_t i = 0; i < word.size(); ++i) {
    const size_t name = word[i] == '\\' && i + 1 < word.size() ? std::string_view("nrtf\\").find(word[i + 1])
                                                               : std::string::npos;
    if (name == std::string::npos) {
      text += word[i];
    } else {
      text += "\n\r\t\f\\"[name];
      ++i;
    }
  }
  return text;
}

}  // namespace trainctl::cmd
