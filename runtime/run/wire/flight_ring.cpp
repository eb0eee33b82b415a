#include "runtime/run/wire/flight_ring.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "runtime/base/file_system.h"

namespace trainctl {
namespace {

constexpr uint64_t kRingMagic = 0x74726e72696e6731;  // "trnring1"

bool is_same_place(const Activity& a, const Activity& b) {
  return a.phase == b.phase && a.step == b.step && a.micro_batch == b.micro_batch &&
         a.virtual_stage == b.virtual_stage;
}

}  // namespace

/// A new file is all zero: no entry.
struct FlightRing::Memory {
  static_assert(std::is_trivially_copyable_v<FlightEntry>);
  static constexpr size_t kWords = (sizeof(FlightEntry) + 7) / 8;
  struct Slot {
    std::atomic<uint64_t> number;  ///< of its entry, from 1; 0: none, or it is being written
    std::atomic<uint64_t> words[kWords];
  };
  uint64_t magic, entry_bytes;
  int64_t rank, pid;
  std::atomic<uint64_t> written;
  Slot slots[kEntries];
};

size_t FlightRing::bytes() { return sizeof(Memory); }

std::string FlightRing::path_of(const std::string& board_path, int rank) {
  return fmt::format("{}.ring-{}", board_path, rank);
}

std::unique_ptr<FlightRing> FlightRing::create(const std::string& path, int rank) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  // The pages are taken now: a full /dev/shm must not become a SIGBUS later.
  void* memory = ::posix_fallocate(fd, 0, off_t(sizeof(Memory))) == 0
                     ? ::mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
  ::close(fd);
  if (memory == MAP_FAILED) {
    ::unlink(path.c_str());
    return nullptr;
  }
  auto* ring = static_cast<Memory*>(memory);
  ring->entry_bytes = sizeof(FlightEntry);
  ring->rank = rank;
  ring->pid = ::getpid();
  ring->magic = kRingMagic;
  return std::unique_ptr<FlightRing>(new FlightRing(ring));
}

FlightRing::~FlightRing() { ::munmap(static_cast<void*>(memory_), sizeof(Memory)); }

void FlightRing::put(const FlightEntry& entry, uint64_t number) {
  Memory::Slot& slot = memory_->slots[(number - 1) % kEntries];
  uint64_t words[Memory::kWords] = {};
  std::memcpy(words, &entry, sizeof entry);
  slot.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < Memory::kWords; ++i) slot.words[i].store(words[i], std::memory_order_relaxed);
  slot.number.store(number, std::memory_order_release);
  memory_->written.store(number, std::memory_order_release);
}

void FlightRing::note(const Activity& activity) {
  note(activity, int64_t(real_clock().unix_s() * 1e6) * 1000);
}

void FlightRing::note(const Activity& activity, int64_t unix_ns) {
  const Activity& before = last_.activity;
  const bool is_first = written_ == 0, is_same = !is_first && is_same_place(activity, before);
  if (activity.is_waiting()) {
    const bool goes_on = is_same && before.is_waiting() &&
                         before.communicator.view() == activity.communicator.view() &&
                         before.operation.view() == activity.operation.view();
    last_.activity = activity;
    last_.goes_on = false;
    if (!goes_on) last_.unix_ns = unix_ns, ++written_;
    return put(last_, written_);
  }
  const bool goes_on = is_same && before.is_waiting();
  const bool is_progress = is_same && !before.is_waiting() && (activity.done > 0 || activity.total > 0);
  if (is_progress) return;
  if (!goes_on) {
    last_.index = is_first || activity.step != before.step ? 0 : last_.index + 1;
    ++last_.instruction;
  }
  last_.unix_ns = unix_ns;
  last_.goes_on = goes_on;
  last_.activity = activity;
  put(last_, ++written_);
}

std::optional<FlightLog> FlightRing::read(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat s {};
  const bool fits = fd >= 0 && ::fstat(fd, &s) == 0 && s.st_size == off_t(sizeof(Memory));
  void* mapped = fits ? ::mmap(nullptr, sizeof(Memory), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (fd >= 0) ::close(fd);
  if (mapped == MAP_FAILED) return std::nullopt;
  const auto* ring = static_cast<const Memory*>(mapped);
  std::optional<FlightLog> log;
  if (ring->magic == kRingMagic && ring->entry_bytes == sizeof(FlightEntry)) {
    log.emplace();
    log->rank = int(ring->rank), log->pid = int(ring->pid);
    log->written = ring->written.load(std::memory_order_acquire);
    const uint64_t first = log->written > kEntries ? log->written - kEntries : 0;
    for (uint64_t i = first; i < log->written; ++i) {
      const Memory::Slot& slot = ring->slots[i % kEntries];
      if (slot.number.load(std::memory_order_acquire) != i + 1) continue;
      uint64_t words[Memory::kWords];
      for (size_t k = 0; k < Memory::kWords; ++k) words[k] = slot.words[k].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (slot.number.load(std::memory_order_relaxed) != i + 1) continue;
      FlightEntry entry;
      std::memcpy(static_cast<void*>(&entry), words, sizeof entry);
      log->entries.push_back(entry);
    }
  }
  ::munmap(mapped, sizeof(Memory));
  return log;
}

// ---- as text

std::string flight_line(const FlightLog& log, size_t most) {
  std::string text =
      fmt::format(R"({{"v":1,"rank":{},"pid":{},"epoch":{},"ranks":{},"host":{},"stopped":{})", log.rank,
                  log.pid, log.epoch, log.ranks, dump_json(Json(log.host)), log.stopped);
  if (log.lost_unix_s) text += fmt::format(R"(,"lost":{:.6f})", *log.lost_unix_s);
  text += fmt::format(R"(,"written":{},"entries":[)", log.written);
  const size_t first = log.entries.size() > most ? log.entries.size() - most : 0;
  for (size_t i = first; i < log.entries.size(); ++i) {
    const FlightEntry& e = log.entries[i];
    text += fmt::format(R"({}{{"t":{}.{:09},"instruction":{},"index":{},"goes_on":{},"does":)",
                        i > first ? "," : "", e.unix_ns / 1'000'000'000, e.unix_ns % 1'000'000'000,
                        e.instruction, e.index, e.goes_on);
    text += to_json(e.activity) + "}";
  }
  return text + "]}";
}

std::optional<FlightLog> flight_log_of(const std::string& line) try {
  const Json j = parse_json(line);
  FlightLog log{.rank = j.at("rank"),
                .pid = j.at("pid"),
                .epoch = j.at("epoch"),
                .ranks = j.at("ranks"),
                .host = j.at("host"),
                .stopped = j.at("stopped")};
  if (j.contains("lost")) log.lost_unix_s = j["lost"].get<double>();
  log.written = j.at("written");
  for (const Json& e : j.at("entries")) {
    const auto activity = activity_from_json(dump_json(e.at("does")));
    if (!activity) continue;
    // To the microsecond, as a double holds it.
    log.entries.push_back({.unix_ns = int64_t(std::llround(e.at("t").get<double>() * 1e6)) * 1000,
                           .instruction = e.at("instruction"),
                           .index = e.at("index"),
                           .goes_on = e.at("goes_on"),
                           .activity = *activity});
  }
  return log;
} catch (const JsonError&) {
  return std::nullopt;
}

std::string flight_text(const std::vector<FlightLog>& logs) {
  constexpr size_t kEntryBytes = 512;
  const size_t fit = kMostFlightBytes / kEntryBytes / std::max<size_t>(1, logs.size());
  std::string text;
  for (const FlightLog& log : logs)
    text += flight_line(log, std::clamp<size_t>(fit, 1, kMostFlightEntries)) + "\n";
  return text;
}

std::string board_path_of(const std::string& shared_memory_folder) {
  return shared_memory_folder + "/activity";
}

std::string flight_file_name(int first_rank) {
  return fmt::format("node-{:05}{}", first_rank, kFlightSuffix);
}

}  // namespace trainctl
