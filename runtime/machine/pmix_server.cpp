#include "runtime/machine/pmix_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/machine/pmix_job.h"
#include "runtime/machine/pmix_library.h"
#include "runtime/machine/pmix_log.h"

namespace trainctl {
namespace {

/// libpmix's thread answers within microseconds; registering tens of thousands of ranks takes it a second.
constexpr auto kOperationLimit = std::chrono::seconds(60);
constexpr const char* kSecurity = "native";  // a rank is who its socket's owner is; needs no munge
constexpr const char* kStore =
    "hash";  // each rank keeps what it was sent: no shared files that a killed rank could leave locked

/// An operation of libpmix that ends with a callback on its thread. Shared with that callback, which may come
/// after the deadline.
struct Operation {
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<pmix_status_t> status;
  std::shared_ptr<PmixInfos> infos;  ///< libpmix reads them until the end
};

void operation_ended(pmix_status_t status, void* data) {
  const std::unique_ptr<std::shared_ptr<Operation>> operation(static_cast<std::shared_ptr<Operation>*>(data));
  const std::lock_guard lock((*operation)->mutex);
  (*operation)->status = status;
  (*operation)->ended.notify_all();
}

/// Starts an operation by `start`(callback, its argument) and waits for its end. `what` completes "libpmix
/// could not ...".
template <typename Start>
void perform(const std::string& what, std::shared_ptr<PmixInfos> infos, Start start) {
  const auto operation = std::make_shared<Operation>();
  operation->infos = std::move(infos);
  auto* shared = new std::shared_ptr<Operation>(operation);
  pmix_status_t status = start(operation_ended, shared);
  if (status == PMIX_SUCCESS) {
    std::unique_lock lock(operation->mutex);
    if (!operation->ended.wait_for(lock, kOperationLimit, [&] { return operation->status.has_value(); }))
      throw Error(ErrorCode::kLauncher,
                  fmt::format("libpmix did not {} within {} s", what, kOperationLimit.count()));
    status = *operation->status;
  } else {
    delete shared;  // the callback will not come
  }
  if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED)
    throw Error(ErrorCode::kLauncher, fmt::format("libpmix could not {}: {} ({})", what,
                                                  pmix_library().error_string(status), status));
}

pmix_proc_t process_of(const std::string& name, int rank) {
  pmix_proc_t process;
  std::memset(&process, 0, sizeof process);
  std::strncpy(process.nspace, name.c_str(), sizeof process.nspace - 1);
  process.rank = pmix_rank_t(rank);
  return process;
}

/// MPI's files of an epoch whose processes are gone. What cannot be removed goes with the scratch folder.
void remove_left_overs(const std::string& folder) {
  try {
    real_file_system().remove_tree(folder);
  } catch (const std::exception&) {
  }
}

/// Answers libpmix on a thread of its own: the callback of a log request deadlocks libpmix 4.2 when it is
/// called inside the request.
class LateAnswers {
 public:
  LateAnswers() : thread_([this] { run(); }) {}
  ~LateAnswers() { stop(); }
  /// Answers those that wait; later ones are not answered.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  void add(pmix_op_cbfunc_t answer, void* argument) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.emplace_back(answer, argument);
    }
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto [answer, argument] = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      answer(PMIX_SUCCESS, argument);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<pmix_op_cbfunc_t, void*>> waiting_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

struct PmixServer::State {
  explicit State(Options given) : options(std::move(given)), pmix(pmix_library()) {}

  const Options options;
  const PmixLibrary& pmix;
  std::optional<Epoch> current;  ///< of the owner's thread

  /// A fence that libpmix waits for, answered at most once.
  struct Fence {
    pmix_modex_cbfunc_t answer;
    void* argument;
  };
  std::mutex mutex;  ///< of the rest, which libpmix's thread uses too
  std::string name;  ///< what libpmix calls the current epoch; "" between epochs
  uint64_t epoch = 0;
  std::optional<Fence> fence;
  LateAnswers late_answers;

  /// The epoch that `process` is of, if it is the current one.
  std::optional<uint64_t> epoch_of(const pmix_proc_t& process) {
    const std::lock_guard lock(mutex);
    if (name.empty() || name != process.nspace) return std::nullopt;
    return epoch;
  }
  void rename(const std::string& to, uint64_t number) {
    const std::lock_guard lock(mutex);
    name = to;
    epoch = number;
  }
  std::string folder() const { return fmt::format("{}/epoch-{}", options.scratch_folder, current->epoch); }
  std::string shared_folder() const {
    return fmt::format("{}/epoch-{}", options.shared_memory_folder, current->epoch);
  }

  // What libpmix calls, on its thread. They are plain functions without an argument of ours, hence
  // `instance`.
  static State* instance;
  static pmix_server_module_t* module();
  static pmix_status_t on_client(const pmix_proc_t*, void*, pmix_op_cbfunc_t answer, void* argument);
  static pmix_status_t on_abort(const pmix_proc_t* process, void*, int status, const char message[],
                                pmix_proc_t[], size_t, pmix_op_cbfunc_t answer, void* argument);
  static pmix_status_t on_fence(const pmix_proc_t processes[], size_t count, const pmix_info_t infos[],
                                size_t info_count, char* data, size_t size, pmix_modex_cbfunc_t answer,
                                void* argument);
  static void on_log(const pmix_proc_t*, const pmix_info_t data[], size_t count, const pmix_info_t[], size_t,
                     pmix_op_cbfunc_t answer, void* argument);
};

PmixServer::State* PmixServer::State::instance = nullptr;

pmix_server_module_t* PmixServer::State::module() {
  // Room for the functions of newer versions: libpmix copies as much as its own version has.
  static struct {
    pmix_server_module_t functions;
    void* newer[64];
  } module = {};
  module.functions.client_connected = on_client;
  module.functions.client_finalized = on_client;
  module.functions.abort = on_abort;
  module.functions.fence_nb = on_fence;
  module.functions.log = on_log;
  return &module.functions;
}

pmix_status_t PmixServer::State::on_client(const pmix_proc_t*, void*, pmix_op_cbfunc_t answer,
                                           void* argument) {
  if (answer) answer(PMIX_SUCCESS, argument);
  return PMIX_SUCCESS;
}

pmix_status_t PmixServer::State::on_abort(const pmix_proc_t* process, void*, int status, const char message[],
                                          pmix_proc_t[], size_t, pmix_op_cbfunc_t answer, void* argument) {
  if (const auto epoch = instance->epoch_of(*process))
    instance->options.events.aborted(*epoch, int(process->rank), status, message ? message : "");
  if (answer) answer(PMIX_SUCCESS, argument);
  return PMIX_SUCCESS;
}

pmix_status_t PmixServer::State::on_fence(const pmix_proc_t processes[], size_t count,
                                          const pmix_info_t infos[], size_t info_count, char* data,
                                          size_t size, pmix_modex_cbfunc_t answer, void* argument) {
  std::string share(data ? data : "", data ? size : 0);
  std::free(data);  // it is the host's
  // A rank that has died makes libpmix pass the fence up without it. Its parent reports the death; the fence
  // must not succeed.
  for (size_t i = 0; i < info_count; ++i) {
    const pmix_info_t& info = infos[i];
    if (std::strcmp(info.key, PMIX_LOCAL_COLLECTIVE_STATUS) == 0 && info.value.type == PMIX_STATUS &&
        info.value.data.status != PMIX_SUCCESS)
      return info.value.data.status;
  }
  const auto epoch = count > 0 ? instance->epoch_of(processes[0]) : std::nullopt;
  if (!epoch) return PMIX_ERR_NOT_FOUND;
  {
    const std::lock_guard lock(instance->mutex);
    if (instance->fence) return PMIX_ERR_NOT_SUPPORTED;  // of another group of ranks: we use none
    instance->fence = Fence{answer, argument};
  }
  instance->options.events.fence(*epoch, std::move(share));
  return PMIX_SUCCESS;
}

void PmixServer::State::on_log(const pmix_proc_t*, const pmix_info_t data[], size_t count,
                               const pmix_info_t[], size_t, pmix_op_cbfunc_t answer, void* argument) {
  for (size_t i = 0; i < count; ++i) {
    const pmix_value_t& value = data[i].value;
    std::string text;
    if (value.type == PMIX_STRING && value.data.string) text = value.data.string;
    if (value.type == PMIX_BYTE_OBJECT && value.data.bo.bytes)
      text = longest_text({value.data.bo.bytes, value.data.bo.size});
    if (!text.empty()) instance->options.events.log(std::move(text));
  }
  if (answer) instance->late_answers.add(answer, argument);
}

std::string pmix_problem() { return pmix_library().problem; }

PmixServer::PmixServer(Options options) {
  const PmixLibrary& pmix = pmix_library();
  if (!pmix.problem.empty()) throw Error(ErrorCode::kLauncher, pmix.problem);
  ENSURE(!State::instance, "a process has one PMIx server");
  const std::string folder = options.scratch_folder + "/pmix";
  real_file_system().make_directory(folder);
  std::signal(SIGPIPE, SIG_IGN);
  ::setenv("PMIX_MCA_gds", kStore, 1);
  ::setenv("PMIX_MCA_psec", kSecurity, 1);
  state_ = std::make_unique<State>(std::move(options));
  State::instance = state_.get();
  PmixInfos infos;
  infos.add_text(PMIX_SERVER_TMPDIR, folder);
  infos.add_text(PMIX_SYSTEM_TMPDIR, folder);
  infos.add_text(PMIX_HOSTNAME, state_->options.host_name);
  const pmix_status_t status = pmix.server_init(State::module(), infos.data(), infos.size());
  if (status != PMIX_SUCCESS) {
    State::instance = nullptr;
    throw Error(
        ErrorCode::kLauncher,
        fmt::format("the PMIx server of {} did not start: {} ({}); launcher.start mpirun does without",
                    pmix.path, pmix.error_string(status), status));
  }
}

PmixServer::~PmixServer() {
  try {
    end();
  } catch (const std::exception&) {
    // The process ends; what is left is removed with the scratch folder.
  }
  state_->late_answers.stop();
  state_->pmix.server_finalize();  // its thread has ended
  State::instance = nullptr;
}

void PmixServer::begin(const Epoch& epoch) {
  end();
  if (const std::string problem = problem_of(epoch); !problem.empty())
    throw Error(ErrorCode::kLauncher, fmt::format("epoch {} cannot begin: {}", epoch.epoch, problem));
  const PmixLibrary& pmix = state_->pmix;
  const std::string name = fmt::format("trainctl.{}.{}", epoch.mark, epoch.epoch);
  state_->current = epoch;
  // The order within a host is that of the ranks: shared-memory transports count local ranks in it.
  for (std::vector<int>& ranks : state_->current->ranks_of_host) std::sort(ranks.begin(), ranks.end());
  const std::vector<int>& local = state_->current->ranks_of_host[size_t(epoch.this_host)];
  state_->rename(name, epoch.epoch);
  real_file_system().make_directory(state_->folder());
  real_file_system().make_directory(state_->shared_folder());
  const auto infos = job_infos(*state_->current, name);
  perform("register the ranks", infos, [&](pmix_op_cbfunc_t ended, void* argument) {
    return pmix.register_nspace(process_of(name, 0).nspace, int(local.size()), infos->data(), infos->size(),
                                ended, argument);
  });
  for (const int rank : local) {
    const pmix_proc_t process = process_of(name, rank);
    perform(fmt::format("register rank {}", rank), nullptr, [&](pmix_op_cbfunc_t ended, void* argument) {
      return pmix.register_client(&process, ::getuid(), ::getgid(), nullptr, ended, argument);
    });
  }
}

Environment PmixServer::environment_of(int rank) {
  ENSURE(state_->current, "no epoch has begun");
  const Epoch& epoch = *state_->current;
  const std::vector<int>& local = epoch.ranks_of_host[size_t(epoch.this_host)];
  const auto it = std::find(local.begin(), local.end(), rank);
  ENSURE(it != local.end(), "rank {} is not of host {}", rank, epoch.this_host);
  size_t world_size = 0;
  for (const auto& ranks : epoch.ranks_of_host) world_size += ranks.size();

  const pmix_proc_t process = process_of(state_->name, rank);
  auto** variables = static_cast<char**>(std::calloc(1, sizeof(char*)));  // libpmix makes it longer
  const pmix_status_t status = state_->pmix.setup_fork(&process, &variables);
  Environment environment;
  for (char** variable = variables; variable && *variable; ++variable) {
    const std::string text = *variable;
    const size_t equals = text.find('=');
    if (equals != std::string::npos)
      environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    std::free(*variable);
  }
  std::free(variables);
  if (status != PMIX_SUCCESS)
    throw Error(ErrorCode::kLauncher, fmt::format("libpmix has no environment for rank {}: {} ({})", rank,
                                                  state_->pmix.error_string(status), status));
  const auto set = [&](const char* variable, const std::string& value) {
    std::erase_if(environment, [&](const auto& earlier) { return earlier.first == variable; });
    environment.emplace_back(variable, value);
  };
  set("PMIX_MCA_gds", kStore);
  set("PMIX_MCA_psec", kSecurity);
  // Nothing connects there. Without it OpenMPI 4.1 takes itself for a program without a launcher; newer
  // versions do not read it.
  set("OMPI_MCA_orte_local_daemon_uri", "1.0;tcp://127.0.0.1:1");
  set("OMPI_MCA_orte_tmpdir_base", state_->folder());
  set("TMPDIR", state_->folder());
  set("OMPI_MCA_btl_vader_backing_directory", state_->shared_folder());
  set("OMPI_MCA_btl_sm_backing_directory", state_->shared_folder());
  set("OMPI_COMM_WORLD_RANK", fmt::format("{}", rank));
  set("OMPI_COMM_WORLD_SIZE", fmt::format("{}", world_size));
  set("OMPI_COMM_WORLD_LOCAL_RANK", fmt::format("{}", it - local.begin()));
  set("OMPI_COMM_WORLD_LOCAL_SIZE", fmt::format("{}", local.size()));
  return environment;
}

void PmixServer::finish_fence(uint64_t epoch, std::string data) {
  std::optional<State::Fence> fence;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->name.empty() || state_->epoch != epoch) return;
    fence = std::exchange(state_->fence, std::nullopt);
  }
  if (!fence) return;
  auto* all = new std::string(std::move(data));
  fence->answer(
      PMIX_SUCCESS, all->data(), all->size(), fence->argument,
      [](void* text) { delete static_cast<std::string*>(text); }, all);
}

void PmixServer::end() {
  if (!state_->current) return;
  const PmixLibrary& pmix = state_->pmix;
  const std::string folder = state_->folder(), shared_folder = state_->shared_folder();
  state_->current.reset();
  std::string name;
  std::optional<State::Fence> fence;
  {
    const std::lock_guard lock(state_->mutex);
    name = std::exchange(state_->name, "");
    fence = std::exchange(state_->fence, std::nullopt);
  }
  // libpmix forgets a fence only when it is answered.
  if (fence) fence->answer(PMIX_ERR_LOST_CONNECTION, nullptr, 0, fence->argument, nullptr, nullptr);
  // The clients are not deregistered one by one: libpmix 4.2 would close their sockets without a word to its
  // event loop. If the loop has not yet seen the end of a killed rank, it then ignores whoever connects next
  // and gets the same descriptor.
  perform("forget the ranks", nullptr, [&](pmix_op_cbfunc_t ended, void* argument) {
    pmix.deregister_nspace(process_of(name, 0).nspace, ended, argument);
    return pmix_status_t(PMIX_SUCCESS);
  });
  remove_left_overs(folder);
  remove_left_overs(shared_folder);
}

}  // namespace trainctl
