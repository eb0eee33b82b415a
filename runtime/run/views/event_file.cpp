#include "runtime/base/record.h"
#include "runtime/run/views/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>

namespace trainctl::event_file {
namespace {

// ---- protocol buffers, as much as an event needs: fields are written as a key (number, wire type) and a value

enum class Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void add_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
  out += char(value);
}
void add_key(std::string& out, int field, Wire wire) { add_varint(out, uint64_t(field) << 3 | uint64_t(wire)); }

/// Little-endian, whatever the machine's order.
template <typename Number>
void add_fixed(std::string& out, Number value) {
  for (size_t i = 0; i < sizeof value; ++i) out += char(value >> 8 * i);
}
void add_double(std::string& out, int field, double value) {
  add_key(out, field, Wire::fixed64);
  add_fixed(out, std::bit_cast<uint64_t>(value));
}
void add_float(std::string& out, int field, double value) {
  add_key(out, field, Wire::fixed32);
  add_fixed(out, std::bit_cast<uint32_t>(float(value)));
}
void add_integer(std::string& out, int field, int64_t value) {
  add_key(out, field, Wire::varint);
  add_varint(out, uint64_t(value));
}
void add_bytes(std::string& out, int field, std::string_view value) {
  add_key(out, field, Wire::bytes);
  add_varint(out, value.size());
  out += value;
}

// ---- fields of event.proto and summary.proto

constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;   // of an Event
constexpr int kSummaryValue = 1, kTag = 1, kSimpleValue = 2;
constexpr int kStatus = 1, kStart = 1;   // of a SessionLog

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

std::string record_of(const std::string& event) {
  std::string out;
  add_fixed(out, uint64_t(event.size()));
  add_fixed(out, masked(crc32c(out)));
  out += event;
  add_fixed(out, masked(crc32c(event)));
  return out;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int bit = 0; bit < 8; ++bit) t[i] = t[i] & 1 ? t[i] >> 1 ^ 0x82F63B78u : t[i] >> 1;
    }
    return t;
  }();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = table[(crc ^ uint8_t(c)) & 0xff] ^ crc >> 8;
  return ~crc;
}

std::vector<Scalar> scalars_of(const StepLine& line) {
  // A loss that is not a number is shown; what the line does not have is left out.
  std::vector<Scalar> scalars = {{"loss/train", line.loss}, {"optim/grad_norm", line.grad_norm}};
  const auto add = [&](const char* tag, double value) {
    if (!std::isnan(value)) scalars.push_back({tag, value});
  };
  for (const SourceLoss& source : line.sources)
    scalars.push_back({"loss/source/" + source.name, source.loss});
  if (line.val_loss) scalars.push_back({"loss/val", *line.val_loss});
  for (const TaskScore& task : line.tasks) {
    scalars.push_back({"tasks/" + task.name, task.accuracy});
    scalars.push_back({"tasks_by_sums/" + task.name, task.accuracy_of_sums});
  }
  add("optim/lr", line.lr);
  if (!std::isnan(line.loss_scale)) add("optim/loss_scale", line.loss_scale);
  add("data/tokens", double(line.tokens));
  add("perf/step_s", line.step_s);
  add("perf/tokens_per_s", line.tokens_per_s);
  add("perf/mfu", line.mfu);
  if (line.phases) {
    add("perf/data_wait_s", line.phases->data_s);
    add("perf/communication_s", line.phases->communication_s);
    add("perf/checkpoint_s", line.phases->checkpoint_s);
  }
  add("perf/rank_skew", line.skew());
  if (line.ranks && line.ranks->peak_memory_bytes)
    add("mem/peak_gib", double(line.ranks->peak_memory_bytes->max) / double(1 << 30));
  if (line.skipped_steps > 0) add("ft/skipped_steps", double(line.skipped_steps));
  if (line.overflows > 0) add("optim/overflows", double(line.overflows));
  return scalars;
}

std::string version_record(double unix_s) {
  std::string event;
  add_double(event, kWallTime, unix_s);
  add_bytes(event, kFileVersion, "brain.Event:2");
  return record_of(event);
}

std::string scalars_record(double unix_s, int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    add_bytes(value, kTag, scalar.tag);
    add_float(value, kSimpleValue, scalar.value);
    add_bytes(summary, kSummaryValue, value);
  }
  std::string event;
  add_double(event, kWallTime, unix_s);
  add_integer(event, kStep, step);
  add_bytes(event, kSummary, summary);
  return record_of(event);
}

std::string start_record(double unix_s, int64_t step) {
  std::string session, event;
  add_integer(session, kStatus, kStart);
  add_double(event, kWallTime, unix_s);
  add_integer(event, kStep, step);
  add_bytes(event, kSessionLog, session);
  return record_of(event);
}

void EventFiles::step(const StepLine& line, double unix_s) {
  if (fd_ < 0) open(unix_s, line.step);
  append(scalars_record(unix_s, line.step, scalars_of(line)));
}

void EventFiles::begin_next() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

/// TensorBoard reads the files of a folder in the order of their names, which begin with the time.
void EventFiles::open(double unix_s, int64_t step) {
  if (error_.exists()) return;
  char host[256] = "unknown";
  ::gethostname(host, sizeof host - 1);
  path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder_, int64_t(unix_s), host, ::getpid(),
                      files_++);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    error_ = Problem(fmt::format("cannot create {}: {}", path_, std::strerror(errno)));
    return;
  }
  append(version_record(unix_s) + start_record(unix_s, step));
}

void EventFiles::append(const std::string& record) {
  for (size_t sent = 0; sent < record.size() && error_.is_none();) {
    const ssize_t n = ::write(fd_, record.data() + sent, record.size() - sent);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      error_ = Problem(fmt::format("cannot append to {}: {}", path_, std::strerror(errno)));
    else
      sent += size_t(n);
  }
}

}  // namespace trainctl::event_file
