#include "runtime/run/wire/protocol.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <charconv>
#include <cmath>

#include "ckpt/state_record.h"
#include "runtime/base/error.h"
#include "runtime/base/record.h"

// What the wire carries of types of other layers.

template <>
struct trainctl::RecordOf<trainctl::StepReport> {
  static void fields(auto& f, auto& r) {
    f.written("step", r.line.step);
    f("log", r.log);
    f("json", as_text(r.line));
    f.maybe("work", r.work);
    f.when(r.each_rank, "each_rank", r.each_rank);
    f.when(!r.experts.empty(), "experts", r.experts);
  }
};

template <>
struct trainctl::RecordOf<trainctl::StepWork> {
  static void fields(auto& f, auto& r) {
    f("tokens", r.tokens);
    f("flops_per_token_causal", r.flops_per_token_causal);
    f("flops_per_token_full", r.flops_per_token_full);
    f("peak_flops_per_s", r.peak_flops_per_s);
    f("stages", r.stages);
  }
};

template <>
struct trainctl::RecordOf<trainctl::TraceOrder> {
  static void fields(auto& f, auto& r) {
    f("number", r.number);
    f("first_step", r.first_step);
    f("steps", r.steps);
    f("ranks", r.ranks);
    f("folder", r.folder);
  }
};

template <>
struct trainctl::RecordOf<trainctl::TraceResult> {
  static void fields(auto& f, auto& r) {
    f("number", r.number);
    f("first_step", r.first_step);
    f("last_step", r.last_step);
    f("spans", r.spans);
    f("overwritten", r.overwritten);
    f("problem", r.problem);
  }
};

namespace trainctl {

/// An array, in the order of the members. A number that is not known is null.
template <>
struct JsonForm<RankTimes> {
  static constexpr size_t kNumbers = sizeof(RankTimes) / sizeof(double);
  using Numbers = std::array<double, kNumbers>;
  static Json to(const RankTimes& times) {
    Json j = Json::array();
    for (const double number : std::bit_cast<Numbers>(times))
      j.push_back(std::isfinite(number) ? Json(number) : Json());
    return j;
  }
  static void read(const Json& j, RankTimes& times) {
    Numbers numbers;
    for (size_t i = 0; i < kNumbers; ++i) numbers[i] = j.at(i).is_null() ? NAN : j.at(i).get<double>();
    times = std::bit_cast<RankTimes>(numbers);
  }
};

template <>
struct JsonForm<ckpt::Tensor> {
  static Json to(const ckpt::Tensor& t) { return {t.name, int(t.role), int(t.dtype), t.shape}; }
  static void read(const Json& j, ckpt::Tensor& t) {
    const int role = j.at(1), dtype = j.at(2);
    constexpr int kLastRole = int(std::size(Words<ckpt::Role>::list)) - 1, kLastType = int(DType::f16);
    if (role < 0 || role > kLastRole || dtype < 0 || dtype > kLastType)
      throw BadRecord(fmt::format("a tensor of role {} and type {}", role, dtype));
    t = {j.at(0), ckpt::Role(role), DType(dtype), j.at(3)};
  }
};

/// As its own text; empty where there is no file: the rank owns nothing, or could not write.
template <>
struct JsonForm<ckpt::ShardReceipt> {
  static Json to(const ckpt::ShardReceipt& receipt) {
    return receipt.file.empty() ? std::string() : receipt.to_json();
  }
  static void read(const Json& j, ckpt::ShardReceipt& receipt) {
    const auto text = j.get<std::string>();
    try {
      receipt = text.empty() ? ckpt::ShardReceipt{} : ckpt::ShardReceipt::from_json(text);
    } catch (const Error& error) {
      throw BadRecord(error.what());
    }
  }
};

namespace protocol {
namespace {

enum class UpKind { hello, beat, times, step, event, shard, trace, done };

}  // namespace
}  // namespace protocol

template <>
struct Words<protocol::UpKind> {
  static constexpr std::string_view list[] = {"hello", "beat",  "times", "step",
                                              "event", "shard", "trace", "done"};
};
template <>
struct Words<protocol::Down::Kind> {
  static constexpr std::string_view list[] = {"welcome", "stop", "saved", "alive", "trace"};
};
}  // namespace trainctl

namespace trainctl::protocol {
namespace {

/// One line, with the kind under "k". Invalid UTF-8 (a file name in an error message) is replaced, not thrown
/// over.
template <typename Kind>
std::string line_of(Kind kind, Json body = Json::object()) {
  body["k"] = word_of(kind);
  return dump_json(body) + "\n";
}

Json parse_line(std::string_view line) {
  Json message = try_parse_json(line);
  if (!message.is_object() || !message.contains("k"))
    throw Error(ErrorCode::kLauncher,
                fmt::format("the control channel carried a line that is no message: {:.80}", line));
  return message;
}

[[noreturn]] void malformed(const std::exception& error) {
  throw Error(ErrorCode::kLauncher,
              fmt::format("the control channel carried a malformed message: {}", error.what()));
}

template <typename Kind>
Kind kind_of(const Json& message) {
  const auto word = message.at("k").get<std::string>();
  if (const auto kind = of_word<Kind>(word)) return *kind;
  throw Error(ErrorCode::kLauncher,
              fmt::format("the control channel carried a message of unknown kind \"{}\"", word));
}

}  // namespace

std::string encode(const Up& m) {
  if (m.hello) return line_of(UpKind::hello, record_json(*m.hello));
  if (m.beat) return line_of(UpKind::beat, {{"activity", parse_json(to_json(m.beat->activity))}});
  if (m.times) return line_of(UpKind::times, record_json(*m.times));
  if (m.step) return line_of(UpKind::step, record_json(*m.step));
  if (m.event) return line_of(UpKind::event, record_json(*m.event));
  if (m.shard) return line_of(UpKind::shard, record_json(*m.shard));
  if (m.trace) return line_of(UpKind::trace, record_json(*m.trace));
  ENSURE(m.done);
  return line_of(UpKind::done);
}

std::string encode(const Down& m) {
  switch (m.kind) {
    case Down::welcome:
    case Down::alive: return line_of(m.kind);
    case Down::stop: {
      Json body{{"level", int(m.level)}};
      if (std::isfinite(m.left_s)) body["left_s"] = m.left_s;
      return line_of(m.kind, std::move(body));
    }
    case Down::saved: return line_of(m.kind, {{"ok", m.ok}, {"number", m.number}, {"message", m.message}});
    case Down::trace: return line_of(m.kind, record_json(m.order));
  }
  ENSURE(false, "kind = {}", int(m.kind));
  return "";
}

bool is_beat(std::string_view line) { return line.ends_with(R"("k":"beat"})"); }
bool is_done(std::string_view line) { return line == R"({"k":"done"})"; }
bool is_times(std::string_view line) { return line.starts_with(R"({"k":"times",)"); }
std::optional<int64_t> shard_number(std::string_view line) {
  // {"epoch":3,"failure":"...","k":"shard","number":7,...: a failure is one sentence, so the kind comes
  // early.
  constexpr std::string_view kKind = R"(,"k":"shard","number":)";
  if (!line.starts_with(R"({"epoch":)")) return std::nullopt;
  const size_t at = line.substr(0, 65536).find(kKind);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view text = line.substr(at + kKind.size());
  int64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) return std::nullopt;
  return number;
}

Up decode_up(std::string_view line) try {
  const Json j = parse_line(line);
  Up up;
  switch (kind_of<UpKind>(j)) {
    case UpKind::hello: up.hello = record_of<Hello>(j); break;
    case UpKind::beat: {
      const auto activity = activity_from_json(dump_json(j.at("activity")));
      if (!activity)
        throw Error(ErrorCode::kLauncher, "the control channel carried a heartbeat without a valid activity");
      up.beat = Beat{*activity};
      break;
    }
    case UpKind::times: up.times = record_of<Times>(j); break;
    case UpKind::step: up.step = record_of<StepReport>(j); break;
    case UpKind::event: up.event = record_of<Event>(j); break;
    case UpKind::shard: up.shard = record_of<Shard>(j); break;
    case UpKind::trace: up.trace = record_of<TraceResult>(j); break;
    case UpKind::done: up.done = true; break;
  }
  return up;
} catch (const JsonError& error) {
  malformed(error);
} catch (const BadRecord& error) {
  malformed(error);
}

Down decode_down(std::string_view line) try {
  const Json j = parse_line(line);
  Down down{.kind = kind_of<Down::Kind>(j), .message = ""};
  if (down.kind == Down::stop) {
    const int level = j.at("level");
    if (level < int(StopLevel::none) || level > int(StopLevel::now))
      throw BadRecord(fmt::format("a stop of level {}", level));
    down.level = StopLevel(level);
    down.left_s = j.value("left_s", down.left_s);
  }
  if (down.kind == Down::saved) {
    down.ok = j.at("ok");
    down.number = j.at("number");
    down.message = j.at("message");
  }
  if (down.kind == Down::trace) down.order = record_of<TraceOrder>(j);
  return down;
} catch (const JsonError& error) {
  malformed(error);
} catch (const BadRecord& error) {
  malformed(error);
}

std::optional<std::string> LineBuffer::next() {
  const size_t end = buffer_.find('\n', searched_);
  if (end == std::string::npos) {
    if (buffer_.size() - begin_ > kMaxLineBytes)
      throw Error(ErrorCode::kLauncher,
                  fmt::format("a line on the control channel is longer than {} bytes", kMaxLineBytes));
    buffer_.erase(0, begin_);
    begin_ = 0;
    searched_ = buffer_.size();
    return std::nullopt;
  }
  std::string line = buffer_.substr(begin_, end - begin_);
  begin_ = searched_ = end + 1;
  return line;
}

}  // namespace trainctl::protocol
