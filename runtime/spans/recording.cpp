#include "runtime/spans/recording.h"

#include <fmt/format.h>

#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/record.h"

namespace trainctl {
namespace {

/// The first line of a file.
struct Head {
  std::string version;
  uint64_t spans = 0, hash = 0;  ///< number and XXH3 of the bytes behind the line
  Recording recording;
  static void fields(auto& f, auto& r) {
    f("version", r.version);
    f("spans", r.spans);
    f("hash", r.hash);
    f("recording", r.recording);
  }
};

[[noreturn]] void damaged(const std::string& name, const std::string& why) {
  throw Error(ErrorCode::kIo, fmt::format("{} is not a whole recording: {}", name, why));
}

/// The tables have the numbers, and the time goes forward.
bool is_sound(const Span& s, const Recording& r) {
  return int(s.kind) < kSpanKinds && s.begin_ns <= s.end_ns &&
         (s.group == Span::kNone || s.group < r.groups.size()) &&
         (s.text == Span::kNone || s.text < r.texts.size());
}

}  // namespace

std::string recording_file_name(int rank) { return fmt::format("rank-{:05d}.spans", rank); }

std::string Recording::encode() const {
  const std::string_view bytes(reinterpret_cast<const char*>(spans.data()), spans.size() * sizeof(Span));
  Head head{.version = TRAINCTL_VERSION, .spans = spans.size(), .hash = xxh3(bytes), .recording = {}};
  head.recording = *this;
  head.recording.spans.clear();
  return record_text(head) + "\n" + std::string(bytes);
}

Recording Recording::decode(const std::string& bytes, const std::string& name) {
  const size_t end = bytes.find('\n');
  if (end == std::string::npos) damaged(name, "it has no heading");
  Head head;
  try {
    head = record_of_text<Head>(std::string_view(bytes).substr(0, end));
  } catch (const BadRecord& error) {
    damaged(name, error.what());
  }
  if (head.version != TRAINCTL_VERSION)
    damaged(name, fmt::format("trainctl {} wrote it, and this is {}", head.version, TRAINCTL_VERSION));
  const std::string_view body = std::string_view(bytes).substr(end + 1);
  if (body.size() != head.spans * sizeof(Span))
    damaged(name,
            fmt::format("{} bytes of spans where {} are announced", body.size(), head.spans * sizeof(Span)));
  if (xxh3(body) != head.hash) damaged(name, "its bytes are not those that were written");
  Recording recording = std::move(head.recording);
  recording.spans.resize(head.spans);
  if (!body.empty()) std::memcpy(recording.spans.data(), body.data(), body.size());
  for (const Span& span : recording.spans)
    if (!is_sound(span, recording)) damaged(name, "a span is outside its range");
  return recording;
}

}  // namespace trainctl
