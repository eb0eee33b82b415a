#include "runtime/run/record/crash_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "runtime/base/named_ranges.h"
#include "runtime/base/record.h"
#include "runtime/run/wire/activity_board.h"
#include "runtime/run/wire/flight_ring.h"

namespace trainctl {
namespace {

std::string host_name() {
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  return host;
}

// ---- what a signal handler needs, prepared while all is well
// --------------------------------------------------

constexpr std::array kCrashSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

struct Prepared {
  char path[4096];
  // The record for this signal, with its activity cut out.
  struct Halves {
    char before[1024], behind[1024];
  };
  std::array<Halves, kCrashSignals.size()> records;
  // For SIGBUS in a mapped file, whose name is cut out of what is behind the activity: it was cut short, or
  // its disk failed.
  Halves cut_short, unreadable;
};
constexpr char kNameHole[] = "@MAPPED FILE@";
Prepared g_prepared;
std::array<struct sigaction, kCrashSignals.size()> g_before;

ActivitySlot g_activity, g_device_activity;
std::unique_ptr<ActivityBoard> g_board;
std::unique_ptr<FlightRing> g_ring;
int g_board_rank = -1;
std::optional<StopAt> g_stop_at;

void write_all(int fd, const char* text, size_t size) {
  for (size_t sent = 0; sent < size;) {
    const ssize_t n = ::write(fd, text + sent, size - sent);
    if (n <= 0) return;
    sent += size_t(n);
  }
}

/// `text` with kNameHole replaced by `name`; what would need more than a backslash in a JSON string becomes '?'.
void write_named(int fd, const char* text, const char* name) {
  const char* const hole = std::strstr(text, kNameHole);
  write_all(fd, text, size_t(hole - text));
  for (; *name; ++name) {
    if (*name == '"' || *name == '\\') write_all(fd, "\\", 1);
    write_all(fd, static_cast<unsigned char>(*name) < 0x20 ? "?" : name, 1);
  }
  write_all(fd, hole + std::strlen(kNameHole), std::strlen(hole) - std::strlen(kNameHole));
}

void on_crash(int signal, siginfo_t* info, void*) {
  const int fd = ::open(g_prepared.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd >= 0) {
    size_t which = 0;
    while (which + 1 < kCrashSignals.size() && kCrashSignals[which] != signal) ++which;
    const NamedAddress file = signal == SIGBUS ? named_address(info->si_addr) : NamedAddress{};
    struct stat now;
    const bool is_whole = file.name && ::stat(file.name, &now) == 0 && size_t(now.st_size) >= file.bytes;
    const Prepared::Halves& record = !file.name ? g_prepared.records[which]
                                     : is_whole ? g_prepared.unreadable
                                                : g_prepared.cut_short;
    char activity[kActivityJsonBytes];
    const auto noted = noted_activity();
    write_all(fd, record.before, std::strlen(record.before));
    write_all(fd, noted ? activity : "null", noted ? write_json(*noted, activity) : 4);
    if (file.name)
      write_named(fd, record.behind, file.name);
    else
      write_all(fd, record.behind, std::strlen(record.behind));
    ::fsync(fd);
    ::close(fd);
  }
  // On to the handler that was installed before ours (MPI prints a stack trace into the log), and then to the signal's own
  // end.
  for (size_t i = 0; i < kCrashSignals.size(); ++i)
    if (kCrashSignals[i] == signal) ::sigaction(signal, &g_before[i], nullptr);
  ::raise(signal);
}

void copy_into(char* to, size_t capacity, const std::string& text) {
  const size_t n = std::min(capacity - 1, text.size());
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}

/// Puts the record, with its activity cut out, into `halves`.
void split(const std::string& record, Prepared::Halves& halves) {
  constexpr std::string_view kHole = "\"activity\":null";
  const size_t hole = record.find(kHole);
  ENSURE(hole != std::string::npos, "record = {}", record);
  copy_into(halves.before, sizeof halves.before, record.substr(0, hole + kHole.size() - 4));
  copy_into(halves.behind, sizeof halves.behind, record.substr(hole + kHole.size()) + "\n");
}

void prepare(CrashRecord record, Prepared::Halves& of_file) {
  record.signal = SIGBUS;
  record.message = kNameHole + record.message;
  split(record.to_json(), of_file);
  ENSURE(std::strstr(of_file.behind, kNameHole), "behind = {}", of_file.behind);
}

}  // namespace

std::string CrashRecord::to_json() const { return record_text(*this); }

std::string crash_record_path(const std::string& run_directory, int rank) {
  return fmt::format("{}/failures/rank-{}.json", run_directory, rank);
}

void write_crash_record(FileSystem& fs, const std::string& run_directory, const CrashRecord& record) {
  try {
    CrashRecord full = record;
    if (full.host.empty()) full.host = host_name();
    const std::string path = crash_record_path(run_directory, record.rank);
    if (read_crash_record(fs, run_directory, record.rank, record.epoch)) return;
    fs.replace_text(path, full.to_json() + "\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: the crash record could not be written: {}\n", record.rank, error.what());
  }
}

std::optional<CrashRecord> read_crash_record(FileSystem& fs, const std::string& run_directory, int rank,
                                             uint64_t epoch) {
  try {
    const std::string path = crash_record_path(run_directory, rank);
    if (!fs.exists(path)) return std::nullopt;
    const auto r = record_of_text<CrashRecord>(fs.read_text(path));
    if (r.rank != rank || r.epoch != epoch) return std::nullopt;
    return r;
  } catch (const std::exception&) {
    return std::nullopt;  // half a record of a rank that was killed while writing it says nothing
  }
}

void note_activity(const Activity& activity) {
  g_activity.write(activity);
  if (g_board) g_board->write(g_board_rank, activity);
  if (g_ring) g_ring->note(activity);
  if (g_stop_at && g_stop_at->matches(activity)) {
    g_stop_at.reset();
    ::kill(::getpid(), SIGSTOP);
  }
}

void note_device_activity(const Activity& activity) {
  g_device_activity.write(activity);
  if (g_board) g_board->write_device(g_board_rank, activity);
}

void stop_at(const StopAt& when) { g_stop_at = when; }

void note_activity_on_board(const std::string& path, int rank) {
  g_board = path.empty() ? nullptr : ActivityBoard::open(path);
  g_ring = path.empty() ? nullptr : FlightRing::create(FlightRing::path_of(path, rank), rank);
  g_board_rank = rank;
}

std::optional<Activity> noted_activity() {
  const auto host = g_activity.read();
  return host ? std::optional(with_device(*host, g_device_activity.read())) : std::nullopt;
}

std::string describe_signal(int signal) {
  switch (signal) {
    case SIGSEGV: return "SIGSEGV (invalid memory access)";
    case SIGBUS: return "SIGBUS (bad memory access, or a shared-memory file system that is full)";
    case SIGFPE: return "SIGFPE (arithmetic fault)";
    case SIGILL: return "SIGILL (illegal instruction)";
    case SIGABRT: return "SIGABRT (an internal check failed)";
    case SIGKILL: return "signal 9 (SIGKILL)";
    case SIGTERM: return "signal 15 (SIGTERM)";
    default: return fmt::format("signal {} ({})", signal, ::strsignal(signal));
  }
}

void install_crash_handlers(const std::string& run_directory, int rank, uint64_t epoch) {
  copy_into(g_prepared.path, sizeof g_prepared.path, crash_record_path(run_directory, rank));
  ::unlink(g_prepared.path);  // of an earlier epoch
  const CrashRecord of_this{.rank = rank, .pid = int(::getpid()), .epoch = epoch, .host = host_name()};
  CrashRecord of_file = of_this;
  of_file.code = ErrorCode::kData;
  of_file.message = " was cut short while it was read; put the old file back, then resume";
  prepare(of_file, g_prepared.cut_short);
  of_file.code = ErrorCode::kIo;
  of_file.message = " could not be read where it is mapped: its disk or its server failed";
  prepare(of_file, g_prepared.unreadable);
  for (size_t i = 0; i < kCrashSignals.size(); ++i) {
    const int signal = kCrashSignals[i];
    const ErrorCode code = signal == SIGABRT ? ErrorCode::kInternal : ErrorCode::kWorker;
    const std::string message = signal == SIGABRT
                                    ? fmt::format("an internal check failed (see logs/rank-{}.log)", rank)
                                    : fmt::format("crashed with {}", describe_signal(signal));
    // The time is left to the reader: the order of arrival on the control channel is what counts.
    CrashRecord record = of_this;
    record.code = code, record.signal = signal, record.message = message;
    split(record.to_json(), g_prepared.records[i]);
    struct sigaction action {};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_NODEFER | SA_SIGINFO;
    ::sigaction(signal, &action, &g_before[i]);
  }
}

}  // namespace trainctl
