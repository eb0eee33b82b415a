// What one place computes, keeps in memory and copies.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/philox.h"
#include "runtime/machine/burn_in.h"

namespace trainctl {
namespace {

using kernels::Backend;
using kernels::Buffer;

/// Whole numbers from -4 to 4: a sum of 512 products is exact in f32. Others are normal.
std::vector<std::byte> burn_in_operand(DType dtype, int64_t count, bool whole, uint64_t stream) {
  const Philox random(20260101, RandomPurpose::kTest, stream);
  std::vector<std::byte> bytes(size_t(count) * size_of(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float value = whole ? float(int(random.bits64(uint64_t(i)) % 9) - 4) : random.normal(uint64_t(i));
    const bf16 half(value);
    std::memcpy(&bytes[size_t(i) * size_of(dtype)], dtype == DType::f32 ? (const void*)&value : &half,
                size_of(dtype));
  }
  return bytes;
}

/// What `take` makes, which may allocate. Error(kPlan) where memory alone is missing: a device that is dead fails in any
/// call.
template <class Take>
auto allocated(Backend& backend, Take take) {
  try {
    return take();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kHardware) throw;
    bool is_alive = true;
    try {
      backend.create_stream()->synchronize();
    } catch (const Error&) {
      is_alive = false;
    }
    if (!is_alive) throw;
    throw Error(ErrorCode::kPlan, error.what());
  }
}
std::unique_ptr<Buffer> allocated(Backend& backend, size_t bytes) {
  return allocated(backend, [&] { return backend.allocate(bytes); });
}

/// One product on a device, with its operands there.
class PlacedProduct {
 public:
  PlacedProduct(Backend& backend, kernels::Stream& stream, const BurnInProduct& product)
      : backend_(backend),
        stream_(stream),
        p_(product),
        x_(allocated(backend, p_.x.size())),
        w_(allocated(backend, p_.w.size())),
        y_(allocated(backend, size_t(p_.m * p_.n) * size_of(p_.dtype))),
        packed_(allocated(backend, [&] { return backend.make_packed(p_.n, p_.k, p_.dtype); })) {
    backend.copy_to_device(stream, x_->data(), p_.x.data(), p_.x.size());
    backend.copy_to_device(stream, w_->data(), p_.w.data(), p_.w.size());
    run_op(kernels::Pack{.w = matrix(*w_, p_.n, p_.k), .packed = packed_.get()});
    stream.synchronize();
  }
  void run() {
    run_op(kernels::LinearForward{
        .x = matrix(*x_, p_.m, p_.k), .w = packed_.get(), .y = matrix(*y_, p_.m, p_.n)});
  }
  std::vector<std::byte> compute() {
    run();
    std::vector<std::byte> result(y_->bytes());
    backend_.copy_to_host(stream_, result.data(), y_->data(), result.size());
    stream_.synchronize();
    return result;
  }

 private:
  /// The first of a kind takes memory, and a library may have no way to do it.
  void run_op(const kernels::Op& op) {
    allocated(backend_, [&] {
      backend_.run(stream_, op);
      return true;
    });
  }
  kernels::Matrix matrix(Buffer& b, int64_t rows, int64_t cols) const {
    return kernels::matrix(b.data(), p_.dtype, rows, cols);
  }
  Backend& backend_;
  kernels::Stream& stream_;
  const BurnInProduct& p_;
  std::unique_ptr<Buffer> x_, w_, y_;
  std::unique_ptr<kernels::PackedWeight> packed_;
};

std::string first_difference(const BurnInProduct& p, std::span<const std::byte> found) {
  const size_t width = size_of(p.dtype);
  const auto at = size_t(std::mismatch(found.begin(), found.end(), p.expected.begin()).first - found.begin());
  if (at == found.size()) return "the bits are right, their hash is not";
  const size_t element = at / width;
  uint32_t is = 0, should = 0;
  std::memcpy(&is, &found[element * width], width);
  std::memcpy(&should, &p.expected[element * width], width);
  return fmt::format("element {} is {:#0{}x} instead of {:#0{}x}", element, is, 2 + 2 * width, should,
                     2 + 2 * width);
}

constexpr std::array kMemoryPatterns = {"zeros",       "ones",         "0x55",    "0xaa",
                                        "walking one", "walking zero", "address", "inverted address"};
constexpr uint64_t kMemoryPiece = uint64_t{4} << 20;

/// The words of a pattern from word `begin` on.
void fill_pattern(size_t pattern, uint64_t begin, std::span<uint64_t> words) {
  const uint64_t constant =
      std::array<uint64_t, 4>{0, ~uint64_t{0}, 0x5555555555555555, 0xaaaaaaaaaaaaaaaa}[pattern % 4];
  if (pattern < 4) return std::fill(words.begin(), words.end(), constant);
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = pattern < 6 ? uint64_t{1} << (begin + i) % 64 : (begin + i) * 8;
  if (pattern % 2 == 1)
    for (uint64_t& word : words) word = ~word;
}

/// The shortest time of so many runs of `work`; 0: it cannot be measured.
template <class Work>
double shortest_s(const Backend& backend, kernels::Stream& stream, int runs, Work work) {
  const auto now_s = [&] { return backend.is_host() ? burn_in_thread_s() : real_clock().monotonic_s(); };
  double best_s = 0;
  for (int run = 0; run < runs; ++run) {
    const double began_s = now_s();
    work();
    stream.synchronize();
    const double took_s = now_s() - began_s;
    best_s = run == 0 ? took_s : std::min(best_s, took_s);
  }
  return best_s;
}

}  // namespace

std::string BurnInProduct::name() const {
  return fmt::format("{} {}x{}x{}{}", name_of(dtype), m, n, k, whole ? " of whole numbers" : "");
}

std::vector<BurnInProduct> burn_in_products(bool whole_alone) {
  std::vector<BurnInProduct> products;
  const auto reference = kernels::make_reference_backend();
  const auto stream = reference->create_stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [m, n, k, whole] : {std::tuple<int64_t, int64_t, int64_t, bool>{64, 256, 512, true},
                                         {40, 104, 72, true},
                                         {256, 384, 1024, false},
                                         {40, 104, 72, false}}) {
      if (whole_alone && !whole) continue;
      BurnInProduct p{.dtype = dtype, .m = m, .n = n, .k = k, .whole = whole};
      p.x = burn_in_operand(dtype, m * k, whole, 1);
      p.w = burn_in_operand(dtype, n * k, whole, 2);
      if (whole) {
        p.expected = PlacedProduct(*reference, *stream, p).compute();
        p.expected_hash = xxh3(p.expected);
      }
      products.push_back(std::move(p));
    }
  return products;
}

std::vector<ProductBits> compute_products(Backend& backend, const std::vector<BurnInProduct>& products,
                                          double end_s) {
  const auto stream = backend.create_stream();
  std::vector<ProductBits> bits;
  std::vector<PlacedProduct> placed;
  placed.reserve(products.size());
  for (const BurnInProduct& p : products) {
    placed.emplace_back(backend, *stream, p);
    bits.push_back({.product = p.name(), .expected = p.expected_hash});
  }
  for (int round = 0; round < 2 || real_clock().monotonic_s() < end_s; ++round)
    for (size_t i = 0; i < products.size(); ++i) {
      const std::vector<std::byte> result = placed[i].compute();
      const uint64_t hash = xxh3(result);
      count_bits(bits[i], hash);
      if (bits[i].expected && hash != *bits[i].expected && bits[i].first_wrong.empty())
        bits[i].first_wrong = first_difference(products[i], result);
    }
  return bits;
}

void count_bits(ProductBits& bits, uint64_t hash) {
  // The right bits are counted by themselves, however late they come.
  const bool is_kept =
      hash == bits.expected || bits.times.size() < kMostKindsOfBits || bits.times.contains(hash);
  ++bits.times[is_kept ? hash : kOtherBits];
}

double time_products(Backend& backend) {
  constexpr int kRuns = 40;
  // About a millisecond.
  const int64_t size = backend.is_host() ? 384 : 4096;
  const DType dtype = backend.is_host() ? DType::f32 : DType::bf16;
  const std::vector<std::byte> operand = burn_in_operand(dtype, size * size, true, 1);
  const BurnInProduct product{.dtype = dtype, .m = size, .n = size, .k = size, .x = operand, .w = operand};
  const auto stream = backend.create_stream();
  PlacedProduct placed(backend, *stream, product);
  placed.run();  // what is made at the first time
  stream->synchronize();
  return shortest_s(backend, *stream, kRuns, [&] { placed.run(); });
}

MemoryResult test_memory(Backend& backend, uint64_t bytes, double end_s) {
  MemoryResult result{.bytes = bytes / 8 * 8};
  const auto stream = backend.create_stream();
  const uint64_t most = std::clamp<uint64_t>(result.bytes, 8, kMemoryPiece);  // each core has a piece
  const auto memory = allocated(backend, result.bytes),
             piece = allocated(backend, [&] { return backend.allocate_host(most); });
  std::vector<uint64_t> expected(most / 8);
  const auto in_time = [&] { return real_clock().monotonic_s() < end_s; };
  const auto each_piece = [&](auto&& act) {
    for (uint64_t at = 0; at < result.bytes && in_time(); at += most)
      act(at, static_cast<char*>(memory->data()) + at, std::min(most, result.bytes - at));
  };
  const std::span words(static_cast<uint64_t*>(piece->data()), most / 8);
  for (size_t pattern = 0; pattern < kMemoryPatterns.size(); ++pattern) {
    each_piece([&](uint64_t at, void* there, uint64_t size) {
      fill_pattern(pattern, at / 8, words.first(size / 8));
      backend.copy_to_device(*stream, there, words.data(), size);
      stream->synchronize();
    });
    each_piece([&](uint64_t at, void* there, uint64_t size) {
      backend.copy_to_host(*stream, words.data(), there, size);
      stream->synchronize();
      fill_pattern(pattern, at / 8, std::span(expected).first(size / 8));
      if (std::memcmp(words.data(), expected.data(), size) == 0) return;
      for (size_t i = 0; i < size / 8; ++i) {
        if (words[i] == expected[i]) continue;
        if (result.wrong_words++ == 0)
          result.first_wrong = {kMemoryPatterns[pattern], at + i * 8, expected[i], words[i]};
      }
    });
    if (!in_time()) break;
    ++result.patterns;
  }
  return result;
}

double time_copies(Backend& backend) {
  constexpr int kCopies = 6;
  const size_t bytes = backend.is_host() ? size_t{32} << 20 : size_t{256} << 20;
  const auto stream = backend.create_stream();
  const auto from = allocated(backend, bytes), to = allocated(backend, bytes);
  // Memory that was never written is one page of zeros.
  backend.copy_on_device(*stream, from->data(), to->data(), bytes);
  const double best_s = shortest_s(backend, *stream, kCopies,
                                   [&] { backend.copy_on_device(*stream, to->data(), from->data(), bytes); });
  return best_s > 0 ? 2 * double(bytes) / best_s : 0;
}

}  // namespace trainctl
