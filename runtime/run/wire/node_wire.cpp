#include "runtime/run/wire/node_wire.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::wire {
namespace {

using nlohmann::json;

constexpr std::array kNames = {"hello", "beat",   "rank",         "rank_lost", "exited",  "output",
                               "fence", "remote", "gone",         "warned",    "welcome", "refused",
                               "start", "spawn",  "remote_ended", "look",      "kill",    "end"};

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
  } catch (const json::exception& error) {
    malformed(error.what());
  }
}

/// A number of a header: an integer that T holds.
template <typename T>
T integer(const json& header, const char* key, T fallback) {
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

json environment_json(const Environment& environment) {
  json list = json::array();
  for (const auto& [name, value] : environment) list.push_back({name, value});
  return list;
}

Environment environment_of(const json& list) {
  Environment environment;
  for (const json& pair : list) environment.emplace_back(pair.at(0), pair.at(1));
  return environment;
}

json object_of(const std::string& text) {
  json j = try_parse_json(text);
  if (!j.is_object()) malformed("its body is no JSON object");
  return j;
}

}  // namespace

const char* name_of(Kind kind) { return kNames[size_t(kind)]; }

std::string encode(const Message& m) {
  json header = {{"k", name_of(m.kind)}};
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
      const json j = object_of(buffer_.substr(begin_, end - begin_));
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

std::string NodeHello::to_json() const {
  json j = {{"token", token},
            {"name", name},
            {"host", host},
            {"version", version},
            {"address", address},
            {"network", network},
            {"interface", interface},
            {"topology", topology},
            {"pmix_problem", pmix_problem},
            {"mpirun_problem", mpirun_problem},
            {"run_problem", run_problem},
            {"numerics", numerics},
            {"pid", pid},
            {"facts", parse_json(facts.to_json())},
            {"unix_s", unix_s},
            {"newest_epoch", newest_epoch}};
  if (epoch) j["epoch"] = *epoch;
  return dump_json(j);
}

NodeHello NodeHello::from_json(const std::string& text) {
  return checked([&] {
    const json j = object_of(text);
    NodeHello h;
    h.token = j.at("token");
    h.name = j.at("name");
    h.host = j.at("host");
    h.version = j.at("version");
    h.address = j.at("address");
    h.network = j.at("network");
    h.interface = j.at("interface");
    h.topology = j.at("topology");
    h.pmix_problem = j.at("pmix_problem");
    h.mpirun_problem = j.at("mpirun_problem");
    h.run_problem = j.at("run_problem");
    h.numerics = j.at("numerics");
    h.pid = j.at("pid");
    if (j.contains("facts")) h.facts = NodeFacts::from_json(dump_json(j["facts"]));
    h.unix_s = j.at("unix_s");
    h.newest_epoch = j.at("newest_epoch");
    if (j.contains("epoch")) h.epoch = j.at("epoch").get<uint64_t>();
    return h;
  });
}

std::string Welcome::to_json() const {
  return dump_json(json{{"silence_s", silence_s},
                        {"grace_s", grace_s},
                        {"beat_s", beat_s},
                        {"takeover_s", takeover_s},
                        {"keep", keep}});
}

Welcome Welcome::from_json(const std::string& text) {
  return checked([&] {
    const json j = object_of(text);
    return Welcome{j.at("silence_s"), j.at("grace_s"), j.at("beat_s"), j.at("takeover_s"), j.at("keep")};
  });
}

std::string StartOrder::to_json() const {
  json ranges = json::array();
  for (const RankRange& range : ranks) ranges.push_back({range.first, range.count});
  return dump_json(json{{"mark", mark},
                        {"pmix", pmix},
                        {"leads", leads},
                        {"argv", argv},
                        {"environment", environment_json(environment)},
                        {"hosts", hosts},
                        {"ranks", ranges},
                        {"this_host", this_host},
                        {"world_size", world_size},
                        {"session_folder", session_folder},
                        {"shared_memory_folder", shared_memory_folder}});
}

StartOrder StartOrder::from_json(const std::string& text) {
  return checked([&] {
    const json j = object_of(text);
    StartOrder o;
    o.mark = j.at("mark");
    o.pmix = j.at("pmix");
    o.leads = j.at("leads");
    o.argv = j.at("argv").get<std::vector<std::string>>();
    o.environment = environment_of(j.at("environment"));
    o.hosts = j.at("hosts").get<std::vector<std::string>>();
    for (const json& range : j.at("ranks")) o.ranks.push_back({range.at(0), range.at(1)});
    o.this_host = j.at("this_host");
    o.world_size = j.at("world_size");
    o.session_folder = j.at("session_folder");
    o.shared_memory_folder = j.at("shared_memory_folder");
    if (o.argv.empty() && (o.pmix || o.leads)) malformed("a start without a program");
    if (o.world_size < 1 || o.ranks.size() != o.hosts.size() || o.this_host < 0 ||
        size_t(o.this_host) >= o.hosts.size())
      malformed("a start whose hosts and ranks do not agree");
    for (const RankRange& range : o.ranks)
      if (range.first < 0 || range.count < 0 || range.count > o.world_size ||
          range.first > o.world_size - range.count)
        malformed("a start with ranks outside the world");
    return o;
  });
}

static_assert(std::is_trivially_copyable_v<RankDigest>);

std::string pack(const std::vector<RankDigest>& digests) {
  return {reinterpret_cast<const char*>(digests.data()), digests.size() * sizeof(RankDigest)};
}

std::vector<RankDigest> unpack(std::string_view payload) {
  if (payload.size() % sizeof(RankDigest) != 0)
    malformed(fmt::format("{} bytes of ranks' states", payload.size()));
  std::vector<RankDigest> digests(payload.size() / sizeof(RankDigest));
  if (!digests.empty()) std::memcpy(digests.data(), payload.data(), payload.size());
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
