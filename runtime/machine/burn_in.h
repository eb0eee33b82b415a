// A burn-in computes, copies and stores on every core and GPU of this machine what a machine in order does
// the same way each time, and keeps what came out. What that means is decided elsewhere
// (runtime/observe/burn_in_report.h).
//
// Products of whole numbers are exact in f32 in any order of addition, so every device must have the bits
// of the reference. Products of other numbers must have the same bits each time, and on all places with one
// numerics().
//
// Places work at the same time, each on a thread of its own, a core's bound to it. Copies are timed one
// core after another. Every wait has a deadline: a place that does not answer is left behind, and its
// result says so.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/device.h"
#include "runtime/base/file_system.h"

namespace trainctl {

/// What computes: a core, or a GPU.
struct BurnInPlace {
  enum Kind { core, gpu } kind = core;
  int index = 0;
  int numa_node = -1;        ///< of a core; -1: not known
  std::string name() const;  ///< "core 3", "gpu 0"
};
/// The cores that this process may use, then the GPUs.
std::vector<BurnInPlace> burn_in_places();

/// The results of one product on one place.
struct ProductBits {
  std::string product;  ///< "f32 64x256x512 of whole numbers"
  std::optional<uint64_t>
      expected;                   ///< hash of the reference's result; nullopt: not known, only that it is one
  std::map<uint64_t, int> times;  ///< how often each hash came out
  std::string first_wrong;        ///< "element 513 is 0x3f800000 instead of 0x3f800001"; "": none is known
};
/// More kinds of one product's bits are counted together, as kOtherBits.
inline constexpr size_t kMostKindsOfBits = 64;
inline constexpr uint64_t kOtherBits = 0;
void count_bits(ProductBits& bits, uint64_t hash);

struct WrongWord {
  std::string pattern;
  uint64_t byte = 0;  ///< from the start of the tested memory of the place
  uint64_t expected = 0, found = 0;
};
struct MemoryResult {
  uint64_t bytes = 0;  ///< of the place's part
  int patterns = 0;    ///< that were written and read in time
  uint64_t wrong_words = 0;
  std::optional<WrongWord> first_wrong;
};

struct PlaceResult {
  BurnInPlace place;
  std::string numerics;  ///< of the place's backend
  std::string problem;   ///< why the place did not finish; "": it did
  /// A GPU that was opened and failed in its work: not for want of memory, which another program may hold.
  bool has_failed = false;
  std::vector<ProductBits> products;
  MemoryResult memory;
  double copy_bytes_per_s =
      0;  ///< the best of some copies within its memory, read and written; 0: not measured
  double product_s = 0;                    ///< time_products(); 0: not measured
  std::optional<kernels::GpuFacts> facts;  ///< of a GPU, right behind its products; nullopt: not read
};

struct DiskResult {
  std::string folder, problem;  ///< problem: "" if the file was written and read
  uint64_t bytes = 0;
  double write_bytes_per_s = 0, read_bytes_per_s = 0;  ///< with the sync
  std::optional<uint64_t> first_wrong;  ///< the first byte that was read otherwise than written
};

struct ClockResult {
  std::optional<bool> synchronised;  ///< as the kernel says; nullopt: it does not
  double off_s = 0;                  ///< at most, if it is synchronised
  /// How far each clock went during the burn-in. The raw one is the processor's, which nothing corrects.
  double monotonic_s = 0, raw_s = 0, unix_s = 0;
};

struct BurnInResult {
  std::vector<PlaceResult> places;
  DiskResult disk;
  ClockResult clock;
  /// Their health as the driver's management library reports it at the end; temperature and slowed_by also
  /// as right behind the products.
  std::vector<kernels::GpuFacts> gpus;
  std::string gpu_problem;   ///< why no GPU can be used although there is a driver; "": they can, or none
  bool left_behind = false;  ///< a thread still works: leave the process without destructors (_exit)
  double seconds = 0;
};

struct BurnInOptions {
  double product_s = 4;                         ///< of products, on each place
  uint64_t memory_bytes = uint64_t{256} << 20;  ///< of the host, over all cores; and of each GPU
  uint64_t disk_bytes = uint64_t{64} << 20;
  bool times_products = false;  ///< PlaceResult::product_s
  double limit_s = 60;       ///< of a part; what has not begun by then is left out
  double answer_s = 20;      ///< behind the limit; a place that has not answered by then is left behind
  std::string folder = ".";  ///< of the file
  FileSystem& fs = real_file_system();
  /// Makes the backend of a place, on the thread of the place.
  std::function<std::unique_ptr<kernels::Backend>(const BurnInPlace&)> open;  ///< null: as ranks have it
  std::function<kernels::GpuFacts(int index)> gpu_facts;                      ///< null: the real ones
  std::function<void(const std::string&)> say = [](const std::string&) {};    ///< gets what begins now
};
/// Does not throw for what it finds.
BurnInResult burn_in(const std::vector<BurnInPlace>& places, const BurnInOptions& options);

// ---- its parts ----

/// A product that every place computes: its operands and, of whole numbers, the reference's result.
struct BurnInProduct {
  DType dtype = DType::f32;
  int64_t m = 0, n = 0, k = 0;
  bool whole = false;
  std::vector<std::byte> x, w, expected;
  std::optional<uint64_t> expected_hash;  ///< made here once, not by a place, which may be broken
  std::string name() const;
};
///   whole_alone   those of whole numbers, whose bits are known
std::vector<BurnInProduct> burn_in_products(bool whole_alone = false);
/// Computes each at least twice, and all again until `end_s` of real_clock().
std::vector<ProductBits> compute_products(kernels::Backend& backend,
                                          const std::vector<BurnInProduct>& products, double end_s);
/// The shortest of some times of one product of a size that keeps the device busy. On the host by the time of
/// the thread, so that other programs do not count.
double time_products(kernels::Backend& backend);
/// Writes patterns to all of `bytes` and reads each back, as long as `end_s` is not over.
MemoryResult test_memory(kernels::Backend& backend, uint64_t bytes, double end_s);
/// All places at once, each on a thread of its own: products, then memory. Does not throw for what it finds.
/// `left_behind` becomes true if a thread still works.
std::vector<PlaceResult> work_on(const std::vector<BurnInPlace>& places, const BurnInOptions& options,
                                 bool& left_behind);
/// The places, of those with three or more of their kind, that copied at less than half of the median. Pure.
std::vector<size_t> to_copy_again(const std::vector<PlaceResult>& results);
/// As doctor: there is a driver, but no GPU. "": no problem. Pure.
std::string gpu_problem_of(const kernels::CudaStatus& status);
/// On the host by the time of the thread, so that other programs do not count.
double time_copies(kernels::Backend& backend);
/// Writes a file of a new name, syncs it, reads it and removes it. At most `limit_s` are spent on writing.
DiskResult test_disk(FileSystem& fs, const std::string& folder, uint64_t bytes, double limit_s);
/// The clocks of this moment, in the fields of a result; and how far they went since then.
ClockResult clocks_now();
/// The tightest of some readings of `read`, which gets a clockid_t and returns seconds.
ClockResult clocks_of(const std::function<double(int clock)>& read);
ClockResult clocks_since(const ClockResult& before);
double burn_in_thread_s();  ///< that this thread has computed

}  // namespace trainctl
