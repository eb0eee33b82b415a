#include "runtime/base/activity.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "runtime/base/json.h"

namespace trainctl {
namespace {

struct PhaseWords {
  const char *name, *words;
};
/// In the order of RunPhase.
constexpr PhaseWords kPhases[] = {
    {"starting", "starting"},
    {"joining", "joining the other ranks"},
    {"opening_data", "opening the data"},
    {"building", "building the model"},
    {"loading", "loading"},
    {"meeting", "ready for the first step"},
    {"reading_data", "waiting for data"},
    {"receiving_activation", "receiving the activation"},
    {"forward", "forward"},
    {"sending_activation", "sending the activation"},
    {"receiving_gradient", "receiving the gradient"},
    {"backward", "backward"},
    {"weight_gradient", "weight gradient"},
    {"sending_gradient", "sending the gradient"},
    {"reducing_gradients", "reducing gradients"},
    {"exchanging_scalars", "exchanging the loss and the gradient norm"},
    {"optimizer", "optimizer"},
    {"reporting", "reporting"},
    {"evaluating", "evaluation"},
    {"saving", "saving"},
    {"leaving", "leaving"},
};
static_assert(std::size(kPhases) == size_t(RunPhase::leaving) + 1);

const PhaseWords& words_of(RunPhase phase) { return kPhases[std::min(size_t(phase), std::size(kPhases) - 1)]; }

std::string progress_text(const Activity& a) {
  if (a.done == 0 && a.total == 0) return "";
  if (a.total == 0) return a.in_bytes ? fmt::format(" ({:.1f} MB)", double(a.done) / 1e6) : fmt::format(" ({})", a.done);
  if (!a.in_bytes) return fmt::format(" ({} of {})", a.done, a.total);
  return fmt::format(" ({:.1f} of {:.1f} MB)", double(a.done) / 1e6, double(a.total) / 1e6);
}

std::string wait_text(const Activity& a) {
  std::string who;
  for (int i = 0; i < a.peer_count; ++i) who += fmt::format("{}{}", i ? ", " : "", a.peers[i]);
  if (!who.empty())
    who = fmt::format(" for rank{} {}{}", a.peer_count > 1 || a.more_peers ? "s" : "", who, a.more_peers ? " and more" : "");
  const std::string_view group = a.communicator.view(), operation = a.operation.view();
  if (group.empty()) return fmt::format(", waiting in {}{}", operation, who);
  return fmt::format(", waiting{} ({}: {})", who, group, operation);
}

/// Bytes of the UTF-8 character that begins `text`; 0 if it is none.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t{0}; };
  const uint8_t first = byte(0);
  const size_t bytes = first < 0x80 ? 1 : first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3
                       : first >= 0xF0 && first < 0xF5 ? 4 : 0;
  for (size_t i = 1; i < bytes; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // Over-long forms, surrogates and what is beyond the last code point.
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F) || (first == 0xF0 && byte(1) < 0x90) ||
      (first == 0xF4 && byte(1) > 0x8F))
    return 0;
  return bytes;
}

/// Puts JSON together without allocating.
struct Writer {
  char* at;
  void raw(std::string_view text) {
    std::memcpy(at, text.data(), text.size());
    at += text.size();
  }
  void text(std::string_view s) {
    *at++ = '"';
    while (!s.empty()) {
      const size_t bytes = character_bytes(s);
      if (bytes == 0 || uint8_t(s[0]) < 0x20) {
        *at++ = '?';
      } else {
        if (s[0] == '"' || s[0] == '\\') *at++ = '\\';
        raw(s.substr(0, bytes));
      }
      s.remove_prefix(std::max<size_t>(bytes, 1));
    }
    *at++ = '"';
  }
  void number(uint64_t n) {
    char digits[20];
    int count = 0;
    do digits[count++] = char('0' + n % 10);
    while (n /= 10);
    while (count > 0) *at++ = digits[--count];
  }
  void field(std::string_view name, std::string_view value) {
    raw(",\"");
    raw(name);
    raw("\":");
    text(value);
  }
  void count(std::string_view name, uint64_t value) {
    raw(",\"");
    raw(name);
    raw("\":");
    number(value);
  }
  /// Absent where it does not apply.
  void field(std::string_view name, int64_t value, int64_t absent = -1) {
    if (value == absent) return;
    raw(",\"");
    raw(name);
    raw("\":");
    if (value < 0) raw("-");
    number(value < 0 ? 0 - uint64_t(value) : uint64_t(value));
  }
};

}  // namespace

const char* name_of(RunPhase phase) { return words_of(phase).name; }

std::optional<RunPhase> run_phase_of(std::string_view name) {
  for (size_t i = 0; i < std::size(kPhases); ++i)
    if (name == kPhases[i].name) return RunPhase(i);
  return std::nullopt;
}

bool Activity::waits_for(int rank) const {
  return kind == waiting && (more_peers || std::find(peers, peers + peer_count, rank) != peers + peer_count);
}

void Activity::add_peer(int world_rank) {
  if (std::find(peers, peers + peer_count, world_rank) != peers + peer_count) return;
  if (peer_count < kMostPeers) {
    peers[peer_count++] = world_rank;
  } else {
    more_peers = true;
  }
}

std::string render(const Activity& a) {
  std::string text = a.step >= 0 ? fmt::format("step {}: ", a.step) : "";
  text += words_of(a.phase).words;
  if (a.micro_batch >= 0) text += fmt::format(" of micro-batch {}, virtual stage {}", a.micro_batch, a.virtual_stage);
  if (!a.detail.empty()) text += fmt::format(" {}", a.detail.view());
  text += progress_text(a);
  if (a.kind == Activity::waiting) text += wait_text(a);
  return text;
}

Activity with_device(const Activity& host, const std::optional<Activity>& device) {
  if (host.is_waiting() || !device || !device->is_waiting()) return host;
  Activity both = host;
  both.kind = Activity::waiting;
  both.communicator = device->communicator;
  both.operation = device->operation;
  std::copy(std::begin(device->peers), std::end(device->peers), both.peers);
  both.peer_count = device->peer_count;
  both.more_peers = device->more_peers;
  return both;
}

std::vector<int> awaited_of(const std::vector<int>& computing, const std::vector<const Activity*>& all) {
  std::vector<int> awaited;
  for (const int rank : computing)
    if (std::any_of(all.begin(), all.end(), [&](const Activity* a) { return a && a->waits_for(rank); })) awaited.push_back(rank);
  return awaited.empty() ? computing : awaited;
}

size_t write_json(const Activity& a, char* out) {
  Writer w{out};
  w.raw("{\"kind\":");
  w.text(a.kind == Activity::waiting ? "waiting" : "computing");
  w.field("phase", words_of(a.phase).name);
  w.field("step", a.step);
  w.field("micro_batch", a.micro_batch);
  w.field("virtual_stage", a.virtual_stage);
  if (a.done > 0 || a.total > 0) {
    w.count("done", a.done);
    if (a.total > 0) w.count("total", a.total);
    w.field("unit", a.in_bytes ? "bytes" : "items");
  }
  if (!a.detail.empty()) w.field("detail", a.detail.view());
  if (a.kind == Activity::waiting) {
    w.field("communicator", a.communicator.view());
    w.field("operation", a.operation.view());
    w.raw(",\"peers\":[");
    for (int i = 0; i < std::clamp(a.peer_count, 0, Activity::kMostPeers); ++i) {
      if (i > 0) w.raw(",");
      w.number(uint64_t(a.peers[i]));
    }
    w.raw(a.more_peers ? "],\"more_peers\":true" : "]");
  }
  w.raw("}");
  return size_t(w.at - out);
}

std::string to_json(const Activity& activity) {
  char text[kActivityJsonBytes];
  return {text, write_json(activity, text)};
}

std::optional<Activity> activity_from_json(const std::string& text) try {
  const auto j = parse_json(text);
  Activity a;
  a.kind = j.at("kind") == "waiting" ? Activity::waiting : Activity::computing;
  const auto phase = run_phase_of(j.at("phase").get<std::string>());
  if (!phase) return std::nullopt;
  a.phase = *phase;
  a.step = j.value("step", int64_t{-1});
  a.micro_batch = j.value("micro_batch", -1);
  a.virtual_stage = j.value("virtual_stage", -1);
  a.done = j.value("done", uint64_t{0});
  a.total = j.value("total", uint64_t{0});
  a.in_bytes = j.value("unit", "") == "bytes";
  a.detail = j.value("detail", "");
  if (!a.is_waiting()) return a;
  a.communicator = j.value("communicator", "");
  a.operation = j.value("operation", "");
  for (const int peer : j.value("peers", std::vector<int>{})) a.add_peer(peer);
  a.more_peers = a.more_peers || j.value("more_peers", false);
  return a;
} catch (const JsonError&) {
  return std::nullopt;
}

Json JsonForm<std::optional<Activity>>::to(const std::optional<Activity>& activity) {
  return activity ? parse_json(to_json(*activity)) : Json();
}
void JsonForm<std::optional<Activity>>::read(const Json& json, std::optional<Activity>& activity) {
  activity = activity_from_json(dump_json(json));
}

// Each word is atomic, so a reader concurrent with the writer reads old or new words. The counter shows which.

void ActivitySlot::write(const Activity& activity) {
  static_assert(std::is_trivially_copyable_v<Activity>);
  uint64_t words[kWords] = {};
  std::memcpy(words, &activity, sizeof activity);
  // Not before the counter of the write before this one is there: a reader may still be at the words overwritten now.
  std::atomic_thread_fence(std::memory_order_release);
  const uint64_t next = written_.load(std::memory_order_relaxed) + 1;
  for (size_t i = 0; i < kWords; ++i) copies_[next % 2][i].store(words[i], std::memory_order_relaxed);
  written_.store(next, std::memory_order_release);
}

std::optional<Activity> ActivitySlot::read() const {
  uint64_t words[kWords];
  for (int tries = 0; tries < 1000; ++tries) {
    const uint64_t before = written_.load(std::memory_order_acquire);
    if (before == 0) return std::nullopt;
    for (size_t i = 0; i < kWords; ++i) words[i] = copies_[before % 2][i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (written_.load(std::memory_order_relaxed) == before) break;
  }
  Activity activity;
  std::memcpy(static_cast<void*>(&activity), words, sizeof activity);
  return activity;
}

}  // namespace trainctl
