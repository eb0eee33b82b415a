// Goal: a burn-in finds a core that computes wrongly, memory that forgets and a file that reads otherwise
// than it was written, and nothing on a machine in order. Method: small burn-ins on threads of this
// process, with backends and file systems that are broken at one place.
#include <unistd.h>
#include <catch2/catch.hpp>

#include <future>
#include <set>
#include <thread>

#include "kernels/host_memory.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/machine/binding.h"
#include "runtime/machine/burn_in.h"
#include "runtime/machine/kernel_log.h"
#include "test/support/forwarding_file_system.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/spoiling_backend.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::Spoil;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST_CASE("products on a core have the reference's bits, and the same bits each time") {
  const std::vector<BurnInProduct> products = burn_in_products();
  const auto backend = kernels::make_cpu_backend(1);
  const auto other = kernels::make_cpu_backend(2);
  const std::vector<ProductBits> here = compute_products(*backend, products, 0),
                                 there = compute_products(*other, products, 0);
  REQUIRE(here.size() == products.size());
  std::set<uint64_t> hashes;
  for (size_t i = 0; i < here.size(); ++i) {
    INFO(here[i].product);
    REQUIRE(here[i].times.size() == 1);
    CHECK(here[i].times.begin()->second == 2);
    CHECK(here[i].times == there[i].times);
    CHECK(here[i].first_wrong == "");
    CHECK(here[i].expected.has_value() == products[i].whole);
    if (products[i].whole) CHECK(here[i].times.begin()->first == xxh3(products[i].expected));
    hashes.insert(here[i].times.begin()->first);
  }
  CHECK(hashes.size() == here.size());
}

TEST_CASE("a core that hashes wrongly is not taken for one that computes wrongly") {
  std::vector<BurnInProduct> products = burn_in_products();
  REQUIRE(products[0].expected_hash);
  *products[0].expected_hash ^= 1;
  const auto backend = kernels::make_cpu_backend(1);
  CHECK(compute_products(*backend, products, 0)[0].first_wrong == "the bits are right, their hash is not");
}

TEST_CASE("bits of too many kinds are counted together, the right ones apart") {
  ProductBits bits{.product = "p", .expected = 7};
  for (uint64_t hash = 1000; hash < 2000; ++hash) count_bits(bits, hash);
  count_bits(bits, 7);
  count_bits(bits, 1000);
  CHECK(bits.times.size() <= kMostKindsOfBits + 2);
  CHECK(bits.times.at(7) == 1);
  CHECK(bits.times.at(1000) == 2);
  CHECK(bits.times.at(kOtherBits) == int(1000 - kMostKindsOfBits));
}

TEST_CASE("one flipped bit of one product is found, with its element") {
  const std::vector<BurnInProduct> products = burn_in_products();
  const size_t count = products.size();
  // Of two rounds the first product of the second.
  const auto backend =
      test::make_spoiling_backend({.every_product = int(count) + 1, .element = 77, .bit = 9});
  const std::vector<ProductBits> bits = compute_products(*backend, products, 0);
  for (size_t i = 0; i < count; ++i) CHECK(bits[i].times.size() == (i == 0 ? 2 : 1));
  REQUIRE(products[0].whole);
  CHECK_THAT(bits[0].first_wrong, Catch::StartsWith("element 77 is 0x") && Catch::Contains(" instead of 0x"));
}

TEST_CASE("a stuck bit of the memory is found with its byte, each time that a pattern sets it") {
  const uint64_t bytes = 9 * kMiB;
  const auto sound = kernels::make_cpu_backend(1);
  const MemoryResult good = test_memory(*sound, bytes, INFINITY);
  CHECK(good.bytes == bytes);
  CHECK(good.patterns == 8);
  CHECK(good.wrong_words == 0);
  const auto backend = test::make_spoiling_backend(
      {.stuck_buffer_bytes = bytes, .stuck_byte = 5 * kMiB + 8 * 100 + 3, .stuck_bit = 2});
  const MemoryResult bad = test_memory(*backend, bytes, INFINITY);
  REQUIRE(bad.first_wrong);
  CHECK(bad.first_wrong->byte == 5 * kMiB + 8 * 100);
  CHECK(bad.first_wrong->pattern == "ones");
  CHECK((bad.first_wrong->expected ^ bad.first_wrong->found) == uint64_t{1} << (8 * 3 + 2));
  // Bit 26 is set in ones, 0x55, the walking zero and the inverted address.
  CHECK(bad.wrong_words == 4);
  CHECK(bad.patterns == 8);
}

TEST_CASE("a memory test takes a piece for transfers no larger than the memory") {
  struct Counting final : kernels::HostDevice {
    size_t most = 0;
    std::string name() const override { return "counting"; }
    std::string numerics() const override { return "counting"; }
    std::unique_ptr<kernels::Buffer> allocate_host(size_t bytes) override {
      most = std::max(most, bytes);
      return kernels::HostDevice::allocate_host(bytes);
    }
    std::unique_ptr<kernels::PackedWeight> make_packed(int64_t, int64_t, DType) override { return nullptr; }
    void run(kernels::Stream&, const kernels::Op&) override {}
  } backend;
  CHECK(test_memory(backend, kMiB, INFINITY).patterns == 8);
  CHECK(backend.most == kMiB);
  CHECK(test_memory(backend, 9 * kMiB, INFINITY).patterns == 8);
  CHECK(backend.most == 4 * kMiB);
  CHECK(test_memory(backend, 0, INFINITY).wrong_words == 0);
}

TEST_CASE("a memory test whose time is over begins nothing, and says how far it came") {
  const auto backend = kernels::make_cpu_backend(1);
  CHECK(test_memory(*backend, kMiB, 0).patterns == 0);
}

TEST_CASE("addresses that fall together are found by the patterns of addresses") {
  // As two chips would that are both selected: the second half of the memory is the first.
  struct Folded final : kernels::Backend {
    std::unique_ptr<kernels::Backend> device = kernels::make_cpu_backend(1);
    char* begin = nullptr;
    size_t half = 0;
    void* folded(const void* at) const {
      char* const p = static_cast<char*>(const_cast<void*>(at));
      return begin && p >= begin + half && p < begin + 2 * half ? p - half : p;
    }
    std::string name() const override { return "folded"; }
    std::string numerics() const override { return "folded"; }
    bool is_host() const override { return true; }
    std::unique_ptr<kernels::Stream> create_stream() override { return device->create_stream(); }
    std::unique_ptr<kernels::Event> create_event() override { return device->create_event(); }
    std::unique_ptr<kernels::Buffer> allocate(size_t bytes) override {
      auto buffer = device->allocate(bytes);
      begin = static_cast<char*>(buffer->data());
      half = bytes / 2;
      return buffer;
    }
    std::unique_ptr<kernels::Buffer> allocate_host(size_t bytes) override {
      return device->allocate_host(bytes);
    }
    void copy_to_device(kernels::Stream& s, void* to, const void* from, size_t n) override {
      device->copy_to_device(s, folded(to), from, n);
    }
    void copy_to_host(kernels::Stream& s, void* to, const void* from, size_t n) override {
      device->copy_to_host(s, to, folded(from), n);
    }
    void copy_on_device(kernels::Stream&, void*, const void*, size_t) override {}
    size_t allocated_bytes() const override { return 0; }
    size_t peak_allocated_bytes() const override { return 0; }
    std::unique_ptr<kernels::PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
      return device->make_packed(n, k, dtype);
    }
    void run(kernels::Stream&, const kernels::Op&) override {}
  } folded;
  const MemoryResult result = test_memory(folded, 16 * kMiB, INFINITY);
  REQUIRE(result.first_wrong);
  CHECK(result.first_wrong->pattern == "address");
  CHECK(result.wrong_words == 2 * kMiB);  // a half of the words, in two patterns
}

TEST_CASE("copies have a rate") {
  const auto backend = kernels::make_cpu_backend(1);
  CHECK(time_copies(*backend) > 0);
}

/// Reads one byte otherwise than it was written.
struct Forgetful final : test::ForwardingFileSystem {
  struct Reading final : test::ForwardingFile {
    using ForwardingFile::ForwardingFile;
    uint64_t wrong_byte = 0;
    void read_at(uint64_t offset, std::span<std::byte> data) override {
      ForwardingFile::read_at(offset, data);
      if (wrong_byte >= offset && wrong_byte < offset + data.size())
        data[wrong_byte - offset] ^= std::byte{1};
    }
  };
  using ForwardingFileSystem::ForwardingFileSystem;
  std::unique_ptr<File> create(const std::string& path) override {
    auto file = ForwardingFileSystem::create(path);
    if (is_taken) throw Error(ErrorCode::kIo, "it exists");
    return file;
  }
  std::unique_ptr<File> open_read(const std::string& path) override {
    auto reading = std::make_unique<Reading>(ForwardingFileSystem::open_read(path));
    reading->wrong_byte = wrong_byte;
    return reading;
  }
  uint64_t wrong_byte = ~uint64_t{0};
  bool is_taken = false;  ///< another node has just made each file
};

TEST_CASE("a disk is written, read and left as it was") {
  const test::TemporaryFolder folder;
  const DiskResult good = test_disk(real_file_system(), folder.path(), 8 * kMiB, 60);
  CHECK(good.problem == "");
  CHECK(good.bytes == 8 * kMiB);
  CHECK(good.write_bytes_per_s > 0);
  CHECK(good.read_bytes_per_s > 0);
  CHECK_FALSE(good.first_wrong);
  CHECK(real_file_system().list(folder.path()).empty());
  CHECK_THAT(test_disk(real_file_system(), folder / "none", kMiB, 60).problem, Catch::Contains("none"));
}

TEST_CASE("a disk's other files are left alone, also where another node has this process id") {
  const test::TemporaryFolder folder;
  const std::string other = folder / (".trainctl-burn-in-" + std::to_string(::getpid()));
  (void)real_file_system().create(other);
  CHECK(test_disk(real_file_system(), folder.path(), kMiB, 60).problem == "");
  CHECK(real_file_system().list(folder.path()).size() == 1);
  CHECK(real_file_system().exists(other));
}

TEST_CASE("a byte that reads wrong is named, a failed sync is a problem, and the file of another is left") {
  test::PowerLossFileSystem inner;
  Forgetful fs(inner);
  inner.make_directory("/d");
  CHECK_FALSE(test_disk(fs, "/d", 8 * kMiB, 60).first_wrong);
  fs.wrong_byte = 5 * kMiB + 3;
  CHECK(test_disk(fs, "/d", 8 * kMiB, 60).first_wrong == 5 * kMiB + 3);
  fs.wrong_byte = ~uint64_t{0};
  inner.fail_at(3, test::Fault::io_error_once);  // behind the creation and two writes
  CHECK(test_disk(fs, "/d", 8 * kMiB, 60).problem != "");
  CHECK(fs.list("/d").empty());
  fs.is_taken = true;
  CHECK(test_disk(fs, "/d", 8 * kMiB, 60).problem == "it exists");
  CHECK(fs.list("/d").size() == 1);
}

TEST_CASE("a burn-in asks every place, and one that cannot be opened says why") {
  const test::TemporaryFolder folder;
  const std::vector<BurnInPlace> places = {
      {.index = 0}, {.index = 1}, {.kind = BurnInPlace::gpu, .index = 3}};
  int said = 0;
  const BurnInOptions options{.product_s = 0,
                              .memory_bytes = 2 * kMiB,
                              .disk_bytes = kMiB,
                              .folder = folder.path(),
                              .open = [](const BurnInPlace& place) -> std::unique_ptr<kernels::Backend> {
                                if (place.kind == BurnInPlace::gpu)
                                  throw Error(ErrorCode::kHardware, "it is lost");
                                return test::make_spoiling_backend({.every_product = place.index});
                              },
                              .say = [&](const std::string&) { ++said; }};
  const BurnInResult result = burn_in(places, options);
  CHECK(said == 3);
  REQUIRE(result.places.size() == 3);
  for (size_t i = 0; i < 2; ++i) {
    const PlaceResult& place = result.places[i];
    CHECK(place.problem == "");
    CHECK(place.memory.bytes == kMiB);
    CHECK(place.memory.patterns == 8);
    CHECK(place.copy_bytes_per_s > 0);
    CHECK(place.numerics == kernels::cpu_numerics());
    for (const ProductBits& bits : place.products)
      if (bits.expected) CHECK((bits.times.begin()->first == *bits.expected) == (i == 0));
  }
  CHECK(result.places[2].problem == "it is lost");
  CHECK(result.disk.bytes > 0);
  CHECK(result.clock.monotonic_s > 0);
  CHECK(result.clock.raw_s > 0);
  CHECK_FALSE(result.left_behind);
}

TEST_CASE("a place that does not answer is left behind, and the result says so") {
  const test::TemporaryFolder folder;
  std::promise<void> go, gone;
  const BurnInOptions options{.product_s = 0,
                              .memory_bytes = kMiB,
                              .disk_bytes = kMiB,
                              .limit_s = 1,
                              .answer_s = 0,
                              .folder = folder.path(),
                              .open = [may_go = go.get_future().share(),
                                       &gone](const BurnInPlace&) -> std::unique_ptr<kernels::Backend> {
                                may_go.wait();
                                gone.set_value_at_thread_exit();
                                throw Error(ErrorCode::kHardware, "too late");
                              }};
  const BurnInResult result = burn_in({{.index = 0}}, options);
  CHECK(result.left_behind);
  REQUIRE(result.places.size() == 1);
  CHECK(result.places[0].problem == "did not answer in time");
  go.set_value();
  gone.get_future().wait();
}

TEST_CASE("a GPU whose driver does not answer is left behind") {
  const test::TemporaryFolder folder;
  std::promise<void> go, gone;
  const BurnInOptions options{
      .memory_bytes = kMiB,
      .disk_bytes = kMiB,
      .answer_s = 0.01,
      .folder = folder.path(),
      .open = [](const BurnInPlace&) -> std::unique_ptr<kernels::Backend> {
        throw Error(ErrorCode::kHardware, "it is lost");
      },
      .gpu_facts = [may_go = go.get_future().share(), &gone](int index) -> kernels::GpuFacts {
        may_go.wait();
        gone.set_value_at_thread_exit();
        return {.index = index};
      }};
  const BurnInResult result = burn_in({{.kind = BurnInPlace::gpu, .index = 0}}, options);
  CHECK(result.left_behind);
  CHECK(result.gpus.empty());
  CHECK(result.places.at(0).problem == "it is lost");
  go.set_value();
  gone.get_future().wait();
}

TEST_CASE("what slows a GPU is read while it is hot, its errors at the end") {
  const test::TemporaryFolder folder;
  int readings = 0;
  const BurnInOptions options{.product_s = 0,
                              .memory_bytes = kMiB,
                              .disk_bytes = kMiB,
                              .folder = folder.path(),
                              .open = [](const BurnInPlace&) { return kernels::make_cpu_backend(1); },
                              .gpu_facts =
                                  [&](int index) {
                                    const bool is_hot = ++readings == 1;
                                    kernels::GpuFacts facts{.index = index};
                                    facts.temperature_c = is_hot ? 95 : 60;
                                    facts.slowed_by = is_hot ? "heat" : "";
                                    facts.ecc_uncorrected = is_hot ? 0 : 1;
                                    return facts;
                                  }};
  const BurnInResult result = burn_in({{.kind = BurnInPlace::gpu, .index = 2}}, options);
  CHECK(readings == 2);
  REQUIRE(result.gpus.size() == 1);
  CHECK(result.gpus[0].index == 2);
  CHECK(result.gpus[0].temperature_c == 95);
  CHECK(result.gpus[0].slowed_by == "heat");
  CHECK(result.gpus[0].ecc_uncorrected == 1);
}

TEST_CASE("places that copy slower than half of the median of their kind copy again") {
  std::vector<PlaceResult> results;
  const auto add = [&](BurnInPlace::Kind kind, double rate) {
    results.push_back({.place = {.kind = kind, .index = int(results.size())}, .copy_bytes_per_s = rate});
  };
  for (const double rate : {10.0, 4.9, 5.1, 0.0, 11.0, 12.0}) add(BurnInPlace::core, rate);
  for (const double rate : {1.0, 100.0}) add(BurnInPlace::gpu, rate);
  CHECK(to_copy_again(results) == std::vector<size_t>{1});
  add(BurnInPlace::gpu, 90);
  CHECK(to_copy_again(results) == std::vector<size_t>{1, 6});
}

TEST_CASE("a driver without a usable GPU is a problem, a machine without a driver is none") {
  CHECK(gpu_problem_of({.built = true, .problem = "no driver"}) == "");
  CHECK(gpu_problem_of({.built = true, .devices = 8, .driver_version = 13000}) == "");
  CHECK(gpu_problem_of({.built = true, .driver_version = 13000, .problem = "fell off"}) == "fell off");
  CHECK(gpu_problem_of({.built = true, .driver_version = 13000}) != "");
}

TEST_CASE("clocks are read together, also if another program has the core in between") {
  int reads = 0;
  double now_s = 100;
  const ClockResult clocks = clocks_of([&](int) {
    const bool is_interrupted = ++reads <= 3 || reads % 7 == 0;
    return now_s += is_interrupted ? 512 : 2;
  });
  CHECK(clocks.monotonic_s == clocks.raw_s + 1);
  CHECK(clocks.monotonic_s == clocks.unix_s - 1);
}

TEST_CASE("the places of this machine are its cores, each once") {
  const std::vector<BurnInPlace> places = burn_in_places();
  std::set<std::string> names;
  for (const BurnInPlace& place : places) names.insert(place.name());
  CHECK(names.size() == places.size());
  REQUIRE(!places.empty());
  CHECK(places.front().kind == BurnInPlace::core);
  const std::vector<int> cpus = usable_cpus();
  REQUIRE(!cpus.empty());
  std::vector<int> bound;
  std::thread thread([&] {
    if (bind_thread(cpus.back())) bound = usable_cpus();
  });
  thread.join();
  CHECK(bound == std::vector<int>{cpus.back()});
  CHECK_FALSE(bind_thread(-1));
  CHECK(usable_cpus() == cpus);
}

TEST_CASE("errors of GPUs are read from the kernel's log, without those of programs") {
  const std::string log =
      "4,1,2,-;NVRM: Xid (PCI:0000:1B:00): 48, pid=7, name=x, DBE\n"
      "4,2,3,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
      "4,3,4,-;NVRM: Xid (PCI:0000:1b:00.0): 31, pid=9, MMU Fault\n"
      "4,3,4,-;NVRM: Xid (PCI:0000:4e:00 GPU-I:07): 94, pid=9, Contained error\n"
      "4,4,5,-;NVRM: Xid (PCI:0000:2c:00): 13, pid=9\n"
      "4,5,6,-;NVRM: Xid (PCI:0000:3d:00): nothing\n"
      "4,6,7,-;NVRM: Xid (PCI:cut\n";
  CHECK(xids_in(log) == std::map<std::string, long long>{{"0000:1b:00", 79}, {"0000:4e:00", 94}});
  CHECK(xids_in("").empty());
}

}  // namespace
