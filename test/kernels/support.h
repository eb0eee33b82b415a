// What the kernel tests share: random matrices with guarded, strided storage, and the comparison of two backends.
#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/backend.h"
#include "test/support/tolerances.h"

namespace trainctl::kernels::test {

/// A matrix with its storage: `pad` extra columns hold a pattern that no op may change.
class Storage {
 public:
  Storage() = default;
  Storage(DType dtype, int64_t rows, int64_t cols, int64_t pad)
      : bytes_(size_t(rows * (cols + pad) + kGuard) * size_of(dtype) + 64, char(0x5a)), pad_(pad) {
    // 64-byte aligned start, like an allocation
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    offset_ = (64 - address % 64) % 64;
    view_ = {bytes_.data() + offset_, dtype, rows, cols, cols + pad};
  }
  Storage(const Storage& other) { *this = other; }
  Storage& operator=(const Storage& other) {
    if (other.view_) {
      Storage fresh(other.view_.dtype, other.view_.rows, other.view_.cols, other.pad_);
      std::memcpy(fresh.view_.data, other.view_.data, other.used());
      bytes_.swap(fresh.bytes_);
      offset_ = fresh.offset_;
      pad_ = fresh.pad_;
      view_ = fresh.view_;
    }
    return *this;
  }
  Storage(Storage&&) = default;
  Storage& operator=(Storage&&) = default;

  operator Matrix() const { return view_; }
  const Matrix* operator->() const { return &view_; }
  float* f32() const { return view_.as<float>(); }

  float get(int64_t r, int64_t c) const {
    const int64_t i = r * view_.stride + c;
    if (view_.dtype == DType::f16) return float(view_.as<f16>()[i]);
    return view_.dtype == DType::f32 ? view_.as<float>()[i] : float(view_.as<bf16>()[i]);
  }
  void set(int64_t r, int64_t c, float value) {
    const int64_t i = r * view_.stride + c;
    if (view_.dtype == DType::f32) {
      view_.as<float>()[i] = value;
    } else if (view_.dtype == DType::f16) {
      view_.as<f16>()[i] = f16(value);
    } else {
      view_.as<bf16>()[i] = bf16(value);
    }
  }
  void fill(float value) {
    for (int64_t r = 0; r < view_.rows; ++r) {
      for (int64_t c = 0; c < view_.cols; ++c) {
        set(r, c, value);
      }
    }
  }
  /// The elements as bits, without the padding.
  std::vector<char> content() const {
    const size_t row_bytes = size_t(view_.cols) * size_of(view_.dtype);
    std::vector<char> result(size_t(view_.rows) * row_bytes);
    for (int64_t r = 0; r < view_.rows; ++r) {
      std::memcpy(result.data() + size_t(r) * row_bytes, view_.row_range(r, 1).data, row_bytes);
    }
    return result;
  }
  /// Whether everything between and behind the rows still holds its pattern.
  bool padding_untouched() const {
    const size_t element = size_of(view_.dtype);
    const char* base = static_cast<const char*>(view_.data);
    for (int64_t r = 0; r < view_.rows; ++r) {
      for (size_t i = size_t(view_.cols) * element; i < size_t(view_.stride) * element; ++i) {
        if (base[size_t(r * view_.stride) * element + i] != char(0x5a)) {
          return false;
        }
      }
    }
    for (size_t i = size_t(view_.rows * view_.stride) * element; i < used(); ++i) {
      if (base[i] != char(0x5a)) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 64;
  size_t used() const { return size_t(view_.rows * view_.stride + kGuard) * size_of(view_.dtype); }

  std::vector<char> bytes_;
  size_t offset_ = 0;
  int64_t pad_ = 0;
  Matrix view_;
};

/// Numbers from a seed.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  Storage normal(DType dtype, int64_t rows, int64_t cols, int64_t pad = 0, float scale = 1.0f, float mean = 0.0f) {
    Storage m(dtype, rows, cols, pad);
    std::normal_distribution<float> draw(mean, scale);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        m.set(r, c, draw(engine_));
      }
    }
    return m;
  }
  std::vector<int32_t> ids(int64_t n, int32_t low, int32_t high) {
    std::uniform_int_distribution<int32_t> draw(low, high);
    std::vector<int32_t> result;
    for (int64_t i = 0; i < n; ++i) {
      result.push_back(draw(engine_));
    }
    return result;
  }

 private:
  std::mt19937 engine_;
};

/// ||a - b|| / ||b||; infinite when a is not finite where b is.
inline double relative_error(const Storage& a, const Storage& b) {
  double difference = 0, norm = 0;
  for (int64_t r = 0; r < a->rows; ++r) {
    for (int64_t c = 0; c < a->cols; ++c) {
      const double x = a.get(r, c), y = b.get(r, c);
      difference += (x - y) * (x - y);
      norm += y * y;
    }
  }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isnan(error) ? INFINITY : error;
}

namespace tolerance = trainctl::test::tolerance;

/// Sum of a * b.
inline double dot(const Storage& a, const Storage& b) {
  double sum = 0;
  for (int64_t r = 0; r < a->rows; ++r) {
    for (int64_t c = 0; c < a->cols; ++c) {
      sum += double(a.get(r, c)) * b.get(r, c);
    }
  }
  return sum;
}

/// `gradient` holds the derivatives of loss() by the elements of x, which central differences confirm.
template <typename Loss>
void check_derivative(Loss loss, Storage& x, const Storage& gradient) {
  constexpr float h = 1e-2f;
  for (int64_t r = 0; r < x->rows; ++r) {
    for (int64_t c = 0; c < x->cols; ++c) {
      const float kept = x.get(r, c);
      x.set(r, c, kept + h);
      const double up = loss();
      x.set(r, c, kept - h);
      const double down = loss();
      x.set(r, c, kept);
      INFO("element [" << r << ", " << c << "]");
      CHECK((up - down) / (2 * h) == Approx(gradient.get(r, c)).margin(tolerance::kFiniteDifference));
    }
  }
}

constexpr float kPoison = NAN;  ///< what outputs hold before an op that overwrites

/// A backend under test, with host pointers. Candidates of one family follow each other, and must agree bit for bit.
struct Candidate {
  std::string name;     ///< in messages
  std::string family;
  std::shared_ptr<Backend> backend;
  /// A product's bits may differ between operands that stand on 16 bytes with every row and others, never within these classes.
  bool products_by_alignment = false;
};

/// Which devices a test program tests is decided by what is linked in: cpu_candidates.cpp, or test/cuda/candidates.cpp.
const std::vector<Candidate>& candidates();

inline Backend& reference() {
  static const std::unique_ptr<Backend> backend = make_reference_backend();
  return *backend;
}

/// Runs `op(backend, stream, outputs)` by the reference and by every candidate, each on its own copy of `initial`, and
/// compares: candidates with the reference within tolerance (0 means bit for bit), each with itself a second time and with
/// the others of its family bit for bit, padding unchanged. `tolerances[i]` belongs to output i.
template <typename Op>
void compare(const std::vector<Storage>& initial, const std::vector<double>& tolerances, Op op) {
  const auto stream = reference().create_stream();
  std::vector<Storage> expected = initial;
  op(reference(), *stream, expected);
  std::string family;
  std::vector<Storage> first_of_family;
  for (const Candidate& candidate : candidates()) {
    INFO(candidate.name);
    std::vector<Storage> got = initial, again = initial;
    op(*candidate.backend, *stream, got);
    op(*candidate.backend, *stream, again);
    const bool has_sibling = candidate.family == family;
    for (size_t i = 0; i < got.size(); ++i) {
      INFO("output " << i << " [" << got[i]->rows << ", " << got[i]->cols << "] " << name_of(got[i]->dtype));
      if (tolerances[i] == 0) {
        CHECK(got[i].content() == expected[i].content());
      } else {
        CHECK(relative_error(got[i], expected[i]) < tolerances[i]);
      }
      CHECK(got[i].padding_untouched());
      CHECK(again[i].content() == got[i].content());
      if (has_sibling) {
        CHECK(got[i].content() == first_of_family[i].content());
      }
    }
    if (!has_sibling) {
      family = candidate.family;
      first_of_family = std::move(got);
    }
  }
}

/// Those of the candidates, which each program names with them.
extern const std::vector<DType> kActivationTypes;

}  // namespace trainctl::kernels::test
