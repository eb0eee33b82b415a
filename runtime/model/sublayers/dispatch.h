// Dispatch: how many rows and tokens go to experts and to the ranks that share them. Pure.
#pragma once
#include <algorithm>
#include <cstdint>

namespace trainctl {

/// How tokens are sent to experts.
struct Dispatch {
  int64_t experts = 0, top_k = 0;
  int groups = 1, top_groups = 1;  ///< of neighbouring experts; a token meets those of top_groups
  int64_t capacity = 0;            ///< rows of a source that an expert takes at most; 0: all
  bool by_weight = true;           ///< with a capacity the largest weights are taken, else the first tokens
  /// The same without training, of each of the source's sequences by itself (of each chunk, where they are
  /// cut): what is known of a text does not depend on others beside it.
  int64_t sequence_capacity = 0, sequences = 1;
  /// Of a source of so many tokens: the most rows, and those at `here` of the experts.
  int64_t rows(int64_t tokens) const { return rows_at(tokens, experts); }
  int64_t rows_at(int64_t tokens, int64_t here) const {
    const int64_t all = tokens * std::min(top_k, here);
    return capacity > 0 ? std::min(all, here * std::max(capacity, sequences * sequence_capacity)) : all;
  }
  /// Whether a token may have several experts on one of `ranks` ranks: it is then sent there once, with the
  /// places of its rows.
  bool sends_tokens(int ranks) const { return ranks > 1 && std::min(top_k, experts / ranks) > 1; }
  /// Of a source of so many tokens: the most that are sent to all ranks, and to one.
  int64_t tokens_to(int64_t tokens, int ranks) const {
    return std::min(tokens * std::min(top_k, int64_t(ranks)), rows(tokens));
  }
  int64_t tokens_at(int64_t tokens, int ranks) const {
    return std::min(tokens, rows_at(tokens, experts / ranks));
  }
  /// The part of a source's tokens that goes to one of `ranks` ranks, where every choice of experts is as
  /// likely as any other and so is every drop. For plans.
  double share_of_tokens(int64_t tokens, int ranks) const;
  bool operator==(const Dispatch&) const = default;
};

}  // namespace trainctl
