#include "runtime/machine/pmix/pmix_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/machine/pmix/fork_server.h"
#include "runtime/machine/pmix/pmix_service.h"
#include "runtime/machine/pmix/pmix_wire.h"

namespace trainctl {
namespace {

/// For libpmix to start (0.02 s on a calm machine) and to register an epoch.
constexpr auto kAnswerLimit = std::chrono::seconds(60);
/// For a service to take what it is sent: it always reads.
constexpr int kSendLimitS = 10;
/// For a killed process to be gone.
constexpr int kEndLimitMs = 10000;

/// What is wrong with it: it comes from another machine.
Problem problem_of_epoch(const PmixServer::Epoch& epoch) {
  if (epoch.hosts.empty() || epoch.hosts.size() != epoch.ranks_of_host.size())
    return Problem(
        fmt::format("{} hosts have {} lists of ranks", epoch.hosts.size(), epoch.ranks_of_host.size()));
  if (epoch.this_host < 0 || size_t(epoch.this_host) >= epoch.hosts.size())
    return Problem(fmt::format("this_host = {} is none of {} hosts", epoch.this_host, epoch.hosts.size()));
  if (epoch.mark.empty() || epoch.mark.size() > 128)
    return Problem(fmt::format("the mark has {} characters, not 1 to 128", epoch.mark.size()));
  std::vector<int> ranks;
  for (size_t host = 0; host < epoch.hosts.size(); ++host) {
    const std::string& name = epoch.hosts[host];
    if (name.empty() || name.find_first_of(",;[] ") != std::string::npos)
      return Problem(fmt::format("host {} is called '{}'", host, name));
    if (epoch.ranks_of_host[host].empty()) return Problem(fmt::format("host {} has no ranks", name));
    ranks.insert(ranks.end(), epoch.ranks_of_host[host].begin(), epoch.ranks_of_host[host].end());
  }
  std::sort(ranks.begin(), ranks.end());
  for (size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i] != int(i))
      return Problem(fmt::format("the ranks are not 0 to {}, each once", ranks.size() - 1));
  return Problem::none();
}

/// What is left of processes that are gone. What cannot be removed goes with the scratch folder.
void remove_left_overs(const std::string& folder) {
  try {
    real_file_system().remove_tree(folder);
  } catch (const std::exception&) {
  }
}

/// The process that serves one epoch, and the thread that listens to it.
class ServiceProcess {
 public:
  using News = std::function<void(PmixMessage)>;

  /// `news` gets what is no answer, on the thread of this object, also that the process has ended by itself
  /// (a message of kind `failed`).
  ServiceProcess(ForkServer::Child child, std::string host, News news)
      : child_(child), host_(std::move(host)), news_(std::move(news)), listener_([this] { listen(); }) {
    const timeval limit = {.tv_sec = kSendLimitS, .tv_usec = 0};
    ::setsockopt(child_.socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  /// Kills the process; no news comes afterwards.
  ~ServiceProcess() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    ::syscall(SYS_pidfd_send_signal, child_.process, SIGKILL, nullptr, 0);
    pollfd ended = {child_.process, POLLIN, 0};
    ::poll(&ended, 1, kEndLimitMs);
    ::shutdown(child_.socket, SHUT_RDWR);
    listener_.join();
    ::close(child_.socket);
    ::close(child_.process);
  }
  ServiceProcess(const ServiceProcess&) = delete;
  ServiceProcess& operator=(const ServiceProcess&) = delete;

  bool send(PmixMessageKind kind, std::string_view body) {
    const std::lock_guard lock(sending_);
    return send_message(child_.socket, kind, body);
  }
  /// It has ended by itself.
  bool gone() {
    const std::lock_guard lock(mutex_);
    return gone_;
  }
  /// The answer of kind `kind` to what was sent. Error(kLauncher).
  std::string answer(PmixMessageKind kind) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kAnswerLimit, [&] { return answer_ || gone_; }))
      throw Error(ErrorCode::kLauncher,
                  fmt::format("the PMIx server did not answer within {} s", kAnswerLimit.count()));
    if (!answer_) throw Error(ErrorCode::kLauncher, "the PMIx server ended by itself; its log says more");
    PmixMessage message = *std::exchange(answer_, std::nullopt);
    if (message.kind == PmixMessageKind::failed) throw Error(ErrorCode::kLauncher, message.body);
    ENSURE(message.kind == kind, "kind {}, expected {}", int(message.kind), int(kind));
    return std::move(message.body);
  }

 private:
  static bool is_answer(PmixMessageKind kind) {
    return kind == PmixMessageKind::ready || kind == PmixMessageKind::begun ||
           kind == PmixMessageKind::failed;
  }
  void listen() {
    while (auto message = receive_message(child_.socket)) {
      if (!is_answer(message->kind)) {
        news_(std::move(*message));
        continue;
      }
      const std::lock_guard lock(mutex_);
      answer_ = std::move(message);
      changed_.notify_all();
    }
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      changed_.notify_all();
      if (ending_) return;
    }
    news_({PmixMessageKind::failed, fmt::format("the PMIx server of {} ended by itself\n", host_)});
  }

  const ForkServer::Child child_;
  const std::string host_;
  const News news_;
  std::mutex sending_;
  std::mutex mutex_;  ///< of the rest
  std::condition_variable changed_;
  std::optional<PmixMessage> answer_;
  bool gone_ = false, ending_ = false;
  std::thread listener_;  // last: it uses the others
};

}  // namespace

struct PmixServer::State {
  explicit State(Options given) : options(std::move(given)) {}

  const Options options;
  std::optional<ForkServer> fork_server{std::in_place, serve_pmix};
  std::optional<Epoch> current;  ///< with the ranks of each host in order
  std::map<int, Environment> environments;
  int services = 0;    ///< started so far
  bool ready = false;  ///< the service has said so

  std::mutex service_mutex;
  std::unique_ptr<ServiceProcess> service;
  std::mutex epoch_mutex;  ///< apart: the service's thread needs it while another one sends to the service
  std::optional<uint64_t> epoch;  ///< whose news are passed on

  std::string pmix_folder() const { return fmt::format("{}/pmix-{}", options.scratch_folder, services); }
  std::string folder() const { return fmt::format("{}/epoch-{}", options.scratch_folder, current->epoch); }
  std::string shared_folder() const {
    return fmt::format("{}/epoch-{}", options.shared_memory_folder, current->epoch);
  }
  std::optional<uint64_t> epoch_of_news() {
    const std::lock_guard lock(epoch_mutex);
    return epoch;
  }
  void set_epoch_of_news(std::optional<uint64_t> number) {
    const std::lock_guard lock(epoch_mutex);
    epoch = number;
  }

  void start_service();
  ForkServer::Child fork_service();
  void stop_service();
  /// Lets a service begin the current epoch; the local ranks' environments.
  std::string begun();
  /// On the service's thread.
  void pass_on(PmixMessage& message);
};

/// A watchdog that ends all processes of its agent ends the fork server, too: it is replaced.
ForkServer::Child PmixServer::State::fork_service() {
  try {
    return fork_server->start();
  } catch (const Error&) {
    fork_server.emplace(serve_pmix);
    return fork_server->start();
  }
}

/// It starts libpmix while the owner does something else.
void PmixServer::State::start_service() {
  ++services;
  ready = false;
  real_file_system().make_directory(pmix_folder());
  auto started = std::make_unique<ServiceProcess>(fork_service(), options.host_name,
                                                  [this](PmixMessage message) { pass_on(message); });
  PmixBody body;
  body.put(std::string_view(pmix_folder()));
  body.put(std::string_view(options.host_name));
  started->send(PmixMessageKind::start, body.bytes());
  const std::lock_guard lock(service_mutex);
  service = std::move(started);
}

void PmixServer::State::stop_service() {
  set_epoch_of_news(std::nullopt);
  {
    const std::lock_guard lock(service_mutex);
    service.reset();
  }
  remove_left_overs(pmix_folder());
}

std::string PmixServer::State::begun() {
  PmixBody body;
  body.put(*current);
  for (bool again = false;; again = true) {
    if (!service) start_service();
    try {
      if (!ready) service->answer(PmixMessageKind::ready);
      ready = true;
      service->send(PmixMessageKind::begin, body.bytes());
      std::string environments = service->answer(PmixMessageKind::begun);
      set_epoch_of_news(current->epoch);  // no sooner: the end of a service that is replaced is no news
      if (service->gone()) throw Error(ErrorCode::kLauncher, "the PMIx server ended by itself");
      return environments;
    } catch (const Error&) {
      const bool gone = service->gone();
      stop_service();
      if (again || !gone) throw;  // one that has ended while it waited for an epoch is replaced
    }
  }
}

void PmixServer::State::pass_on(PmixMessage& message) {
  const std::optional<uint64_t> of = epoch_of_news();
  const Events& events = options.events;
  if (message.kind == PmixMessageKind::log) {
    events.log(std::move(message.body));
  } else if (of && message.kind == PmixMessageKind::fence) {
    events.fence(*of, std::move(message.body));
  } else if (of && message.kind == PmixMessageKind::aborted) {
    PmixBody body(std::move(message.body));
    const auto rank = int(body.number()), status = int(body.number());
    events.aborted(*of, rank, status, body.text());
  } else if (of && message.kind == PmixMessageKind::failed) {
    events.log(std::move(message.body));
  }
}

PmixServer::PmixServer(Options options) {
  if (const Problem problem = pmix_problem(); problem.exists())
    throw Error(ErrorCode::kLauncher, problem.text());
  state_ = std::make_unique<State>(std::move(options));
  state_->start_service();
  state_->service->answer(PmixMessageKind::ready);
  state_->ready = true;
}

PmixServer::~PmixServer() {
  state_->stop_service();
  if (!state_->current) return;
  remove_left_overs(state_->folder());
  remove_left_overs(state_->shared_folder());
}

void PmixServer::begin(const Epoch& epoch) {
  end();
  if (const Problem problem = problem_of_epoch(epoch); problem.exists())
    throw Error(ErrorCode::kLauncher,
                fmt::format("attempt {} cannot begin: {}", epoch.epoch, problem.text()));
  state_->current = epoch;
  // Shared-memory transports count local ranks in the order of the ranks.
  for (std::vector<int>& ranks : state_->current->ranks_of_host) std::sort(ranks.begin(), ranks.end());
  const std::vector<int>& local = state_->current->ranks_of_host[size_t(epoch.this_host)];
  real_file_system().make_directory(state_->folder());
  real_file_system().make_directory(state_->shared_folder());
  PmixBody environments(state_->begun());
  state_->environments.clear();
  for (const int rank : local) state_->environments[rank] = environments.environment();
}

Environment PmixServer::environment_of(int rank) {
  ENSURE(state_->environments.contains(rank), "rank {} is not of this host and epoch", rank);
  const Epoch& epoch = *state_->current;
  const std::vector<int>& local = epoch.ranks_of_host[size_t(epoch.this_host)];
  const auto local_rank = std::find(local.begin(), local.end(), rank) - local.begin();
  size_t world_size = 0;
  for (const auto& ranks : epoch.ranks_of_host) world_size += ranks.size();
  Environment environment = state_->environments[rank];
  const auto set = [&](const char* variable, const std::string& value) {
    std::erase_if(environment, [&](const auto& earlier) { return earlier.first == variable; });
    environment.emplace_back(variable, value);
  };
  // Nothing connects there. Without it OpenMPI 4.1 takes itself for a program without a launcher; newer
  // versions do not read it.
  set("OMPI_MCA_orte_local_daemon_uri", "1.0;tcp://127.0.0.1:1");
  set("OMPI_MCA_orte_tmpdir_base", state_->folder());
  set("TMPDIR", state_->folder());
  set("OMPI_MCA_btl_vader_backing_directory", state_->shared_folder());
  set("OMPI_MCA_btl_sm_backing_directory", state_->shared_folder());
  set("OMPI_COMM_WORLD_RANK", fmt::format("{}", rank));
  set("OMPI_COMM_WORLD_SIZE", fmt::format("{}", world_size));
  set("OMPI_COMM_WORLD_LOCAL_RANK", fmt::format("{}", local_rank));
  set("OMPI_COMM_WORLD_LOCAL_SIZE", fmt::format("{}", local.size()));
  return environment;
}

void PmixServer::finish_fence(uint64_t epoch, std::string data) {
  const std::lock_guard lock(state_->service_mutex);
  if (state_->epoch_of_news() == epoch) state_->service->send(PmixMessageKind::finish, data);
}

void PmixServer::end() {
  if (!state_->current) return;
  state_->stop_service();
  remove_left_overs(state_->folder());
  remove_left_overs(state_->shared_folder());
  state_->current.reset();
  state_->environments.clear();
  state_->start_service();
}

}  // namespace trainctl
