#include "runtime/run/wire/node_wire.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/record.h"

namespace trainctl::wire {

const char* const kProgramVersion = TRAINCTL_VERSION;

namespace {

constexpr std::array kNames = {"hello", "beat",   "rank",         "rank_lost", "exited",  "output",
                               "fence", "remote", "gone",         "warned",    "welcome", "refused",
                               "start", "spawn",  "remote_ended", "look",      "kill",    "end",
                               "pieces", "keep_only", "answered", "clock", "times"};

[[noreturn]] void malformed(const std::string& why) {
  throw Error(ErrorCode::kLauncher,
              fmt::format("the connection of a node carried what is no message: {}", why));
}

std::optional<Kind> kind_of(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return Kind(i);
  return std::nullopt;
}

/// Runs `read` and turns what the JSON library throws into one sentence.
template <typename Read>
auto checked(Read read) {
  try {
    return read();
  } catch (const JsonError& error) {
    malformed(error.what());
  }
}

/// A number of a header: an integer that T holds.
template <typename T>
T integer(const Json& header, const char* key, T fallback) {
  const auto found = header.find(key);
  if (found == header.end()) return fallback;
  const bool fits = found->is_number_unsigned()
                        ? std::in_range<T>(found->get<uint64_t>())
                        : found->is_number_integer() && std::in_range<T>(found->get<int64_t>());
  if (!fits) malformed(fmt::format("a header whose \"{}\" is no such number", key));
  return found->get<T>();
}

/// Whether it is what a C++ program could have written: any other byte in a bool is undefined behaviour.
bool is_bool(const bool& value) {
  uint8_t byte;
  std::memcpy(&byte, &value, 1);
  return byte <= 1;
}

Json object_of(const std::string& text) {
  Json j = try_parse_json(text);
  if (!j.is_object()) malformed("its body is no JSON object");
  return j;
}

template <typename R>
R body_of(const std::string& text) try {
  return record_of<R>(object_of(text));
} catch (const BadRecord& error) {
  malformed(error.what());
}

}  // namespace

const char* name_of(Kind kind) { return kNames[size_t(kind)]; }

std::string encode(const Message& m) {
  Json header = {{"k", name_of(m.kind)}};
  if (m.epoch) header["e"] = m.epoch;
  if (m.rank >= 0) header["r"] = m.rank;
  if (m.number) header["n"] = m.number;
  if (m.sequence) header["s"] = m.sequence;
  if (!m.text.empty()) header["t"] = m.text;
  if (!m.payload.empty()) header["b"] = m.payload.size();
  std::string bytes = dump_json(header) + "\n";
  ENSURE(bytes.size() <= kMaxHeaderBytes && m.payload.size() <= kMaxPayloadBytes, "{} and {} bytes",
         bytes.size(), m.payload.size());
  return bytes + m.payload;
}

void MessageReader::forget_read() {
  buffer_.erase(0, begin_);
  begin_ = searched_ = 0;
}

std::optional<Message> MessageReader::next() {
  if (most_ < kMaxPayloadBytes && received_ > kMaxHeaderBytes)
    malformed(fmt::format("{} bytes before the greeting", received_));
  if (!header_) {
    const size_t end = buffer_.find('\n', std::max(begin_, searched_));
    if (end == std::string::npos) {
      if (buffer_.size() - begin_ > kMaxHeaderBytes) malformed("a line without end");
      forget_read();
      searched_ = buffer_.size();
      return std::nullopt;
    }
    if (end - begin_ > kMaxHeaderBytes) malformed("a line that is too long");
    header_ = checked([&] {
      const Json j = object_of(buffer_.substr(begin_, end - begin_));
      const auto kind = kind_of(j.at("k").get<std::string>());
      if (!kind) malformed(fmt::format("a message of unknown kind {:.20}", j.at("k").get<std::string>()));
      payload_bytes_ = integer<size_t>(j, "b", 0);
      return Message{.kind = *kind,
                     .epoch = integer<uint64_t>(j, "e", 0),
                     .rank = integer<int>(j, "r", -1),
                     .number = integer<int64_t>(j, "n", 0),
                     .sequence = integer<uint64_t>(j, "s", 0),
                     .text = j.value("t", std::string())};
    });
    if (payload_bytes_ > most_) malformed(fmt::format("{} bytes in one message", payload_bytes_));
    begin_ = searched_ = end + 1;
  }
  if (buffer_.size() - begin_ < payload_bytes_) {
    forget_read();
    return std::nullopt;
  }
  Message message = std::move(*header_);
  header_.reset();
  message.payload = buffer_.substr(begin_, payload_bytes_);
  begin_ += payload_bytes_;
  searched_ = begin_;
  if (begin_ == buffer_.size()) buffer_.clear(), begin_ = searched_ = 0;
  return message;
}

std::string NodeHello::to_json() const { return record_text(*this); }
NodeHello NodeHello::from_json(const std::string& text) { return body_of<NodeHello>(text); }

std::string Welcome::to_json() const { return record_text(*this); }
Welcome Welcome::from_json(const std::string& text) { return body_of<Welcome>(text); }

std::string OtherMemories::to_json() const { return record_text(*this); }
OtherMemories OtherMemories::from_json(const std::string& text) { return body_of<OtherMemories>(text); }

std::string PiecesAnswer::to_json() const { return record_text(*this); }
PiecesAnswer PiecesAnswer::from_json(const std::string& text) { return body_of<PiecesAnswer>(text); }

std::string StartOrder::to_json() const { return record_text(*this); }

StartOrder StartOrder::from_json(const std::string& text) {
  auto o = body_of<StartOrder>(text);
  if (o.argv.empty() && (o.pmix || o.leads)) malformed("a start without a program");
  if (o.world_size < 1 || o.ranks.size() != o.hosts.size() || o.this_host < 0 ||
      size_t(o.this_host) >= o.hosts.size())
    malformed("a start whose hosts and ranks do not agree");
  for (const RankRange& range : o.ranks)
    if (range.first < 0 || range.count < 0 || range.count > o.world_size ||
        range.first > o.world_size - range.count)
      malformed("a start with ranks outside the world");
  return o;
}

namespace {

template <typename T>
std::string bytes_of(const std::vector<T>& array) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(array.data()), array.size() * sizeof(T)};
}

template <typename T>
std::vector<T> array_of(std::string_view bytes, const char* what) {
  if (bytes.size() % sizeof(T) != 0) malformed(fmt::format("{} bytes of ranks' {}", bytes.size(), what));
  std::vector<T> array(bytes.size() / sizeof(T));
  if (!array.empty()) std::memcpy(array.data(), bytes.data(), bytes.size());
  return array;
}

}  // namespace

std::string pack(const std::vector<RankDigest>& digests) { return bytes_of(digests); }
std::string pack(const std::vector<RankStepTimes>& times) { return bytes_of(times); }

std::vector<RankStepTimes> unpack_times(std::string_view payload) {
  return array_of<RankStepTimes>(payload, "times");
}

std::vector<RankDigest> unpack(std::string_view payload) {
  auto digests = array_of<RankDigest>(payload, "states");
  for (RankDigest& d : digests) {
    if (!d.has_activity) d.activity = {};
    const Activity& a = d.activity;
    const bool sound = a.kind <= Activity::waiting && a.phase <= RunPhase::leaving && is_bool(a.in_bytes) &&
                       is_bool(a.more_peers) && a.peer_count >= 0 && a.peer_count <= Activity::kMostPeers &&
                       std::isfinite(d.silent_s) && d.silent_s >= 0;
    if (!sound) malformed("a rank's state outside its range");
  }
  return digests;
}

}  // namespace trainctl::wire
