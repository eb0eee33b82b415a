#include "runtime/model/sublayers/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainctl {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

/// Between slow channels, which are stretched, and fast ones, which stay: by the turns that a channel makes
/// within the original length.
double llama3(double frequency, const RopeScalingSpec& s) {
  const double turns = double(s.original_max_seq_len) * frequency / kTurn;
  const double kept =
      std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
  return frequency * (kept + (1 - kept) / s.factor);
}

/// The same, by the number of the channel: pair i, between those that make beta_fast and beta_slow turns.
class Yarn {
 public:
  explicit Yarn(const Rotary& r) : s_(r.scaling) {
    const auto pair_with = [&](double turns) {
      return double(r.channels) * std::log(double(s_.original_max_seq_len) / (turns * kTurn)) /
             (2 * std::log(r.theta));
    };
    first_ = pair_with(s_.beta_fast), last_ = pair_with(s_.beta_slow);
    if (s_.truncate) first_ = std::floor(first_), last_ = std::ceil(last_);
    first_ = std::max(first_, 0.0), last_ = std::min(last_, double(r.channels - 1));
    if (first_ == last_) last_ += 0.001;  // a ramp needs a length
  }
  double operator()(double frequency, int64_t pair) const {
    const double stretched = std::clamp((double(pair) - first_) / (last_ - first_), 0.0, 1.0);
    return frequency * (1 - stretched + stretched / s_.factor);
  }

 private:
  const RopeScalingSpec& s_;
  double first_ = 0, last_ = 0;
};

double amplitude(const RopeScalingSpec& s) {
  if (s.type != RopeScaling::yarn) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  const bool given = s.mscale > 0 && s.mscale_all_dim > 0;
  return given ? s.growth(s.mscale) / s.growth(s.mscale_all_dim) : s.growth(1);
}

std::vector<double> frequencies(const Rotary& r) {
  std::vector<double> list;
  const Yarn yarn(r);
  for (int64_t i = 0; i < r.channels / 2; ++i) {
    const double plain = std::pow(r.theta, -2.0 * double(i) / double(r.channels));
    switch (r.scaling.type) {
      case RopeScaling::none: list.push_back(plain); break;
      case RopeScaling::linear: list.push_back(plain / r.scaling.factor); break;
      case RopeScaling::llama3: list.push_back(llama3(plain, r.scaling)); break;
      case RopeScaling::yarn: list.push_back(yarn(plain, i)); break;
    }
  }
  return list;
}

}  // namespace

std::vector<float> rotary_table(const Rotary& r, int64_t seq_len) {
  const int64_t half = r.channels / 2;
  const std::vector<double> of_pair = frequencies(r);
  const double factor = amplitude(r.scaling);
  std::vector<float> table(size_t(seq_len * r.channels));
  for (int64_t t = 0; t < seq_len; ++t)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = double(t) * of_pair[size_t(i)];
      table[size_t(t * r.channels + i)] = float(factor * std::cos(angle));
      table[size_t(t * r.channels + half + i)] = float(factor * std::sin(angle));
    }
  return table;
}

}  // namespace trainctl
