#include "cmd/plan_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cmd/output.h"
#include "runtime/base/digits.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/plan/render_search.h"

namespace trainctl::cmd {
namespace {

constexpr int kAlternatives = 5;
constexpr int kMostGpus = 1 << 20;

int number_of_gpus(const std::string& text) {
  const auto count = whole_number(text, kMostGpus);
  if (!count || *count < 1)
    throw Error(ErrorCode::kUsage,
                fmt::format("--gpus {}: use auto, or a number from 1 to {}", text, kMostGpus));
  return int(*count);
}

/// A node, two nodes, four nodes, and so on up to the cluster's size.
std::vector<int> numbers_of_gpus(const predict::ClusterModel& cluster) {
  std::vector<int> numbers;
  for (int count = std::min(cluster.devices_of_node, cluster.devices); count <= cluster.devices; count *= 2)
    numbers.push_back(count);
  return numbers;
}

[[noreturn]] void refuse_search(const std::string& what) { throw Error(ErrorCode::kUsage, what); }

void check_device(const SearchedJob& searched, const SearchOptions& options) {
  const DeviceModel& device = searched.device;
  if (!options.gpus.empty() && device.is_host())
    refuse_search("--gpus: the job is planned for CPU cores; name the device, too: --device h100");
  refuse_unsearchable(searched.job, device);
  const int devices = device.cluster->devices;
  if (options.gpus.empty() && devices > 0 && searched.job.mesh().world_size() > devices)
    refuse_search(fmt::format("the job has {} ranks, and cluster {} has {} devices; search with --gpus {}",
                              searched.job.mesh().world_size(), device.cluster->name, devices, devices));
  if (options.gpus == "auto" && devices == 0)
    refuse_search(
        fmt::format("--gpus auto: the size of cluster {0} is not known: give its file \"nodes\", or write "
                    "--cluster {0}-2048",
                    device.cluster->name));
  if (!options.gpus.empty() && options.gpus != "auto" && devices > 0 &&
      number_of_gpus(options.gpus) > devices)
    refuse_search(fmt::format("--gpus {}: cluster {} has {}", options.gpus, device.cluster->name, devices));
}

}  // namespace

void refuse_unsearchable(const DeviceUse& use, const DeviceModel& device) {
  if (device.room(use) == 0)
    refuse_search("a search needs to know the memory of a GPU: name the device, e.g. --device h100");
  if (!device.cluster || device.flops_per_s <= 0)
    refuse_search("a search needs to know the speed of a GPU: name a cluster, e.g. --cluster h100");
}

std::optional<Price> price_of(const SearchOptions& options, const DeviceModel& device) {
  if (options.price.empty()) return std::nullopt;
  if (device.is_host())
    throw Error(ErrorCode::kUsage, "--price: the job is planned for CPU cores; a price is of a GPU-hour");
  return named_price(real_file_system(), options.price, device.name);
}

void add_search_options(CommandLine command, SearchOptions& options) {
  command
      .add_option(
          "--alternatives", options.alternatives,
          "search all meshes, schedules, ZeRO stages, recomputation and micro-batches for the N fastest, "
          "each with less memory than those before it")
      .range(1, 1000);
  command
      .add_option(
          "--gpus", options.gpus,
          "search for this number of GPUs instead of the job's ranks; auto: for the best number up to "
          "the size of the cluster")
      .type_name("N|auto");
  command
      .add_option("--price", options.price,
                  "file with the price of a GPU-hour: {\"date\": \"2026-11-01\", \"currency\": \"USD\", "
                  "\"per_gpu_hour\": 2.5}")
      .type_name("FILE");
}

int search_and_print(const SearchOptions& options, const SearchedJob& searched, const Context& context) {
  check_device(searched, options);
  const JobSpec& job = searched.job;
  const DeviceModel& device = searched.device;
  SearchReport report{.name = job.name, .job = &job, .device = &device, .price = price_of(options, device)};
  MeshSearch search(searched.input, job, device, searched.ranks_on_node);
  const int of_gpu = device.is_host() ? 1 : job.launcher.ranks_per_gpu;
  int ranks = job.mesh().world_size();
  if (options.gpus == "auto") {
    report.counts.emplace();
    for (const int gpus : numbers_of_gpus(*device.cluster)) {
      ranks = gpus * of_gpu;
      SearchResult best = search.on(ranks, 1, false);
      if (!best.front.empty()) report.counts->best.push_back(std::move(best.front.front()));
    }
    report.counts->chosen = chosen_count(report.counts->best);
    if (!report.counts->best.empty()) ranks = report.counts->best[report.counts->chosen].choice.ranks();
  } else if (!options.gpus.empty()) {
    ranks = number_of_gpus(options.gpus) * of_gpu;
  }
  const int most = options.alternatives > 0 ? options.alternatives : kAlternatives;
  report.result = search.on(ranks, size_t(most));
  const bool found = !report.result.front.empty();
  if (!found) report.other_ranks = search.other_ranks(ranks);
  if (found && ranks == job.mesh().world_size()) report.own = search.planned(choice_of(job));
  if (context.json) {
    print_json("search", parse_ordered_json(search_json(report)));
  } else {
    fmt::print("{}", render_search(report));
    if (found) fmt::print("next: {}\n", searched.plan_command(report.result.front.front().settings));
  }
  return found ? kExitDone : exit_status(ErrorCode::kPlan);
}

}  // namespace trainctl::cmd
