#include "runtime/run/agent/local_machine.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/run/agent/rank_connections.h"
#include "runtime/run/agent/remote_starts.h"
#include "runtime/run/wire/environment.h"
#include "runtime/run/wire/fence_shares.h"
#include "runtime/run/wire/flight_ring.h"

namespace trainctl {

using wire::Kind;
using wire::Message;

namespace {

/// A busy disk takes the rings of a failed epoch sooner.
constexpr double kRingsLimitS = 2;
constexpr double kRingsLookS = 0.005;

}  // namespace

/// What runs here for one epoch.
struct LocalMachine::Epoch {
  Epoch(uint64_t number, wire::StartOrder start)
      : number(number), order(std::move(start)), folders(order.session_folder, order.shared_memory_folder) {}
  /// The address at which mpirun's remote shells connect.
  std::string remote_address() const { return "unix:" + folders.shared_memory() + "/remote"; }

  const uint64_t number;
  const wire::StartOrder order;
  const SessionFolders folders;
  const std::string token = random_token();
  std::string memory_folder;
  std::optional<RankConnections> ranks;
  std::optional<EpochProcesses> processes;
  std::optional<RemoteStarts> remotes;  ///< where mpirun runs
  FenceShares fences;
  bool pmix_begun = false;
  /// The processes that the kill has left; their rings are being written.
  std::optional<int> left;
  std::future<void> rings;
  double rings_until_s = 0, rings_look_s = 0;
};

LocalMachine::LocalMachine(Options options, Clock& clock, MachineEvents events)
    : options_(std::move(options)), clock_(clock), events_(std::move(events)) {}

LocalMachine::~LocalMachine() {
  if (epoch_) epoch_->processes->kill_now(200);
  epoch_.reset();
  pmix_.reset();
}

std::optional<uint64_t> LocalMachine::epoch() const {
  return epoch_ ? std::optional(epoch_->number) : std::nullopt;
}

void LocalMachine::emit(Message&& message) {
  ENSURE(epoch_, "a message of kind {} without an epoch", int(message.kind));
  message.epoch = epoch_->number;
  events_(std::move(message));
}

void LocalMachine::order(const Message& message) {
  if (message.kind == Kind::start) return start(message);
  if (!epoch_ || message.epoch != epoch_->number) {
    // Whatever that epoch had here is gone.
    if (message.kind == Kind::kill) events_({.kind = Kind::gone, .epoch = message.epoch});
    return;
  }
  if (epoch_->left) return;  // it is over, and says so when its rings are written
  switch (message.kind) {
    case Kind::rank: return epoch_->ranks->send(message.rank, message.payload);
    case Kind::fence:
      if (pmix_ && epoch_->fences.answer(message.number)) pmix_->finish_fence(message.epoch, message.payload);
      return;
    case Kind::spawn:
      return epoch_->processes->start_shell(message.number, message.payload, environment_of_children());
    case Kind::remote_ended:
      if (epoch_->remotes) epoch_->remotes->ended(message);
      return;
    case Kind::kill: return kill_all();
    default: return;
  }
}

void LocalMachine::start(const Message& message) {
  ENSURE(!epoch_ || message.epoch >= epoch_->number, "epoch {} after {}", message.epoch, epoch_->number);
  // The supervisor has waited for the end of the epoch before; one that is still here has been forgotten by
  // it.
  if (epoch_) {
    epoch_->processes->kill_now(400);
    if (epoch_->pmix_begun) pmix_->end();
    epoch_.reset();
  }
  auto epoch = std::make_unique<Epoch>(message.epoch, wire::StartOrder::from_json(message.payload));
  Epoch& e = *epoch;
  if (options_.memory_for) e.memory_folder = options_.memory_for(message.epoch, e.order);
  const RankConnections::Options connections = {
      .folder = e.folders.shared_memory(), .token = e.token, .world_size = e.order.world_size};
  e.ranks.emplace(connections, clock_, [this](Message&& news) { emit(std::move(news)); });
  e.processes.emplace(e.order.mark, clock_, process_events());
  epoch_ = std::move(epoch);
  if (e.order.pmix) return start_ranks();
  if (!e.order.leads) return;
  e.remotes.emplace(e.remote_address());
  e.processes->start_mpirun(e.order.argv, environment_of_children());
}

EpochProcesses::Handler LocalMachine::process_events() {
  return {.output =
              [this](int rank, std::string&& text) {
                emit({.kind = Kind::output, .rank = rank, .payload = std::move(text)});
              },
          // What ranks and launcher said before the end counts before the end itself.
          .ending = [this] { epoch_->ranks->serve(); },
          .ended =
              [this](int rank, int64_t request, int status) {
                if (request != 0)
                  emit({.kind = Kind::remote_ended, .number = request, .text = fmt::format("{}", status)});
                else
                  emit({.kind = Kind::exited, .rank = rank, .number = status});
              }};
}

Environment LocalMachine::environment_of_children() const {
  const Epoch& e = *epoch_;
  Environment environment = e.order.environment;
  environment.emplace_back(kTokenVariable, e.token);
  environment.emplace_back(kAttemptVariable, e.order.mark);
  environment.emplace_back(kRunVariable, options_.run_directory);
  environment.emplace_back(kAgentVariable, e.ranks->address());
  environment.emplace_back(kBoardVariable, e.ranks->board_path());
  environment.emplace_back(kEpochVariable, fmt::format("{}", e.number));
  if (!e.memory_folder.empty()) environment.emplace_back(kMemoryVariable, e.memory_folder);
  environment.emplace_back(kRemoteVariable, e.remote_address());
  return environment;
}

void LocalMachine::begin_pmix(const PmixServer::Epoch& layout) {
  // Something may empty /tmp or /dev/shm under a run (RemoveIPC of systemd, an administrator).
  if (pmix_ && !pmix_folders_->exist()) pmix_.reset();
  if (!pmix_) {
    pmix_folders_.emplace();
    pmix_ = std::make_unique<PmixServer>(
        PmixServer::Options{.scratch_folder = pmix_folders_->session(),
                            .shared_memory_folder = pmix_folders_->shared_memory(),
                            .host_name = options_.host,
                            .events = pmix_news_.events()});
  }
  pmix_->begin(layout);
  epoch_->pmix_begun = true;
}

void LocalMachine::start_ranks() {
  Epoch& e = *epoch_;
  PmixServer::Epoch layout{
      .epoch = e.number, .mark = e.order.mark, .hosts = e.order.hosts, .this_host = e.order.this_host};
  for (const wire::RankRange& range : e.order.ranks) {
    layout.ranks_of_host.emplace_back();
    for (int i = 0; i < range.count; ++i) layout.ranks_of_host.back().push_back(range.first + i);
  }
  begin_pmix(layout);
  const Environment common = environment_of_children();
  for (const int rank : layout.ranks_of_host[size_t(e.order.this_host)]) {
    Environment environment = pmix_->environment_of(rank);
    environment.insert(environment.end(), common.begin(), common.end());
    e.processes->start_rank(rank, e.order.argv, environment);
  }
}

void LocalMachine::add_to(std::vector<pollfd>& fds) const {
  fds.push_back({.fd = pmix_news_.fd(), .events = POLLIN, .revents = 0});
  if (!epoch_) return;
  epoch_->ranks->add_to(fds);
  epoch_->processes->add_to(fds, hold_output_);
  if (epoch_->remotes) epoch_->remotes->add_to(fds);
}

double LocalMachine::deadline_s() const {
  if (!epoch_) return std::numeric_limits<double>::infinity();
  return epoch_->left ? epoch_->rings_look_s : epoch_->processes->deadline_s();
}

void LocalMachine::serve() {
  take_from_pmix();
  if (epoch_) {
    epoch_->ranks->serve();
    if (epoch_->remotes)
      for (RemoteStarts::Request& request : epoch_->remotes->serve())
        emit({.kind = Kind::remote,
              .number = request.number,
              .text = std::move(request.host),
              .payload = std::move(request.command)});
    epoch_->processes->watch(hold_output_);
  }
  reap_strangers();
  go_on_killing();
}

std::deque<Message> LocalMachine::fence_shares() const {
  return epoch_ ? epoch_->fences.kept() : std::deque<Message>{};
}

void LocalMachine::take_from_pmix() {
  for (PmixNews::Item& item : pmix_news_.take()) {
    if (!epoch_ || (item.epoch != 0 && item.epoch != epoch_->number)) continue;
    const bool is_fence = item.kind == PmixNews::Item::fence;
    Message message{.kind = is_fence ? Kind::fence : Kind::output,
                    .epoch = epoch_->number,
                    .payload = std::move(item.data)};
    if (is_fence) epoch_->fences.add(message);
    events_(std::move(message));
  }
}

void LocalMachine::reap_strangers() {
  // Daemons that left their parent become children of this process (PR_SET_CHILD_SUBREAPER). Children of ours
  // are left to their owner.
  while (const std::optional<pid_t> ended = ended_child()) {
    if (epoch_ && epoch_->processes->owns(*ended)) return;  // reaped by the next watch
    reap(*ended);
  }
}

void LocalMachine::kill_all() {
  if (!epoch_) return;
  epoch_->ranks->before_kill();
  epoch_->processes->begin_to_kill();
  go_on_killing();
}

void LocalMachine::go_on_killing() {
  if (!epoch_) return;
  Epoch& e = *epoch_;
  const double now_s = clock_.monotonic_s();
  if (!e.left) {
    e.left = e.processes->kill_step();
    if (!e.left) return;
    ENSURE(!e.pmix_begun || pmix_);
    if (e.pmix_begun) pmix_->end();
    e.rings = leave_rings();
    e.rings_until_s = now_s + kRingsLimitS;
  }
  // The supervisor reads them when it hears that the epoch is gone.
  if (e.rings.valid() && e.rings.wait_for(std::chrono::seconds(0)) != std::future_status::ready &&
      now_s < e.rings_until_s) {
    e.rings_look_s = now_s + kRingsLookS;
    return;
  }
  const uint64_t number = e.number;
  const int left = *e.left;
  epoch_.reset();
  events_({.kind = Kind::gone, .epoch = number, .number = left});
}

std::future<void> LocalMachine::leave_rings() const {
  if (!options_.leave_rings || !epoch_->ranks->has_failed()) return {};
  const std::vector<FlightLog> logs = epoch_->ranks->flights(epoch_->number, options_.host);
  if (logs.empty()) return {};
  return options_.leave_rings(flight_file_name(logs.front().rank), flight_text(logs));
}

std::vector<wire::RankDigest> LocalMachine::digests() const {
  return epoch_ ? epoch_->ranks->digests() : std::vector<wire::RankDigest>{};
}

}  // namespace trainctl
