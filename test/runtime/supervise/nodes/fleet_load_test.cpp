// What thousands of agents cost their supervisor.
//
// Goal: a fleet of 2,000 nodes is greeted, heard and answered by one thread, and none is lost; its share of a
// core is printed. Method: agents played by another thread of this program, one heartbeat a second each; the
// processor time of the fleet's thread alone is taken with getrusage. Times are printed, never asserted.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include "runtime/run/wire/stream.h"
#include "runtime/run/wire/supervisor_file.h"
#include "runtime/supervise/nodes/fleet.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using wire::Kind;

namespace {

double thread_cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string name_of_node(int i) { return fmt::format("node{:04}", i); }

/// Agents of `nodes` nodes with `ranks` ranks each, on a thread of their own until destroyed.
class Agents {
 public:
  Agents(const std::string& run, int nodes, int ranks)
      : file_(SupervisorFile::from_json(real_file_system().read_text(supervisor_file(run)))),
        streams_(size_t(nodes)) {
    std::vector<wire::RankDigest> digests(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
      digests[size_t(rank)] = {.rank = rank, .pid = 100, .connected = 1};
    for (wire::RankDigest& d : digests)
      d.has_activity = 1, d.activity.phase = RunPhase::forward, d.activity.step = 7;
    payload_ = wire::pack(digests);
    thread_ = std::thread([this] { run_all(); });
  }
  ~Agents() {
    ending_ = true;
    thread_.join();
  }
  int64_t beats_heard() const { return heard_; }

 private:
  void run_all() {
    const int epoll_fd = ::epoll_create1(EPOLL_CLOEXEC);
    Clock& clock = real_clock();
    const double begin_s = clock.monotonic_s();
    std::vector<double> next_s(streams_.size());
    std::vector<bool> welcomed(streams_.size());  // before that a real agent sends nothing but its hello, too
    size_t connected = 0;
    while (!ending_) {
      // A start of agents takes a while, too: 100 at a time.
      for (size_t i = 0; i < 100 && connected < streams_.size(); ++i, ++connected) {
        dial(epoll_fd, connected);
        next_s[connected] = begin_s + std::fmod(0.618 * double(connected), 1.0);
      }
      epoll_event events[256];
      const int count = ::epoll_wait(epoll_fd, events, 256, 2);
      for (int i = 0; i < count; ++i)
        for (const wire::Message& message : streams_[events[i].data.u64]->read()) {
          heard_ += message.kind == Kind::beat;
          if (message.kind == Kind::welcome) welcomed[events[i].data.u64] = true;
        }
      // Turned away because its hello came late, on a busy machine: it dials again.
      for (size_t i = 0; i < connected; ++i)
        if (!welcomed[i] && !streams_[i]->open()) dial(epoll_fd, i);
      const double now_s = clock.monotonic_s();
      for (size_t i = 0; i < connected; ++i)
        if (welcomed[i] && now_s >= next_s[i]) {
          while (next_s[i] <= now_s) next_s[i] += 1;
          streams_[i]->send({.kind = Kind::beat, .epoch = 1, .payload = payload_});
        }
    }
    ::close(epoll_fd);
  }
  void dial(int epoll_fd, size_t node) {
    auto& stream = streams_[node];
    stream = std::make_unique<Stream>(connect_to(file_.address, 600));
    stream->greeted();
    const std::string name = name_of_node(int(node));
    const wire::NodeHello hello{
        .token = file_.token, .name = name, .host = name, .version = TRAINCTL_VERSION};
    stream->send({.kind = Kind::hello, .payload = hello.to_json()});
    epoll_event event{.events = EPOLLIN, .data = {.u64 = node}};
    ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, stream->fd(), &event);
  }

  const SupervisorFile file_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::string payload_;
  std::atomic<bool> ending_ = false;
  std::atomic<int64_t> heard_ = 0;
  std::thread thread_;
};

struct Load {
  double cpu_share = 0, greeting_s = 0;
  int ready = 0;
  int64_t beats = 0, ranks = 0, lost = 0, answers = 0;
};

Load load_of(int nodes, int ranks, double seconds) {
  const test::TemporaryFolder dir;
  Fleet::Options options{.run_directory = dir.path(), .listen = "127.0.0.1:0", .silence_s = 600};
  for (int i = 0; i < nodes; ++i) options.nodes.push_back(name_of_node(i));
  Clock& clock = real_clock();
  Fleet fleet(options, clock);
  Load load;
  fleet.set_handler({.up = {},
                     .lost = [&](int, const NodeLoss&) { ++load.lost; },
                     .message =
                         [&](int, wire::Message&& message) {
                           ++load.beats;
                           load.ranks += int64_t(wire::unpack(message.payload).size());
                         }});
  const auto serve = [&] {
    pollfd wait{.fd = fleet.fd(), .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, int(std::ceil(std::clamp(fleet.deadline_s() - clock.monotonic_s(), 0.0, 1.0) * 1000)));
    fleet.serve();
  };
  const double begin_s = clock.monotonic_s();
  const Agents agents(dir.path(), nodes, ranks);
  while (fleet.ready_count() < nodes && clock.monotonic_s() < begin_s + 180) serve();
  load.greeting_s = clock.monotonic_s() - begin_s;
  load.beats = load.ranks = 0;
  const double cpu_s = thread_cpu_s(), start_s = clock.monotonic_s();
  const int64_t heard = agents.beats_heard();
  // At least so long, and on a busy machine until each has been heard and answered.
  const auto all_beat = [&] { return load.beats >= nodes && agents.beats_heard() - heard >= nodes; };
  while (clock.monotonic_s() < start_s + (all_beat() ? seconds : 180)) serve();
  load.cpu_share = (thread_cpu_s() - cpu_s) / (clock.monotonic_s() - start_s);
  load.answers = agents.beats_heard() - heard;
  load.ready = fleet.ready_count();
  return load;
}

}  // namespace

TEST_CASE("2,000 agents with a heartbeat a second are held by one thread") {
  struct Case {
    int nodes, ranks;
    double seconds;
  };
  for (const auto& [nodes, ranks, seconds] : {Case{16, 64, 2}, Case{2000, 8, 5}}) {
    const Load load = load_of(nodes, ranks, seconds);
    fmt::print(
        "fleet of {} nodes x {} ranks: greeted in {:.2f} s; then {:.1f} % of a core, "
        "{} heartbeats in and {} out in {:.0f} s\n",
        nodes, ranks, load.greeting_s, 100 * load.cpu_share, load.beats, load.answers, seconds);
    INFO(nodes << " nodes, " << ranks << " ranks each");
    CHECK(load.ready == nodes);
    CHECK(load.lost == 0);
    CHECK(load.beats >= nodes);
    CHECK(load.ranks == load.beats * ranks);
    CHECK(load.answers >= nodes);
  }
}
