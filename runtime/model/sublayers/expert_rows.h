// ExpertRows: the way of tokens' rows to their experts and back. Experts are shared out over neighbouring
// ranks of the data-parallel group (parallelism.expert), and rows travel to the ranks of their experts. The
// rows of one rank and context block are a source: they are multiplied apart from others, in the order of
// experts and of slots, their gradients of weights belong to the source's own lane, and each row comes back
// to be added at home. So nothing depends on how many ranks share the experts.
//
// Where experts are whole (parallelism.expert_tensor = 1), the ranks that share them are neighbours among
// tensor, context and data-parallel ranks together, and each tensor rank sends its part of the tokens, as a
// source of its own. A lane's gradients of an expert are then added in the order of the tensor ranks, and
// what comes home is a tensor rank's part of the sum of all.
//
// A token of which several experts are on one rank is sent to it once, and its rows are made there: with the
// weights of rows come the places of their tokens. What experts make of a token comes back row by row,
// because its rows are added at home, in the order of its experts. Tensor ranks that cut experts need the
// same tokens: they send a part of them each, and complete them where they arrive, most often within a node.
//
// With a capacity an expert takes at most so many rows of each source; what is over has no row, and adds
// nothing to its token.
//
// How many rows go where is known on the device alone, and messages have the sizes that the host gives them.
// So the ranks tell each other the counts of all sources, and the forward pass waits on the host until the
// device has come as far as they: once a layer and micro-batch. What it has read stays in host memory for
// backward, and for a pass that is computed again, which routes alike.
//
// Letters (sublayer.h, kernels/moe_ops.h): R rows of own tokens, M k at most; N the rows at the experts here,
// of each of the ranks that share them at most M times k, or times the experts here if they are fewer.
#pragma once
#include <functional>
#include <vector>

#include "kernels/moe_ops.h"
#include "runtime/model/sublayers/dispatch.h"
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {

/// This rank among those that share experts.
struct ExpertRanks {
  parallel::Communicator* comm = nullptr;  ///< null: it has all experts
  int size() const { return comm ? comm->size() : 1; }
  int rank() const { return comm ? comm->rank() : 0; }
};

class ExpertRows {
 public:
  /// Numbers of its tensors. ids [M, k] is the router's; the order of own rows: offsets [blocks, E + 1],
  /// slots [R] and rows [M k]; that of all sources [sources, E + 1] as it arrives, and of their rows here
  /// [sources, E here + 1]; both as the host reads and makes them. In the order of own rows, and of rows
  /// here: weights and their gradients in f32. Where tokens are sent, behind the offsets of each block or
  /// source those of the tokens of each rank; the tokens sent [1, S], the places of rows, own and here, and
  /// the tokens as they arrive [T, C].
  struct Numbers {
    int ids, offsets, slots, rows, offsets_of_sources, offsets_here, on_host, here_on_host;
    int row_weights, weights_here, weight_gradients_here;
    int tokens, places, places_here, arrived;
  };
  /// width: C.
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n,
                      const Dispatch& dispatch, int64_t width);
  /// R, and N at most.
  static int64_t own_rows(const LayerShape& s, const Dispatch& dispatch) {
    return s.cut.blocks_here() * dispatch.rows(tokens_of_source(s));
  }
  static int64_t most_rows(const LayerShape& s, const Dispatch& dispatch) {
    return s.expert_ranks * s.cut.blocks_here() * rows_of_source(s, dispatch);
  }
  /// Of them those of one source at most.
  static int64_t rows_of_source(const LayerShape& s, const Dispatch& dispatch) {
    return dispatch.rows_at(tokens_of_source(s), dispatch.experts / s.expert_ranks);
  }
  static int64_t tokens_of_source(const LayerShape& s) {
    return s.rows / s.cut.blocks_here() / s.token_parts;
  }

  ExpertRows(const LayerContext& c, const Numbers& n, const Dispatch& dispatch);
  int64_t experts_here() const { return dispatch_.experts / ranks_.size(); }
  bool may_drop() const { return dispatch_.capacity > 0; }

  /// Orders the rows of the tokens that the router has sent (ids, and weights [M, k]), and tells the ranks of
  /// their experts. again: it has done so for this micro-batch, and only the order on the device is made
  /// again.
  void arrange(const LayerContext& c, Tensors& t, kernels::Matrix weights, bool again) const;
  /// What is enqueued while rows are on their way, once; empty: nothing.
  using Meanwhile = std::function<void()>;
  /// Rows of `of_tokens` [M, C] to their experts. home [R, C]: room for own rows in order. Returns the rows
  /// here: of `here` [N, C], which without other ranks is `home`.
  kernels::Matrix send(const LayerContext& c, Tensors& t, kernels::Matrix of_tokens, kernels::Matrix home,
                       kernels::Matrix here, const Meanwhile& meanwhile = {}) const;
  /// Rows here back to where their tokens are: home [R, C].
  void give_back(const LayerContext& c, Tensors& t, kernels::Matrix here, kernels::Matrix home) const;
  /// out [M, C]: of each token the sum of its rows home. Of whole experts a tensor rank's part of the sum: 0
  /// of the tokens that others have sent.
  void combine(const LayerContext& c, Tensors& t, kernels::Matrix home, kernels::Matrix out) const;
  /// Of a tensor with a row for each row here: those that there are.
  kernels::Matrix here(const Tensors& t, kernels::Matrix most) const;

  /// The router's weights to the rows here (weights [M, k]), and their places; y = weight x of each row.
  void send_weights(const LayerContext& c, Tensors& t, kernels::Matrix weights) const;
  void scale(const LayerContext& c, Tensors& t, kernels::Matrix weights, kernels::Matrix x,
             kernels::Matrix y) const;
  /// The gradient of `scale`: dy becomes that of x. Those of weights are complete after give_weights_back,
  /// dweights [M, k]; those of slots without a row are left as they are here, and then 0 if experts are on
  /// several ranks.
  void scale_backward(const LayerContext& c, Tensors& t, kernels::Matrix weights, kernels::Matrix x,
                      kernels::Matrix dy, kernels::Matrix dweights) const;
  void give_weights_back(const LayerContext& c, Tensors& t, kernels::Matrix dweights) const;

  // The experts' biases, of use `bias` and those behind it; see AddExpertBias and its gradients. Without
  // weights: not multiplied by them.
  void add_bias(const LayerContext& c, Tensors& t, kernels::Matrix x, int bias,
                kernels::Matrix weights) const;
  void bias_weights(const LayerContext& c, Tensors& t, kernels::Matrix dy, int bias,
                    kernels::Matrix dweights) const;
  void bias_gradient(const LayerContext& c, Tensors& t, kernels::Matrix dy, int bias, kernels::Matrix weights,
                     LanePlace at) const;

  // Products of the rows here with the experts' weights; see GroupedForward and its gradients.
  void multiply(const LayerContext& c, Tensors& t, kernels::Matrix x, const Linear& w,
                kernels::Matrix y) const;
  void multiply_backward(const LayerContext& c, Tensors& t, kernels::Matrix dy, const Linear& w,
                         kernels::Matrix dx) const;
  void weight_gradient(const LayerContext& c, Tensors& t, kernels::Matrix dy, kernels::Matrix x,
                       const Linear& w, LanePlace at) const;

 private:
  /// One source's rows among those here, and where each of its experts' begin.
  struct Source {
    int64_t first = 0, count = 0;
    kernels::Matrix offsets;
  };
  int sources() const { return ranks_.size() * blocks_; }
  /// The gradients of a source's rows in those of its lane: `first` overwrites them, `last` completes them.
  struct Turn {
    int source = 0;
    LanePlace at = {};
    bool last = true;
  };
  std::vector<Turn> turns(LanePlace at) const;
  /// Of a tensor with rows for all tokens: those of the tokens of a block that this rank sends.
  kernels::Matrix own(const LayerContext& c, kernels::Matrix of_tokens, int block) const;
  void clear_others(const LayerContext& c, kernels::Matrix of_tokens) const;
  /// Of a block here: its rows, and its slots.
  int64_t rows_of_block(const Tensors& t) const { return t[size_t(n_.slots)].cols / blocks_; }
  int64_t slots_of_block(const Tensors& t) const { return t[size_t(n_.rows)].cols / blocks_; }
  std::vector<Source> sources_here(const Tensors& t) const;
  RowsOfExperts rows_of(const LayerContext& c, int source, const Source& s) const;
  std::vector<Source> scaled_at_once(const Tensors& t) const;
  /// Of the rows of a source: the router's weights, or their gradients, and the slots by which ops find them;
  /// empty: they are in the order of rows.
  struct Weights {
    kernels::Matrix of, slots;
  };
  /// here: the tensor of those that came with the rows.
  Weights weights_of(const Tensors& t, int source, const Source& s, kernels::Matrix at_home, int here) const;
  /// What an exchange moves: a row for each expert, or for each token.
  enum class Sent : uint8_t { rows, tokens };
  /// Of a tensor at home and one here.
  struct Moved {
    kernels::Matrix home, here;
    Sent what = Sent::rows;
    bool back = false;
  };
  int64_t sent(const Tensors& t, int source, int rank, Sent what = Sent::rows) const;
  using Part = parallel::TensorParallel::Part;
  /// Of `count` things for or from `peer`, those that this tensor rank moves.
  Part part_of(const LayerContext& c, int64_t count, int peer, Sent what) const {
    const bool has_all = what == Sent::rows || peer == ranks_.rank() || parts_ > 1;
    return has_all ? Part{0, count} : c.tp.part_of(count, c.tp.rank());
  }
  void add_transfers(const LayerContext& c, const Tensors& t, const Moved& moved, int first_tag,
                     std::vector<parallel::Transfer>& transfers) const;
  void complete_tokens(const LayerContext& c, const Tensors& t) const;
  void exchange(const LayerContext& c, const std::vector<parallel::Transfer>& transfers, const char* what,
                const Meanwhile& meanwhile = {}) const;
  void gather(const LayerContext& c, const Tensors& t, kernels::Matrix of_tokens, kernels::Matrix home) const;
  void expand(const LayerContext& c, const Tensors& t, kernels::Matrix here) const;
  bool sends_tokens() const { return dispatch_.sends_tokens(ranks_.size()); }
  /// Of a block here: the most tokens that it sends.
  int64_t tokens_of_block(const Tensors& t) const { return t[size_t(n_.tokens)].cols / blocks_; }
  void order(const LayerContext& c, const Tensors& t, kernels::Matrix weights) const;
  void exchange_counts(const LayerContext& c, Tensors& t) const;
  void await_counts(const LayerContext& c) const;
  void assume_equal(Tensors& t) const;

  const Numbers n_;
  const ExpertRanks ranks_;
  const int blocks_;  ///< context blocks here
  const int parts_;   ///< LayerShape::token_parts
  const Dispatch dispatch_;
  std::unique_ptr<kernels::Event> counted_;  ///< the device has the counts; null: the host reads its memory
};

}  // namespace trainctl
