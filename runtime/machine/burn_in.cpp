#include "runtime/machine/burn_in.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <future>
#include <random>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/file_worker.h"
#include "runtime/base/philox.h"
#include "runtime/base/text.h"
#include "runtime/machine/binding.h"
#include "runtime/machine/kernel_log.h"

namespace trainctl {
namespace {

constexpr size_t kLeastForHalf = 3;

/// The NUMA node of a core, as Linux shows it; -1: it does not.
int numa_node_of(int core) {
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator(fmt::format("/sys/devices/system/cpu/cpu{}", core), none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("node") && name.size() > 4) return std::atoi(name.c_str() + 4);
  }
  return -1;
}

std::unique_ptr<kernels::Backend> open_as_ranks(const BurnInPlace& place) {
  if (place.kind == BurnInPlace::gpu) return kernels::make_cuda_backend({.device = place.index});
  return kernels::make_cpu_backend(1);
}

/// Whether a place failed by itself. One that could not be opened says nothing: another process may have it
/// for itself.
bool is_failure_of(const PlaceResult& place, ErrorCode code) {
  const bool is_open = !place.numerics.empty();
  return place.place.kind == BurnInPlace::gpu &&
         (code == ErrorCode::kDevice || (code == ErrorCode::kHardware && is_open));
}

/// The work of one place on a thread of its own. What it refers to is shared with the thread, which may be
/// left behind.
class PlaceThread {
 public:
  PlaceThread(const BurnInPlace& place, std::function<void(PlaceResult&)> work) : place_(place) {
    std::packaged_task<PlaceResult()> task([place, work = std::move(work)] {
      PlaceResult result{.place = place};
      try {
        if (place.kind == BurnInPlace::core) (void)bind_thread(place.index);
        work(result);
      } catch (const Error& error) {
        result.problem = error.what();
        result.has_failed = is_failure_of(result, error.code());
      } catch (const std::exception& error) {
        result.problem = error.what();
      }
      return result;
    });
    result_ = task.get_future();
    try {
      thread_ = std::thread(std::move(task));
    } catch (const std::system_error& error) {
      unstarted_ = fmt::format("no thread could be started: {}", error.what());
    }
  }
  PlaceThread(PlaceThread&&) = default;
  ~PlaceThread() {
    if (thread_.joinable()) thread_.detach();
  }
  /// `left_behind` becomes true if the thread still works then.
  PlaceResult result(double end_s, bool& left_behind) {
    if (!thread_.joinable()) return {.place = place_, .problem = unstarted_};
    if (!answers(std::max(0.0, end_s - real_clock().monotonic_s()))) {
      left_behind = true;
      return {.place = place_, .problem = "did not answer in time"};
    }
    thread_.join();
    return result_.get();
  }

 private:
  /// In slices, so that a pause of this whole process costs the place one of them.
  bool answers(double left_s) {
    constexpr int kSlices = 100;
    for (int slice = 0; slice < kSlices; ++slice)
      if (result_.wait_for(std::chrono::duration<double>(left_s / kSlices)) == std::future_status::ready)
        return true;
    return false;
  }
  BurnInPlace place_;
  std::future<PlaceResult> result_;
  std::thread thread_;
  std::string unstarted_;
};

DiskResult disk_in_time(const BurnInOptions& options, bool& left_behind) try {
  FileWorker worker;
  const auto test = [&fs = options.fs, folder = options.folder, bytes = options.disk_bytes,
                     limit_s = options.limit_s / 6] { return test_disk(fs, folder, bytes, limit_s); };
  if (const auto result = worker.ask(test, options.limit_s)) return *result;
  left_behind = true;
  return {.folder = options.folder,
          .problem = fmt::format("the file system did not answer within {:.0f} s", options.limit_s)};
} catch (const std::exception& error) {
  return {.folder = options.folder, .problem = error.what()};
}

kernels::GpuFacts facts_of(const BurnInPlace& place, const std::function<kernels::GpuFacts(int)>& read) {
  return read ? read(place.index) : gpu_facts_with_log(place.index);
}

/// A GPU cools down within a second, and its clock rises again.
std::optional<kernels::GpuFacts> facts_at_work(const BurnInPlace& place,
                                               const std::function<kernels::GpuFacts(int)>& read) try {
  if (place.kind != BurnInPlace::gpu) return std::nullopt;
  return facts_of(place, read);
} catch (const std::exception&) {
  return std::nullopt;  // asked again at the end
}

/// One place after another, so that they do not wait for each other's memory; slow ones again at the end, as
/// another program may have slowed them.
void copy_in_turn(std::vector<PlaceResult>& results, const BurnInOptions& options, bool& left_behind) {
  const double end_s = real_clock().monotonic_s() + options.limit_s;
  const auto copy = [&](PlaceResult& result) {
    if (!result.problem.empty() || real_clock().monotonic_s() >= end_s) return;
    PlaceThread thread(result.place, [open = options.open](PlaceResult& copied) {
      const auto backend = open ? open(copied.place) : open_as_ranks(copied.place);
      copied.numerics = backend->numerics();
      copied.copy_bytes_per_s = time_copies(*backend);
    });
    const PlaceResult copied = thread.result(end_s + options.answer_s, left_behind);
    result.copy_bytes_per_s = std::max(result.copy_bytes_per_s, copied.copy_bytes_per_s);
    result.problem = copied.problem;
    result.has_failed = copied.has_failed;
  };
  for (PlaceResult& result : results) copy(result);
  for (const size_t slow : to_copy_again(results)) copy(results[slow]);
}

/// On threads, as a driver may not answer for a GPU that is lost.
std::vector<kernels::GpuFacts> read_health(std::vector<PlaceResult>& places, const BurnInOptions& options,
                                           bool& left_behind) {
  std::vector<std::pair<PlaceResult*, PlaceThread>> threads;
  for (PlaceResult& place : places)
    if (place.place.kind == BurnInPlace::gpu)
      threads.emplace_back(&place, PlaceThread(place.place, [read = options.gpu_facts](PlaceResult& result) {
        result.facts = facts_of(result.place, read);
      }));
  const double end_s = real_clock().monotonic_s() + options.answer_s;
  std::vector<kernels::GpuFacts> gpus;
  for (auto& [place, thread] : threads) {
    const PlaceResult found = thread.result(end_s, left_behind);
    if (place->problem.empty()) {
      place->problem = found.problem;
      place->has_failed = found.has_failed;
    }
    if (!found.facts) continue;
    gpus.push_back(*found.facts);
    if (!place->facts) continue;
    kernels::GpuFacts& gpu = gpus.back();
    gpu.temperature_c = std::max(gpu.temperature_c, place->facts->temperature_c);
    if (!place->facts->slowed_by.value_or("").empty()) gpu.slowed_by = place->facts->slowed_by;
  }
  return gpus;
}

}  // namespace

std::string BurnInPlace::name() const { return fmt::format("{} {}", kind == core ? "core" : "gpu", index); }

std::vector<BurnInPlace> burn_in_places() {
  std::vector<BurnInPlace> places;
  for (const int core : usable_cpus())
    places.push_back({.kind = BurnInPlace::core, .index = core, .numa_node = numa_node_of(core)});
  const int gpus = kernels::cuda_status().devices;
  for (int gpu = 0; gpu < gpus; ++gpu) places.push_back({.kind = BurnInPlace::gpu, .index = gpu});
  return places;
}

std::vector<PlaceResult> work_on(const std::vector<BurnInPlace>& places, const BurnInOptions& options,
                                 bool& left_behind) {
  const auto cores =
      std::count_if(places.begin(), places.end(), [](const auto& p) { return p.kind == p.core; });
  const auto products = std::make_shared<const std::vector<BurnInProduct>>(burn_in_products());
  const double began_s = real_clock().monotonic_s(), end_s = began_s + options.limit_s;
  std::vector<PlaceThread> threads;
  for (const BurnInPlace& place : places) {
    const uint64_t bytes = options.memory_bytes / (place.kind == BurnInPlace::core ? uint64_t(cores) : 1);
    threads.emplace_back(place,
                         [=, open = options.open, seconds = options.product_s, gpu_facts = options.gpu_facts,
                          is_timed = options.times_products](PlaceResult& result) {
                           const auto backend = open ? open(result.place) : open_as_ranks(result.place);
                           result.numerics = backend->numerics();
                           result.products = compute_products(*backend, *products, began_s + seconds);
                           if (is_timed) result.product_s = time_products(*backend);
                           result.facts = facts_at_work(result.place, gpu_facts);
                           result.memory = test_memory(*backend, bytes, end_s);
                         });
  }
  std::vector<PlaceResult> results;
  for (PlaceThread& thread : threads) results.push_back(thread.result(end_s + options.answer_s, left_behind));
  return results;
}

std::vector<size_t> to_copy_again(const std::vector<PlaceResult>& results) {
  std::vector<size_t> again;
  for (const auto kind : {BurnInPlace::core, BurnInPlace::gpu}) {
    const auto is_measured = [&](const PlaceResult& r) {
      return r.place.kind == kind && r.copy_bytes_per_s > 0;
    };
    std::vector<double> rates;
    for (const PlaceResult& result : results)
      if (is_measured(result)) rates.push_back(result.copy_bytes_per_s);
    if (rates.size() < kLeastForHalf) continue;
    std::sort(rates.begin(), rates.end());
    for (size_t i = 0; i < results.size(); ++i)
      if (is_measured(results[i]) && results[i].copy_bytes_per_s < rates[rates.size() / 2] / 2)
        again.push_back(i);
  }
  return again;
}

std::string gpu_problem_of(const kernels::CudaStatus& status) {
  if (!status.built || status.driver_version == 0 || status.devices > 0) return "";
  return status.problem.empty() ? "there is a driver, but no GPU was found" : status.problem;
}

DiskResult test_disk(FileSystem& fs, const std::string& folder, uint64_t bytes, double limit_s) {
  constexpr uint64_t kPiece = uint64_t{4} << 20;
  DiskResult result{.folder = folder};
  // Nodes that share the folder may have equal process ids.
  std::random_device random_bits;
  const std::string path =
      fmt::format("{}/.trainctl-burn-in-{:08x}{:08x}", folder, random_bits(), random_bits());
  bool is_made = false;
  const auto piece_at = [random = Philox(20260102, RandomPurpose::kTest)](uint64_t at) {
    std::vector<std::byte> piece(kPiece);
    auto* const words = reinterpret_cast<uint64_t*>(piece.data());
    const uint64_t first = random.bits64(at / kPiece);
    for (uint64_t i = 0; i < kPiece / 8; ++i) words[i] = first + i * 0x9E3779B97F4A7C15u;
    return piece;
  };
  Clock& clock = real_clock();
  try {
    const auto file = fs.create(path);
    is_made = true;
    double spent_s = 0;
    for (; result.bytes < bytes && spent_s < limit_s; result.bytes += kPiece) {
      const std::vector<std::byte> piece = piece_at(result.bytes);
      const double began_s = clock.monotonic_s();
      file->write_at(result.bytes, piece);
      spent_s += clock.monotonic_s() - began_s;
    }
    const double synced_s = clock.monotonic_s();
    file->sync();
    spent_s += clock.monotonic_s() - synced_s;
    result.write_bytes_per_s = double(result.bytes) / std::max(spent_s, 1e-9);
    file->drop_cache();
    const auto again = fs.open_read(path);
    double read_s = 0;
    std::vector<std::byte> found(kPiece);
    for (uint64_t at = 0; at < result.bytes && !result.first_wrong; at += kPiece) {
      const double began_s = clock.monotonic_s();
      again->read_at(at, found);
      read_s += clock.monotonic_s() - began_s;
      const std::vector<std::byte> piece = piece_at(at);
      const auto differs = std::mismatch(found.begin(), found.end(), piece.begin()).first;
      if (differs != found.end()) result.first_wrong = at + uint64_t(differs - found.begin());
    }
    result.read_bytes_per_s = double(result.bytes) / std::max(read_s, 1e-9);
  } catch (const Error& error) {
    result.problem = error.what();
  }
  try {
    if (is_made) fs.remove_file(path);
  } catch (const Error& error) {
    if (result.problem.empty()) result.problem = error.what();
  }
  return result;
}

BurnInResult burn_in(const std::vector<BurnInPlace>& places, const BurnInOptions& options) {
  BurnInResult result;
  const ClockResult before = clocks_now();
  options.say(fmt::format("products and memory on {} at once, {:.0f} s of products",
                          count_of(int64_t(places.size()), "place"), options.product_s));
  result.places = work_on(places, options, result.left_behind);
  options.say("copies, one place after another");
  copy_in_turn(result.places, options, result.left_behind);
  options.say("the disk below " + options.folder);
  result.disk = disk_in_time(options, result.left_behind);
  result.gpus = read_health(result.places, options, result.left_behind);
  const auto is_gpu = [](const BurnInPlace& place) { return place.kind == BurnInPlace::gpu; };
  if (std::none_of(places.begin(), places.end(), is_gpu))
    result.gpu_problem = gpu_problem_of(kernels::cuda_status());
  result.clock = clocks_since(before);
  result.seconds = result.clock.monotonic_s;
  return result;
}

}  // namespace trainctl
