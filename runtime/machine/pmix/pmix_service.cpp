#include "runtime/machine/pmix/pmix_service.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/machine/outer_launcher.h"
#include "runtime/machine/pmix/pmix_job.h"
#include "runtime/machine/pmix/pmix_library.h"
#include "runtime/machine/pmix/pmix_log.h"
#include "runtime/machine/pmix/pmix_server.h"
#include "runtime/machine/pmix/pmix_wire.h"

namespace trainctl {
namespace {

/// libpmix's thread answers within microseconds; registering 16,000 ranks takes it a quarter of a second.
constexpr auto kOperationLimit = std::chrono::seconds(30);
/// A rank is who its socket's owner is; needs no munge.
constexpr const char* kSecurity = "native";
/// Each rank keeps what it was sent: no shared files that a killed rank could leave locked.
constexpr const char* kStore = "hash";

/// A fence that libpmix waits for, answered at most once.
struct Fence {
  pmix_modex_cbfunc_t answer;
  void* argument;
};

/// What libpmix's thread and the main thread use.
struct Service {
  int socket = -1;
  std::mutex sending;
  std::mutex mutex;
  std::optional<Fence> fence;  ///< under `mutex`

  void tell(PmixMessageKind kind, std::string_view body) {
    const std::lock_guard lock(sending);
    if (!send_message(socket, kind, body)) ::_exit(0);  // the owner is gone
  }
  /// Nothing of this is destroyed: libpmix's thread runs until the process ends.
  static Service& of_process() {
    static auto* service = new Service;
    return *service;
  }
};

// ---- what libpmix calls, on its thread

pmix_status_t on_client(const pmix_proc_t*, void*, pmix_op_cbfunc_t answer, void* argument) {
  if (answer) answer(PMIX_SUCCESS, argument);
  return PMIX_SUCCESS;
}

pmix_status_t on_abort(const pmix_proc_t* process, void*, int status, const char message[], pmix_proc_t[],
                       size_t, pmix_op_cbfunc_t answer, void* argument) {
  PmixBody body;
  body.put(int64_t(process->rank));
  body.put(int64_t(status));
  body.put(std::string_view(message ? message : ""));
  Service::of_process().tell(PmixMessageKind::aborted, body.bytes());
  if (answer) answer(PMIX_SUCCESS, argument);
  return PMIX_SUCCESS;
}

pmix_status_t on_fence(const pmix_proc_t[], size_t, const pmix_info_t infos[], size_t info_count, char* data,
                       size_t size, pmix_modex_cbfunc_t answer, void* argument) {
  const std::string share(data ? data : "", data ? size : 0);
  std::free(data);  // it is the host's
  // A rank that dies in a fence makes libpmix pass the fence up without it. Its parent reports the death.
  for (size_t i = 0; i < info_count; ++i) {
    const pmix_info_t& info = infos[i];
    if (std::strcmp(info.key, PMIX_LOCAL_COLLECTIVE_STATUS) == 0 && info.value.type == PMIX_STATUS &&
        info.value.data.status != PMIX_SUCCESS)
      return info.value.data.status;
  }
  Service& service = Service::of_process();
  {
    const std::lock_guard lock(service.mutex);
    if (service.fence) return PMIX_ERR_NOT_SUPPORTED;  // of another group of ranks: we use none
    service.fence = Fence{answer, argument};
  }
  service.tell(PmixMessageKind::fence, share);
  return PMIX_SUCCESS;
}

void on_log(const pmix_proc_t*, const pmix_info_t data[], size_t count, const pmix_info_t[], size_t,
            pmix_op_cbfunc_t answer, void* argument) {
  for (size_t i = 0; i < count; ++i) {
    const pmix_value_t& value = data[i].value;
    std::string text;
    if (value.type == PMIX_STRING && value.data.string) text = value.data.string;
    if (value.type == PMIX_BYTE_OBJECT && value.data.bo.bytes)
      text = longest_text({value.data.bo.bytes, value.data.bo.size});
    if (!text.empty()) Service::of_process().tell(PmixMessageKind::log, text);
  }
  // Not here: libpmix 4.2 would wait for a lock that its own caller holds.
  if (answer) std::thread([answer, argument] { answer(PMIX_SUCCESS, argument); }).detach();
}

pmix_server_module_t* module() {
  // Room for the functions of newer versions: libpmix copies as many as its own version has.
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

// ---- operations of libpmix that end with a callback

/// Shared with the callback, which may come after the deadline.
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

// ---- what the owner asks for

void start(PmixBody body) {
  const std::string folder = body.text(), host_name = body.text();
  const PmixLibrary& pmix = pmix_library();
  if (!pmix.problem.empty()) throw Error(ErrorCode::kLauncher, pmix.problem);
  std::signal(SIGPIPE, SIG_IGN);  // libpmix writes to ranks that may just have died
  forget_outer_launcher();
  ::setenv("PMIX_MCA_gds", kStore, 1);
  ::setenv("PMIX_MCA_psec", kSecurity, 1);
  PmixInfos infos;
  infos.add_text(PMIX_SERVER_TMPDIR, folder);
  infos.add_text(PMIX_SYSTEM_TMPDIR, folder);
  infos.add_text(PMIX_HOSTNAME, host_name);
  const pmix_status_t status = pmix.server_init(module(), infos.data(), infos.size());
  if (status != PMIX_SUCCESS)
    throw Error(
        ErrorCode::kLauncher,
        fmt::format("the PMIx server of {} did not start: {} ({}); launcher.start mpirun does without",
                    pmix.path, pmix.error_string(status), status));
}

/// What libpmix adds to the environment of a rank, and the settings that it must share with its server.
Environment environment_of(const pmix_proc_t& process) {
  const PmixLibrary& pmix = pmix_library();
  auto** variables = static_cast<char**>(std::calloc(1, sizeof(char*)));  // libpmix makes it longer
  const pmix_status_t status = pmix.setup_fork(&process, &variables);
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
    throw Error(ErrorCode::kLauncher, fmt::format("libpmix has no environment for rank {}: {} ({})",
                                                  process.rank, pmix.error_string(status), status));
  environment.emplace_back("PMIX_MCA_gds", kStore);
  environment.emplace_back("PMIX_MCA_psec", kSecurity);
  return environment;
}

/// The environments of the local ranks, in their order.
std::string begin(PmixBody body) {
  const PmixServer::Epoch epoch = body.epoch();
  const PmixLibrary& pmix = pmix_library();
  const std::string name = fmt::format("trainctl.{}.{}", epoch.mark, epoch.epoch);
  const std::vector<int>& local = epoch.ranks_of_host[size_t(epoch.this_host)];
  const auto infos = job_infos(epoch, name);
  pmix_proc_t process;
  std::memset(&process, 0, sizeof process);
  std::strncpy(process.nspace, name.c_str(), sizeof process.nspace - 1);
  perform("register the ranks", infos, [&](pmix_op_cbfunc_t ended, void* argument) {
    return pmix.register_nspace(process.nspace, int(local.size()), infos->data(), infos->size(), ended,
                                argument);
  });
  PmixBody environments;
  for (const int rank : local) {
    process.rank = pmix_rank_t(rank);
    perform(fmt::format("register rank {}", rank), nullptr, [&](pmix_op_cbfunc_t ended, void* argument) {
      return pmix.register_client(&process, ::getuid(), ::getgid(), nullptr, ended, argument);
    });
    environments.put(environment_of(process));
  }
  return environments.bytes();
}

void finish_fence(std::string data) {
  Service& service = Service::of_process();
  std::optional<Fence> fence;
  {
    const std::lock_guard lock(service.mutex);
    fence = std::exchange(service.fence, std::nullopt);
  }
  if (!fence) return;
  auto* all = new std::string(std::move(data));
  fence->answer(
      PMIX_SUCCESS, all->data(), all->size(), fence->argument,
      [](void* text) { delete static_cast<std::string*>(text); }, all);
}

void obey(PmixMessage message) {
  Service& service = Service::of_process();
  try {
    if (message.kind == PmixMessageKind::start) {
      start(PmixBody(std::move(message.body)));
      service.tell(PmixMessageKind::ready, "");
    } else if (message.kind == PmixMessageKind::begin) {
      service.tell(PmixMessageKind::begun, begin(PmixBody(std::move(message.body))));
    } else if (message.kind == PmixMessageKind::finish) {
      finish_fence(std::move(message.body));
    }
  } catch (const Error& error) {
    service.tell(PmixMessageKind::failed, error.what());
  }
}

}  // namespace

Problem pmix_problem() { return Problem::of(pmix_library().problem); }

void serve_pmix(int socket) {
  ::prctl(PR_SET_NAME, "pmix-server");
  Service::of_process().socket = socket;
  while (auto message = receive_message(socket)) obey(std::move(*message));
  ::_exit(0);  // without destructors: libpmix's thread runs
}

}  // namespace trainctl
