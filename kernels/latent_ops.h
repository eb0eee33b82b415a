// The ops of multi-head latent attention (arXiv:2405.04434, section 2.1): the keys and values of heads from
// what each head has of its own and from what all heads share. ops.h has the letters and the rules of every
// op; here also: N channels of a key that are its head's own, R those that all heads share, D = N + R, W
// channels of a value, at most D.
#pragma once
#include "kernels/op_arguments.h"

namespace trainctl::kernels {

/// Of head h:  k[m, h] = [kv[m, h, 0..N) | shared[m]]   v[m, h] = [kv[m, h, N..N+W) | D - W zeros]
/// kv [M, H (N + W)], shared [M, R], k, v [M, H D]; activations
struct ExpandKeys {
  static constexpr const char* kName = "expand_keys";
  int64_t heads = 0;
  Matrix kv, shared, k, v;
  int64_t head_dim() const { return k.cols / heads; }
  int64_t own_dim() const { return head_dim() - shared.cols; }       ///< N
  int64_t value_dim() const { return kv.cols / heads - own_dim(); }  ///< W
  OpShape cost_shape() const { return elements(kName, k); }
  double bytes() const { return bytes_of({kv, shared, k, v}); }
  void check() const;
  void arguments(auto&& each) { each(kv), each(shared), each(k), each(v); }
};

/// The gradient of the above:  kv[m, h] = [k[m, h, 0..N) | v[m, h, 0..W)]   shared[m, r] = sum over heads, in
/// order, of k[m, h, N + r], rounded once. All are gradients of what is named so there; kv and shared are
/// overwritten.
struct ExpandKeysBackward {
  static constexpr const char* kName = "expand_keys_backward";
  int64_t heads = 0;
  Matrix k, v, kv, shared;
  ExpandKeys forward() const { return {.heads = heads, .kv = kv, .shared = shared, .k = k, .v = v}; }
  int64_t head_dim() const { return forward().head_dim(); }
  int64_t own_dim() const { return forward().own_dim(); }
  int64_t value_dim() const { return forward().value_dim(); }
  OpShape cost_shape() const { return elements(kName, k); }
  double bytes() const { return bytes_of({k, v, kv, shared}); }
  void check() const { forward().check(); }
  void arguments(auto&& each) { each(k), each(v), each(kv), each(shared); }
};

}  // namespace trainctl::kernels
