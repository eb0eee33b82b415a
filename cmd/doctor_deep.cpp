#include "cmd/doctor_deep.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "cmd/output.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/machine/links.h"
#include "runtime/observe/burn_in_report.h"
#include "runtime/observe/link_report.h"
#include "runtime/supervise/decide/quarantine.h"
#include "runtime/supervise/slurm/cluster_name.h"

namespace trainctl::cmd {
namespace {

/// As runs name this node.
std::string name_of_node() {
  const char* slurm = std::getenv("SLURMD_NODENAME");
  if (slurm && *slurm) return slurm;
  char host[HOST_NAME_MAX + 1] = "";
  ::gethostname(host, sizeof host - 1);
  return host;
}

/// Evidence against a node, or one of its GPUs.
struct Accused {
  std::string node;
  BurnInBlame blame;
};
/// The list that evidence goes to.
QuarantineFile list_of(const DeepOptions& options) {
  return quarantine_of_user(real_file_system(), real_clock(), options.list, this_cluster());
}

/// Adds the evidence. Returns a line for each place that is out now.
std::string put_out(const std::vector<Accused>& accused, QuarantineFile& file) {
  std::string text;
  file.update([&](QuarantineList& nodes) {
    for (const auto& [node, blame] : accused) {
      const double now_s = real_clock().unix_s();
      nodes.add(node, blame.gpu,
                {.kind = blame.is_slow ? NodeEvidence::slow : NodeEvidence::failed_probe,
                 .run = "",
                 .cause = blame.cause,
                 .unix_s = now_s},
                {}, now_s);
      const std::string line =
          fmt::format("{}{} is in quarantine ({})\n", node,
                      blame.gpu < 0 ? "" : fmt::format(":gpu{}", blame.gpu), file.path());
      if (text.find(line) == std::string::npos) text += line;
    }
  });
  return text;
}

/// What follows the printed result: the list, if it is asked for, the next step and the exit status.
///   command   that found it
int conclude(const std::vector<Accused>& accused, const DeepOptions& options, bool has_failed,
             const std::string& command, const std::string& next_if_well, const Context& context) {
  int status = has_failed ? exit_status(ErrorCode::kPreflight) : kExitDone;
  std::string next = accused.empty() ? next_if_well : command + " --quarantine";
  if (options.quarantine && !accused.empty()) {
    std::fflush(stdout);
    next = "trainctl nodes";
    try {
      QuarantineFile file = list_of(options);
      const std::string lines = put_out(accused, file);
      if (!context.json || !context.quiet()) fmt::print(context.json ? stderr : stdout, "{}", lines);
    } catch (const Error& error) {
      // With --json the result is already on stdout, which has one.
      fmt::print(stderr, "error: nothing was put on the list: {}\n", error.what());
      if (!has_failed) status = exit_status(error.code());
    }
  }
  if (!context.json) fmt::print("next: {}\n", next);
  return status;
}

}  // namespace

uint64_t memory_to_test_mib(int asked_mib, size_t cores, const DoctorFacts& facts) {
  constexpr uint64_t kDefaultMib = 256, kLeastOfCore = 16;
  // Beyond what it tests, a core holds pieces of it and what they should read.
  constexpr uint64_t kHeldByCore = 16;
  const uint64_t free_mib = facts.memory.free_bytes() >> 20, held = cores * kHeldByCore;
  uint64_t mib = uint64_t(asked_mib);
  if (asked_mib == 0)
    mib = std::max<uint64_t>(1, std::min(std::max(kDefaultMib, cores * kLeastOfCore), free_mib / 4));
  if (mib + held > free_mib / 2)
    throw Error(ErrorCode::kUsage,
                fmt::format("--memory {} and {} MiB for {} cores are more than half of the {} that are free; "
                            "test less at once",
                            mib, held, cores, memory_text(double(facts.memory.free_bytes()))));
  for (const kernels::GpuFacts& gpu : facts.cuda.gpus)
    if (gpu.free_bytes > 0 && mib > gpu.free_bytes / 2 >> 20)
      throw Error(
          ErrorCode::kUsage,
          fmt::format("--memory {} is more than half of the {} that are free of GPU {}; end what uses "
                      "it, or test at most {}",
                      mib, memory_text(double(gpu.free_bytes)), gpu.index, gpu.free_bytes / 2 >> 20));
  return mib;
}

int check_machine_deeply(const std::vector<BurnInPlace>& places, BurnInOptions burn,
                         const DeepOptions& options, const Context& context) {
  if (options.quarantine) (void)list_of(options).read();  // what cannot be read is said before the work
  const double began_s = real_clock().monotonic_s();
  burn.say = [&](const std::string& what) {
    if (!context.quiet()) fmt::print(stderr, "{:5.1f} s  {}\n", real_clock().monotonic_s() - began_s, what);
  };
  const BurnInResult result = burn_in(places, burn);
  const BurnInReport report = judge(result, options.node_cores);
  std::vector<Accused> accused;
  for (const BurnInBlame& blame : blamed(report)) accused.push_back({name_of_node(), blame});
  if (context.json)
    print_json_text("burn-in", burn_in_json(report, result));
  else
    fmt::print("{}", render_burn_in(report, context.color_out));
  const int status =
      conclude(accused, options, report.has_failed(), "trainctl doctor --deep", "trainctl doctor", context);
  if (result.left_behind) {
    // A thread still computes, and destructors would take from it what it uses.
    std::fflush(nullptr);
    ::_exit(status);
  }
  return status;
}

int check_links(const DeepOptions& options, const Context& context) {
  const std::optional<LinkResult> result = measure_links_of_job(name_of_node());
  if (!result) return kExitDone;
  const LinkReport report = judge_links(*result);
  std::vector<Accused> accused;
  for (const LinkBlame& blame : report.blamed)
    accused.push_back({blame.host, {.is_slow = blame.is_slow, .cause = blame.cause}});
  if (context.json)
    print_json_text("links", links_json(report, *result));
  else
    fmt::print("{}", render_links(report, context.color_out));
  return conclude(accused, options, report.check.verdict == DoctorCheck::fail, "trainctl doctor --links",
                  "trainctl doctor --deep", context);
}

}  // namespace trainctl::cmd
