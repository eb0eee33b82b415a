#include "runtime/run/agent/local_machine.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/run/wire/environment.h"

namespace trainctl {
namespace {

using wire::Kind;
using wire::Message;

/// Between two looks whether killed processes are gone.
constexpr double kKillIntervalS = 0.005;
/// A process that outlives SIGKILL for so long hangs in the kernel; the epoch is reported gone with what is
/// left.
constexpr double kKillLimitS = 5;
/// mpirun ends every rank when it gets one of these, also where a scheduler sends it to all processes of its job
/// while the supervisor saves. It is ended by SIGKILL, and its ranks start with none blocked. Its daemons on
/// other nodes get no mask: a shell starts them, and dash clears it.
const std::vector<int> kNotForMpirun = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

struct LocalMachine::Child {
  int rank;         ///< -1: mpirun, or a daemon of it
  int64_t spawned;  ///< number of the request that started it, 0 for none
  std::unique_ptr<ChildProcess> process;
  bool ended = false;
};

struct LocalMachine::Epoch {
  Epoch(uint64_t number, wire::StartOrder start)
      : number(number), order(std::move(start)), folders(order.session_folder, order.shared_memory_folder) {}

  /// A process that plays mpirun's remote shell and waits for the end of what it started elsewhere.
  struct Remote {
    int64_t number = 0;
    std::unique_ptr<Stream> stream;
  };

  const uint64_t number;
  const wire::StartOrder order;
  const SessionFolders folders;
  const std::string token = random_token();
  std::string memory_folder;
  std::unique_ptr<ActivityBoard> board;
  std::unique_ptr<ControlServer> server;
  std::map<int, Rank> ranks;
  std::vector<Child> children;
  int remote_listener = -1;
  std::vector<Remote> remotes;
  int64_t remotes_seen = 0;
  FenceShares fences;
  bool pmix_begun = false;
  std::optional<double> killing_s;  ///< since when
  double next_kill_s = 0;

  ~Epoch() {
    if (remote_listener >= 0) ::close(remote_listener);
  }
};

LocalMachine::LocalMachine(Options options, Clock& clock, MachineEvents events)
    : options_(std::move(options)), clock_(clock), events_(std::move(events)) {
  pmix_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

LocalMachine::~LocalMachine() {
  if (epoch_) {
    for (int tries = 0; tries < 200 && signal_marked(kAttemptVariable, epoch_->order.mark, SIGKILL) > 0;
         ++tries)
      clock_.sleep_s(kKillIntervalS);
    epoch_.reset();
  }
  pmix_.reset();
  ::close(pmix_fd_);
}

std::optional<uint64_t> LocalMachine::epoch() const {
  return epoch_ ? std::optional(epoch_->number) : std::nullopt;
}

void LocalMachine::emit(Kind kind, int rank, int64_t number, std::string text, std::string payload) {
  events_({.kind = kind,
           .epoch = epoch_->number,
           .rank = rank,
           .number = number,
           .text = std::move(text),
           .payload = std::move(payload)});
}

void LocalMachine::order(const Message& message) {
  if (message.kind == Kind::start) return start(message);
  if (!epoch_ || message.epoch != epoch_->number) {
    // Whatever that epoch had here is gone.
    if (message.kind == Kind::kill) events_({.kind = Kind::gone, .epoch = message.epoch});
    return;
  }
  switch (message.kind) {
    case Kind::rank:
      if (message.rank < 0)
        epoch_->server->send_all(message.payload);
      else
        epoch_->server->send_to(message.rank, message.payload);
      return;
    case Kind::fence:
      if (pmix_ && epoch_->fences.answer(message.number)) pmix_->finish_fence(message.epoch, message.payload);
      return;
    case Kind::spawn:
      return spawn(message);
    case Kind::remote_ended:
      for (Epoch::Remote& remote : epoch_->remotes)
        if (remote.number == message.number) remote.stream->send(message);
      return;
    case Kind::kill:
      return kill_all();
    default:
      return;
  }
}

void LocalMachine::start(const Message& message) {
  // The supervisor has waited for the end of the epoch before; one that is still here has been forgotten by
  // it.
  if (epoch_) {
    for (int tries = 0; tries < 400 && signal_marked(kAttemptVariable, epoch_->order.mark, SIGKILL) > 0;
         ++tries)
      clock_.sleep_s(kKillIntervalS);
    if (epoch_->pmix_begun) pmix_->end();
    epoch_.reset();
  }
  epoch_ = std::make_unique<Epoch>(message.epoch, wire::StartOrder::from_json(message.payload));
  Epoch& e = *epoch_;
  if (options_.memory_for) e.memory_folder = options_.memory_for(e.order);
  e.board = ActivityBoard::create(e.folders.shared_memory() + "/activity", e.order.world_size);
  e.server = std::make_unique<ControlServer>(
      "unix:" + e.folders.shared_memory() + "/ranks", e.token, e.order.world_size,
      ControlServer::Handler{
          .hello =
              [this](const protocol::Hello& hello) {
                epoch_->ranks[hello.rank] = {hello.pid, clock_.monotonic_s(), true};
                emit(Kind::rank, hello.rank, 0, "", protocol::encode(protocol::Up{.hello = hello}));
              },
          .beat = [this](int rank) { epoch_->ranks[rank].heard_s = clock_.monotonic_s(); },
          .line =
              [this](int rank, std::string&& line) {
                epoch_->ranks[rank].heard_s = clock_.monotonic_s();
                emit(Kind::rank, rank, 0, "", std::move(line));
              },
          .lost =
              [this](int rank, const std::string& why) {
                epoch_->ranks[rank].connected = false;
                // What it did last belongs to its loss. What all do now comes after it: mpirun lets stopped
                // ranks go on to end them, and before the loss that would count as "never stopped".
                emit(Kind::beat, -1, 0, "", wire::pack({digest_of(rank, epoch_->ranks[rank])}));
                emit(Kind::rank_lost, rank, 0, why);
                emit(Kind::beat, -1, 0, "", wire::pack(digests()));
              }});
  if (e.order.pmix) return start_ranks();
  if (!e.order.leads) return;
  e.remote_listener = listen_on("unix:" + e.folders.shared_memory() + "/remote");
  e.children.push_back({-1, 0,
                        std::make_unique<ChildProcess>(e.order.argv, environment_of_children(),
                                                       std::vector<std::string>{}, kNotForMpirun)});
}

Environment LocalMachine::environment_of_children() const {
  const Epoch& e = *epoch_;
  Environment environment = e.order.environment;
  environment.emplace_back(kTokenVariable, e.token);
  environment.emplace_back(kAttemptVariable, e.order.mark);
  environment.emplace_back(kRunVariable, options_.run_directory);
  environment.emplace_back(kAgentVariable, e.server->address());
  environment.emplace_back(kBoardVariable, e.folders.shared_memory() + "/activity");
  environment.emplace_back(kEpochVariable, fmt::format("{}", e.number));
  if (!e.memory_folder.empty()) environment.emplace_back(kMemoryVariable, e.memory_folder);
  environment.emplace_back(kRemoteVariable, "unix:" + e.folders.shared_memory() + "/remote");
  return environment;
}

void LocalMachine::start_ranks() {
  Epoch& e = *epoch_;
  if (!pmix_) {
    pmix_folders_.emplace();
    const auto tell = [this](Message&& news) {
      const std::lock_guard lock(pmix_mutex_);
      pmix_news_.push_back(std::move(news));
      ::eventfd_write(pmix_fd_, 1);
    };
    pmix_ = std::make_unique<PmixServer>(PmixServer::Options{
        .scratch_folder = pmix_folders_->session(),
        .shared_memory_folder = pmix_folders_->shared_memory(),
        .host_name = options_.host,
        .events = {
            .fence =
                [tell](uint64_t epoch, std::string data) {
                  tell({.kind = Kind::fence, .epoch = epoch, .payload = std::move(data)});
                },
            .aborted =
                [tell](uint64_t epoch, int rank, int status, std::string text) {
                  tell({.kind = Kind::output,
                        .epoch = epoch,
                        .payload = fmt::format("rank {} called MPI_Abort({}): {}\n", rank, status, text)});
                },
            .log = [tell](std::string text) { tell({.kind = Kind::output, .payload = std::move(text)}); }}});
  }
  PmixServer::Epoch layout{
      .epoch = e.number, .mark = e.order.mark, .hosts = e.order.hosts, .this_host = e.order.this_host};
  for (const wire::RankRange& range : e.order.ranks) {
    layout.ranks_of_host.emplace_back();
    for (int i = 0; i < range.count; ++i) layout.ranks_of_host.back().push_back(range.first + i);
  }
  pmix_->begin(layout);
  e.pmix_begun = true;
  const Environment common = environment_of_children();
  for (const int rank : layout.ranks_of_host[size_t(e.order.this_host)]) {
    Environment environment = pmix_->environment_of(rank);
    environment.insert(environment.end(), common.begin(), common.end());
    e.children.push_back({rank, 0, std::make_unique<ChildProcess>(e.order.argv, environment)});
  }
}

void LocalMachine::spawn(const Message& message) {
  // A supervisor that took over may get a request again.
  if (std::any_of(epoch_->children.begin(), epoch_->children.end(),
                  [&](const Child& child) { return child.spawned == message.number; }))
    return;
  // mpirun writes a line for a shell; it may begin with assignments.
  epoch_->children.push_back(
      {-1, message.number,
       std::make_unique<ChildProcess>(std::vector<std::string>{"/bin/sh", "-c", message.payload},
                                      environment_of_children())});
}

void LocalMachine::add_to(std::vector<pollfd>& fds) const {
  fds.push_back({.fd = pmix_fd_, .events = POLLIN, .revents = 0});
  if (!epoch_) return;
  epoch_->server->add_to(fds);
  for (const Child& child : epoch_->children) {
    fds.push_back({.fd = hold_output_ ? -1 : child.process->output_fd(), .events = POLLIN, .revents = 0});
    if (!child.ended) fds.push_back({.fd = child.process->exit_fd(), .events = POLLIN, .revents = 0});
  }
  fds.push_back({.fd = epoch_->remote_listener, .events = POLLIN, .revents = 0});
  for (const Epoch::Remote& remote : epoch_->remotes)
    fds.push_back({.fd = remote.stream->fd(),
                   .events = short(POLLIN | (remote.stream->wants_write() ? POLLOUT : 0)),
                   .revents = 0});
}

double LocalMachine::deadline_s() const { return epoch_ && epoch_->killing_s ? epoch_->next_kill_s : kNever; }

void LocalMachine::serve() {
  take_from_pmix();
  if (epoch_) {
    epoch_->server->serve();
    watch_remotes();
    watch_children();
  }
  reap_strangers();
  kill_step();
}

std::deque<Message> LocalMachine::fence_shares() const {
  return epoch_ ? epoch_->fences.kept() : std::deque<Message>{};
}

void LocalMachine::take_from_pmix() {
  eventfd_t count;
  ::eventfd_read(pmix_fd_, &count);
  std::vector<Message> news;
  {
    const std::lock_guard lock(pmix_mutex_);
    news.swap(pmix_news_);
  }
  for (Message& message : news) {
    if (!epoch_ || (message.epoch != 0 && message.epoch != epoch_->number)) continue;
    message.epoch = epoch_->number;
    if (message.kind == Kind::fence) epoch_->fences.add(message);
    events_(std::move(message));
  }
}

void LocalMachine::watch_children() {
  for (size_t i = 0; i < epoch_->children.size(); ++i) {
    Child& child = epoch_->children[i];
    if (!hold_output_) pass_output(child);
    const auto status = child.process->reap();
    if (!status || child.ended) continue;
    child.ended = true;
    // What ranks and launcher said before the end counts before the end itself.
    epoch_->server->serve();
    pass_output(child);
    if (child.spawned) emit(Kind::remote_ended, -1, child.spawned, fmt::format("{}", *status));
    else emit(Kind::exited, child.rank, *status);
  }
}

void LocalMachine::pass_output(Child& child) {
  std::string text = child.process->read_output();
  if (!text.empty()) emit(Kind::output, child.rank, 0, "", std::move(text));
}

void LocalMachine::watch_remotes() {
  Epoch& e = *epoch_;
  if (e.remote_listener < 0) return;
  for (int fd; (fd = accept_from(e.remote_listener)) >= 0;) {
    e.remotes.push_back({++e.remotes_seen, std::make_unique<Stream>(fd)});
    // The socket lies in a private folder, and the command line of a daemon may be long.
    e.remotes.back().stream->greeted();
  }
  for (Epoch::Remote& remote : e.remotes) {
    remote.stream->flush();
    for (const Message& message : remote.stream->read())
      if (message.kind == Kind::remote) emit(Kind::remote, -1, remote.number, message.text, message.payload);
  }
  std::erase_if(e.remotes, [](const Epoch::Remote& remote) { return !remote.stream->open(); });
}

void LocalMachine::reap_strangers() {
  // Daemons that left their parent become children of this process (PR_SET_CHILD_SUBREAPER). Children of ours
  // are left to their owner.
  while (const std::optional<pid_t> ended = ended_child()) {
    const bool ours = epoch_ && std::any_of(epoch_->children.begin(), epoch_->children.end(), [&](const Child& child) {
      return child.process->pid() == *ended && !child.ended;
    });
    if (ours) return;  // reaped by the next watch_children
    reap(*ended);
  }
}

void LocalMachine::kill_all() {
  if (!epoch_ || epoch_->killing_s) return;
  epoch_->killing_s = clock_.monotonic_s();
  epoch_->next_kill_s = 0;
  kill_step();
}

void LocalMachine::kill_step() {
  if (!epoch_ || !epoch_->killing_s) return;
  const double now_s = clock_.monotonic_s();
  if (now_s < epoch_->next_kill_s) return;
  // A process may have been starting while the others were killed: until none is left.
  const int left = signal_marked(kAttemptVariable, epoch_->order.mark, SIGKILL);
  epoch_->next_kill_s = now_s + kKillIntervalS;
  if (left > 0 && now_s - *epoch_->killing_s < kKillLimitS) return;
  if (epoch_->pmix_begun) pmix_->end();
  const uint64_t number = epoch_->number;
  epoch_.reset();
  events_({.kind = Kind::gone, .epoch = number, .number = left});
}

wire::RankDigest LocalMachine::digest_of(int number, const Rank& rank) const {
  wire::RankDigest digest{
      .rank = number, .pid = rank.pid, .silent_s = float(clock_.monotonic_s() - rank.heard_s)};
  digest.connected = rank.connected;
  // In this order: what a stopped rank does cannot change any more.
  digest.stopped = rank.connected && process_stopped(rank.pid);
  if (const auto activity = epoch_->board ? epoch_->board->read(number) : std::nullopt) {
    digest.has_activity = 1;
    digest.activity = *activity;
  }
  return digest;
}

std::vector<wire::RankDigest> LocalMachine::digests() const {
  std::vector<wire::RankDigest> all;
  if (epoch_)
    for (const auto& [number, rank] : epoch_->ranks) all.push_back(digest_of(number, rank));
  return all;
}

}  // namespace trainctl
