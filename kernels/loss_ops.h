// The ops of the loss on logits. ops.h has the letters and the rules of every op.
#pragma once
#include "kernels/op_arguments.h"

namespace trainctl::kernels {

/// What a logit l counts as: l' = cap * tanh(scale * l / cap), or scale * l where cap is 0.
struct LogitForm {
  float scale = 1, cap = 0;
  bool is_plain() const { return scale == 1 && cap == 0; }
};

/// logits = their form, in place, rounded to their dtype.
struct FormLogits {
  static constexpr const char* kName = "form_logits";
  Matrix logits;
  LogitForm form;
  OpShape cost_shape() const { return elements(kName, logits); }
  double bytes() const { return bytes_of({logits, logits}); }
  void check() const { check_logits(logits, form.cap); }
  void arguments(auto&& each) { each(logits); }
};

/// stats f32 [M, 3]: max over this rank's columns of the formed logits, sum of exp(logit - max), and the
/// target's formed logit, or 0 when the target is not in [vocab_begin, vocab_begin + V).
/// logits [M, V] (activation dtype), targets i32 [M]; a target below 0 means no loss
struct CrossEntropyStats {
  static constexpr const char* kName = "cross_entropy_stats";
  Matrix logits;
  const int32_t* targets = nullptr;
  int64_t vocab_begin = 0;
  float* stats = nullptr;
  LogitForm form = {};
  OpShape cost_shape() const { return elements(kName, logits); }
  double bytes() const { return bytes_of({logits}); }
  void check() const { check_logits(logits, form.cap); }
  void arguments(auto&& each) {
    each(logits), each(targets, size_t(logits.rows) * 4), each(stats, size_t(logits.rows) * 12);
  }
};

/// Combines the stats of `parts` vocabulary slices, in order: lse[m], and
/// loss[m] = weights[m] * (lse[m] - target logit + z_loss * lse[m]^2), or 0 where targets[m] < 0.
/// stats f32 [parts, M, 3]; lse, loss, weights f32 [M]. Without targets every row has a loss; without weights
/// each counts once.
struct CrossEntropyCombine {
  static constexpr const char* kName = "cross_entropy_combine";
  const float* stats = nullptr;
  int parts = 0;
  int64_t m = 0;
  float *lse = nullptr, *loss = nullptr;
  const int32_t* targets = nullptr;
  const float* weights = nullptr;
  float z_loss = 0;
  OpShape cost_shape() const { return {kName, m, parts}; }
  double bytes() const { return double(m) * (12.0 * parts + 8 + (targets ? 4 : 0) + (weights ? 4 : 0)); }
  void check() const { ENSURE(parts > 0); }
  void arguments(auto&& each) {
    each(stats, size_t(parts * m) * 12), each(lse, size_t(m) * 4), each(loss, size_t(m) * 4);
    each(targets, size_t(m) * 4), each(weights, size_t(m) * 4);
  }
};

/// logits -> dlogits in place: with l' the formed logit and p = exp(l' - lse[m]),
/// (p * (1 + 2 z_loss lse[m]) - [target == column]) * scale * weights[m] * dl'/dl; 0 in rows of a target below 0.
struct CrossEntropyBackward {
  static constexpr const char* kName = "cross_entropy_backward";
  Matrix logits;
  const int32_t* targets = nullptr;
  int64_t vocab_begin = 0;
  const float* lse = nullptr;
  float scale = 1;
  LogitForm form = {};
  const float* weights = nullptr;  ///< [M], or null: 1
  float z_loss = 0;
  OpShape cost_shape() const { return elements(kName, logits); }
  double bytes() const { return bytes_of({logits, logits}); }
  void check() const { check_logits(logits, form.cap); }
  void arguments(auto&& each) {
    each(logits), each(targets, size_t(logits.rows) * 4), each(lse, size_t(logits.rows) * 4);
    each(weights, size_t(logits.rows) * 4);
  }
};

}  // namespace trainctl::kernels
