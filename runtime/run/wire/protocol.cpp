#include "runtime/run/wire/protocol.h"

#include <fmt/format.h>


#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::protocol {
namespace {

using nlohmann::json;

/// Invalid UTF-8 (a file name in an error message) is replaced, not thrown over.
std::string line_of(const json& message) {
  return dump_json(message) + "\n";
}

json json_of(const ckpt::StateInfo& state) {
  return {{"run_id", state.run_id},
          {"epoch", state.epoch},
          {"step", state.step},
          {"tokens", state.tokens},
          {"seed", state.seed},
          {"spec_hash", state.spec_hash},
          {"extra", state.extra_json},
          {"program_version", state.program_version},
          {"numerics", state.numerics},
          {"lineage", state.lineage_json},
          {"spec", state.resolved_spec_json}};
}

ckpt::StateInfo state_of(const json& j) {
  ckpt::StateInfo state;
  state.run_id = j.at("run_id");
  state.epoch = j.at("epoch");
  state.step = j.at("step");
  state.tokens = j.at("tokens");
  state.seed = j.at("seed");
  state.spec_hash = j.at("spec_hash");
  state.program_version = j.at("program_version");
  state.numerics = j.at("numerics");
  state.lineage_json = j.at("lineage");
  state.extra_json = j.at("extra");
  state.resolved_spec_json = j.at("spec");
  return state;
}

json json_of(const std::vector<ckpt::Tensor>& tensors) {
  json list = json::array();
  for (const ckpt::Tensor& t : tensors) list.push_back({t.name, int(t.role), int(t.dtype), t.shape});
  return list;
}

std::vector<ckpt::Tensor> tensors_of(const json& list) {
  std::vector<ckpt::Tensor> tensors;
  for (const json& t : list) {
    const int role = t.at(1), dtype = t.at(2);
    tensors.push_back({t.at(0), ckpt::Role(role), DType(dtype), t.at(3)});
  }
  return tensors;
}

json parse_line(std::string_view line) {
  json message = try_parse_json(line);
  if (!message.is_object() || !message.contains("k"))
    throw Error(ErrorCode::kLauncher,
                fmt::format("the control channel carried a line that is no message: {:.80}", line));
  return message;
}

[[noreturn]] void malformed(const json::exception& error) {
  throw Error(ErrorCode::kLauncher,
              fmt::format("the control channel carried a malformed message: {}", error.what()));
}

}  // namespace

std::string encode(const Up& m) {
  if (m.hello)
    return line_of({{"k", "hello"},
                    {"token", m.hello->token},
                    {"rank", m.hello->rank},
                    {"pid", m.hello->pid},
                    {"host", m.hello->host}});
  if (m.beat) return line_of({{"k", "beat"}, {"activity", parse_json(to_json(m.beat->activity))}});
  if (m.step)
    return line_of({{"k", "step"},
                    {"step", m.step->step},
                    {"log", m.step->log},
                    {"json", m.step->json},
                    {"ranks", m.step->ranks}});
  if (m.event) return line_of({{"k", "event"}, {"kind", m.event->kind}, {"json", m.event->json}});
  if (m.begin) return line_of({{"k", "begin"}, {"number", m.begin->number}, {"state", json_of(m.begin->state)}});
  if (m.shard)
    return line_of({{"k", "shard"},
                    {"number", m.shard->number},
                    {"step", m.shard->step},
                    {"receipt", m.shard->failure.empty() ? m.shard->receipt.to_json() : ""},
                    {"tensors", json_of(m.shard->tensors)},
                    {"failure", m.shard->failure}});
  ENSURE(m.done);
  return line_of({{"k", "done"}});
}

std::string encode(const Down& m) {
  switch (m.kind) {
    case Down::welcome: return line_of({{"k", "welcome"}});
    case Down::alive: return line_of({{"k", "alive"}});
    case Down::stop: return line_of({{"k", "stop"}, {"level", int(m.level)}});
    case Down::begun: return line_of({{"k", "begun"}, {"ok", m.ok}, {"number", m.number}, {"message", m.message}});
    case Down::saved: return line_of({{"k", "saved"}, {"ok", m.ok}, {"number", m.number}, {"message", m.message}});
  }
  ENSURE(false, "kind = {}", int(m.kind));
  return "";
}

bool is_beat(std::string_view line) { return line.ends_with(R"("k":"beat"})"); }
bool is_begin(std::string_view line) { return line.starts_with(R"({"k":"begin")"); }
bool is_done(std::string_view line) { return line == R"({"k":"done"})"; }
bool is_shard(std::string_view line) {
  // {"failure":"...","k":"shard",...: a failure is one sentence, so the kind comes early.
  return line.starts_with(R"({"failure":)") && line.substr(0, 65536).find(R"(,"k":"shard",)") != std::string_view::npos;
}

Up decode_up(std::string_view line) try {
  const json j = parse_line(line);
  const std::string kind = j.at("k");
  Up up;
  if (kind == "hello") {
    up.hello = Hello{j.at("token"), j.at("host"), j.at("rank"), j.at("pid")};
  } else if (kind == "beat") {
    const auto activity = activity_from_json(dump_json(j.at("activity")));
    if (!activity) throw Error(ErrorCode::kLauncher, "the control channel carried a heartbeat without a valid activity");
    up.beat = Beat{*activity};
  } else if (kind == "step") {
    up.step = StepReport{j.at("step"), j.at("json"), j.at("log"), j.value("ranks", "")};
  } else if (kind == "event") {
    up.event = Event{j.at("kind"), j.at("json")};
  } else if (kind == "begin") {
    up.begin = Begin{state_of(j.at("state")), j.at("number")};
  } else if (kind == "shard") {
    const std::string receipt = j.at("receipt");
    up.shard =
        Shard{j.at("step"), j.at("number"), receipt.empty() ? ckpt::ShardReceipt{} : ckpt::ShardReceipt::from_json(receipt),
              tensors_of(j.at("tensors")), j.at("failure")};
  } else if (kind == "done") {
    up.done = true;
  } else {
    throw Error(ErrorCode::kLauncher,
                fmt::format("the control channel carried a message of unknown kind \"{}\"", kind));
  }
  return up;
} catch (const json::exception& error) {
  malformed(error);
}

Down decode_down(std::string_view line) try {
  const json j = parse_line(line);
  const std::string kind = j.at("k");
  Down down;
  if (kind == "welcome") return down;
  if (kind == "alive") {
    down.kind = Down::alive;
    return down;
  }
  if (kind == "stop") {
    const int level = j.at("level");
    down.kind = Down::stop;
    down.level = StopLevel(level);
    return down;
  }
  if (kind != "begun" && kind != "saved")
    throw Error(ErrorCode::kLauncher,
                fmt::format("the control channel carried a message of unknown kind \"{}\"", kind));
  down.kind = kind == "begun" ? Down::begun : Down::saved;
  down.ok = j.at("ok");
  down.number = j.at("number");
  down.message = j.at("message");
  return down;
} catch (const json::exception& error) {
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
