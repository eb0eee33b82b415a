#include "runtime/supervise/loop/starter.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/machine/pmix/pmix_probe.h"
#include "runtime/machine/session.h"
#include "runtime/machine/peak_cache.h"

namespace trainctl {
namespace {

/// A file and when it was last changed.
std::string stamp(const std::string& path) {
  struct stat s;
  if (path.empty() || ::stat(path.c_str(), &s) != 0) return path;
  return fmt::format("{} {}.{}", path, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
}

/// The library that holds a function of this process.
std::string library_of(const char* function) {
  Dl_info info{};
  void* address = ::dlsym(RTLD_DEFAULT, function);
  return address && ::dladdr(address, &info) && info.dli_fname ? info.dli_fname : "";
}

Problem probe(const LaunchLine& rank) {
  try {
    const SessionFolders folders;
    char host[256] = "localhost";
    ::gethostname(host, sizeof host - 1);
    PmixServer server({.scratch_folder = folders.session(),
                       .shared_memory_folder = folders.shared_memory(),
                       .host_name = host,
                       .events = {.fence = [](uint64_t, std::string) {},
                                  .aborted = [](uint64_t, int, int, std::string) {},
                                  .log = [](std::string) {}}});
    PmixProbe what{
        .argv = {rank.argv[0], "rank", "--probe"}, .settings = rank.environment, .host_name = host};
    for (auto& [name, value] : what.settings) {
      if (name == "OMPI_MCA_btl_vader_backing_directory") value = folders.shared_memory();
      if (name == "OMPI_MCA_orte_tmpdir_base" || name == "TMPDIR") value = folders.session();
    }
    return probe_pmix(server, what);
  } catch (const Error& error) {
    return Problem(error.what());
  }
}

}  // namespace

std::string starts_cache_path() {
  const std::string peaks = peak_cache_path();
  return peaks.empty() ? "" : peaks.substr(0, peaks.rfind('/')) + "/starts.json";
}

Problem pmix_start_problem(const LaunchLine& rank, FileSystem& fs, const std::string& cache) {
  if (const Problem problem = pmix_problem(); problem.exists()) return problem;
  const std::string key =
      fmt::format("{}, {}, {}", TRAINCTL_VERSION, stamp(rank.argv[0]), stamp(library_of("MPI_Init")));
  Json known = Json::object();
  try {
    if (!cache.empty() && fs.exists(cache))
      if (Json read = try_parse_json(fs.read_text(cache)); read.is_object()) known = read;
    if (known.contains(key) && known[key].is_string()) return Problem::of(known[key]);
  } catch (const Error&) {
    // As if nothing were known.
  }
  const Problem problem = probe(rank);
  try {
    if (known.size() > 32) known.clear();  // of programs that were built over
    known[key] = problem.text_or_empty();
    if (!cache.empty()) {
      fs.make_directories(cache.substr(0, cache.rfind('/')));
      fs.replace_text(cache, dump_json(known, 1) + "\n");
    }
  } catch (const Error&) {
    // The next launch tries again.
  }
  return problem;
}

bool Starter::by_pmix(const LaunchInput& input) {
  if (pmix_) return *pmix_;
  std::string problem = wanted_ == RankStart::mpirun ? "launcher.start = mpirun" : "";
  for (int i = 0; i < fleet_.size() && problem.empty(); ++i)
    if (const wire::NodeHello* hello = fleet_.hello(i); hello && !hello->pmix_problem.empty())
      problem = fmt::format("{}: {}", fleet_.name(i), hello->pmix_problem);
  if (wanted_ == RankStart::pmix && !problem.empty())
    throw Error(ErrorCode::kPreflight, fmt::format("launcher.start = pmix does not work on {}", problem));
  if (wanted_ == RankStart::automatic && problem.empty())
    problem = pmix_start_problem(rank_line(input), fs_, starts_cache_path()).text_or_empty();
  pmix_ = problem.empty();
  for (int i = 0; i < fleet_.size() && !*pmix_; ++i)
    if (const wire::NodeHello* hello = fleet_.hello(i); hello && !hello->mpirun_problem.empty())
      throw Error(ErrorCode::kPreflight, fmt::format("{}: {}; install OpenMPI there, or leave the node out",
                                                     fleet_.name(i), hello->mpirun_problem));
  log_.event(EventKind::starter,
             dump_json(Json{{"start", *pmix_ ? "pmix" : "mpirun"}, {"reason", problem}}));
  return *pmix_;
}

void Starter::doubt(const Verdict& v, bool by_pmix) {
  if (!by_pmix || wanted_ != RankStart::automatic || !v.before_first_step || !v.lost_nodes.empty()) return;
  if (v.outcome != Verdict::failed || (v.code != ErrorCode::kWorker && v.code != ErrorCode::kHang)) return;
  pmix_ = false;
  log_.event(EventKind::starter, dump_json(Json{{"start", "mpirun"}, {"reason", v.cause}}));
}

}  // namespace trainctl
