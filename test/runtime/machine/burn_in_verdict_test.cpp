// Goal: of a place that works, what is wrong with it by itself is named in one sentence, and a GPU that
// throws in its work has failed, unless memory alone is missing. Method: work on devices that are broken at
// one place, or throw in a chosen call.
#include "runtime/machine/burn_in_verdict.h"

#include <catch2/catch.hpp>

#include "kernels/host_memory.h"
#include "runtime/base/error.h"
#include "test/support/spoiling_backend.h"

using namespace trainctl;

namespace {

constexpr uint64_t kTestedBytes = uint64_t{1} << 20;

/// A device on which a call of one kind throws from the n-th on.
class FailingDevice final : public kernels::HostDevice {
 public:
  struct Fault {
    enum Call { none, allocation, product } call = none;
    int from = 1;  ///< counted from 1
    ErrorCode code = ErrorCode::kHardware;
    bool is_dead = false;  ///< other calls throw then, too
  };
  explicit FailingDevice(const Fault& fault) : fault_(fault) {}
  std::string name() const override { return device_->name(); }
  std::string numerics() const override { return device_->numerics(); }
  std::unique_ptr<kernels::PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return device_->make_packed(n, k, dtype);
  }
  std::unique_ptr<kernels::Buffer> allocate(size_t bytes) override {
    count(Fault::allocation);
    return kernels::HostDevice::allocate(bytes);
  }
  std::unique_ptr<kernels::Stream> create_stream() override {
    if (is_dead_) throw Error(fault_.code, "it is dead");
    return kernels::HostDevice::create_stream();
  }
  void run(kernels::Stream& stream, const kernels::Op& op) override {
    if (std::holds_alternative<kernels::LinearForward>(op)) count(Fault::product);
    device_->run(stream, op);
  }

 private:
  void count(Fault::Call call) {
    if (call != fault_.call || ++calls_ < fault_.from) return;
    is_dead_ = fault_.is_dead;
    throw Error(fault_.code, "the first cause");
  }
  const std::unique_ptr<kernels::Backend> device_ = kernels::make_cpu_backend(1);
  const Fault fault_;
  int calls_ = 0;
  bool is_dead_ = false;
};

}  // namespace

TEST_CASE("a GPU that throws in its work has failed; one without memory, and a core, have not") {
  using Fault = FailingDevice::Fault;
  struct Case {
    Fault fault;
    bool is_failure;
  };
  const Case cases[] = {{{.call = Fault::product, .from = 1, .is_dead = true}, true},
                        {{.call = Fault::product, .from = 10, .is_dead = true}, true},
                        {{.call = Fault::product}, false},  // of its first call's memory, or of a library
                        {{.call = Fault::product, .code = ErrorCode::kDevice}, true},
                        {{.call = Fault::product, .code = ErrorCode::kPlan}, false},
                        {{.call = Fault::allocation, .from = 1}, false},
                        {{.call = Fault::allocation, .from = 25}, false},
                        {{.call = Fault::allocation, .is_dead = true}, true},
                        {{.call = Fault::allocation, .code = ErrorCode::kDevice}, true}};
  for (const Case& c : cases)
    for (const auto kind : {BurnInPlace::gpu, BurnInPlace::core}) {
      bool left_behind = false;
      const std::vector<PlaceResult> results =
          work_on({{.kind = kind, .index = 0}},
                  {.product_s = 0,
                   .memory_bytes = kTestedBytes,
                   .open = [&](const BurnInPlace&) { return std::make_unique<FailingDevice>(c.fault); },
                   .gpu_facts = [](int index) { return kernels::GpuFacts{.index = index}; }},
                  left_behind);
      INFO(int(c.fault.call) << " from " << c.fault.from << " on " << results.at(0).place.name());
      CHECK(results[0].problem == "the first cause");
      CHECK(results[0].has_failed == (c.is_failure && kind == BurnInPlace::gpu));
      CHECK(wrong_place(results[0]) == (results[0].has_failed ? "gpu 0: failed: the first cause" : ""));
      CHECK_FALSE(left_behind);
    }
}

TEST_CASE("the work on places names what is wrong with one, and measures it") {
  bool left_behind = false;
  const auto results = work_on(
      {{.index = 0}, {.index = 1}, {.index = 2}},
      {.product_s = 0,
       .memory_bytes = 3 * kTestedBytes,
       .times_products = true,
       .open = [](const BurnInPlace& place) -> std::unique_ptr<kernels::Backend> {
         if (place.index == 2)
           return test::make_spoiling_backend({.stuck_buffer_bytes = kTestedBytes, .stuck_byte = 100});
         return test::make_spoiling_backend({.every_product = place.index});
       }},
      left_behind);
  REQUIRE(results.size() == 3);
  for (const PlaceResult& place : results) CHECK(place.product_s > 0);
  CHECK(wrong_place(results[0]) == "");
  CHECK_THAT(
      wrong_place(results[1]),
      Catch::StartsWith("core 1: 2 of 2 results of f32 64x256x512 of whole numbers have other bits than "
                        "the reference, element 0 is 0x"));
  CHECK_THAT(wrong_place(results[2]),
             Catch::StartsWith("core 2: ") && Catch::Contains(" wrong words, the first at byte 0x60 of "));
}
