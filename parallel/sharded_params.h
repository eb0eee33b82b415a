// ShardedParams holds the parameters of one rank: the compute copies and gradients of its part of the model,
// and the optimizer state of the chunks that it owns (ZeRO-0: all its chunks, ZeRO-1: its share). Gradients
// are summed over lanes and the dp axis in a fixed order.
//
// ZeRO-0 and 1: a rank has neighbouring lanes, and their gradients are reduced once a step:
//
//   backward      gradients accumulate per lane
//   merge_lane    finished lanes are added pairwise (a binary counter), as far as the tree over all lanes
//   adds
//                 them within a rank's run: one sum for each whole subtree, which is one for the whole run
//                 where dp is a power of two
//   reduce        the gradients of a layer are complete: its chunks go in buckets through a ring of buffers
//                 of fixed size and are added over the dp ranks, during the backward pass: the upper part of
//                 the same tree, by recursive halving or directly (parallel/exchange_choice.h); the owners keep the
//                 sums
//   sum           the last buckets are waited for; the uses of a parameter are added; sums are added along
//                 the other axes over which they are partial (GroupKey): tp under sequence parallelism, the
//                 stages of a tied embedding
//   step          the rules on the rank's own chunks
//   gather        the owners send the new compute copies to all ranks in buckets through the same ring,
//                 during the next forward pass, which waits for those of a layer directly before it uses them
//
// ZeRO-2: at one time the dp ranks compute neighbouring lanes, which are reduced as soon as a part has its
// gradient; the owners add these sums as the upper levels of the same tree. So gradients are held by one part
// at a time, where a lane is one micro-batch (shares_gradients), and the lanes' levels by the owners.
//
// ZeRO-3: as ZeRO-2, and the compute copies, too, are kept by their owners alone. Before a part is computed,
// forward or backward, its copies are gathered into one of two places, in which parts take turns; or into a
// place of its own, in which they stay until the step (shares_weights).
//
// Parameters may have lanes along a shorter line, whose ranks have the lanes of several dp ranks each
// (parallel/README.md, "Several lines with lanes"). Each of these lanes is merged; when gradients are
// reduced does not change.
//
// Flat order, of the sums and the optimizer state: the chunks of a group are sorted by owner, each owner's
// last layer first (the order in which gradients become ready), each chunk contiguous. Neighbouring chunks
// have different owners, so that most buckets are exchanged by all ranks at once.
// Source: ZeRO, arXiv:1910.02054; lanes: balanced-tree summation at every width.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "parallel/axis_groups.h"
#include "parallel/communicator.h"
#include "parallel/exact_sum.h"
#include "parallel/exchange_choice.h"
#include "parallel/group_key.h"
#include "parallel/layout.h"
#include "parallel/muon.h"
#include "parallel/state_file.h"
#include "parallel/state_rows.h"

namespace trainctl::parallel {

/// One use of a parameter by this rank's part of the model.
struct ParamUse {
  int param = 0;                  ///< index into the model's table
  ParamLayout layout;
  DType dtype = DType::f32;       ///< dtype of the compute copy
  StateRows states = kAdamW;      ///< what the optimizer keeps of it
  UpdateRule rule = UpdateRule::adamw;  ///< has these states
  float weight_decay = 0, lr_scale = 1;  ///< as in UpdateBox
  uint64_t rounding = 0;                 ///< as in UpdateBox
  bool joined = false;            ///< directly follows the previous use in memory, as one taller matrix
  int part = 0;                   ///< of the rank's model (parallel/step_program.h), in forward order
  AxisSet replicated = axes::data;  ///< see GroupKey
  AxisSet partial = axes::data;
  int use = 0;          ///< which of the uses of the parameter in the model this is
  bool counted = true;  ///< this rank's copy is saved and counts in the gradient norm
};

/// Where the optimizer's state is between two updates. memory: of the device. file: of a rank on a CPU
/// (parallel/state_file.h). host: pinned memory of a GPU's host, where kernels read and write it.
enum class StateHome : uint8_t { memory, file, host };

struct ShardingOptions {
  /// 2 and 3: where the size of the first axis with lanes does not divide lanes, it is the only axis with
  /// them, and each rank computes as many (lanes_at_time): what it merges beyond its own goes nowhere.
  int zero_stage = 1;
  bool shares_gradients = false;  ///< from ZeRO-2 on: two parts at a time have memory for gradients
  bool shares_weights = false;    ///< ZeRO-3: two parts at a time have memory for compute copies
  int lanes = 0;  ///< of all ranks, a power of two, at least those of an axis with lanes; 0: as many
  bool accumulates = false;  ///< a lane has several micro-batches, so lanes of one time grow together
  /// A rank computes the parts of a lane at one time, so many, each of which counts as a lane here; of all
  /// ranks those of a lane are neighbours. Their gradients are added as soon as they are complete, as from
  /// ZeRO-2 on.
  int parts_of_lane = 1;
  bool has_parts = false;              ///< a lane has parts, of which each rank may have one
  int64_t bucket_elements = 1 << 20;   ///< of a bucket; a larger chunk makes a larger one
  DType reduction_dtype = DType::f32;  ///< of gradients between ranks, or bf16 (parallel/lane_sums.h)
  ExchangeChoice exchange = ExchangeChoice::automatic;
  GroupLinks links = links_of_hosts();  ///< along an axis with lanes, by which buckets choose their exchange
  /// Transports add gradients by themselves if they can (Communicator::reduces), in their own order.
  bool fast_reduction = false;
  /// Of a model that is not trained, on one rank: compute copies, without gradients and optimizer state.
  bool weights_alone = false;
  MuonOptions muon = {};
  StateHome state_home = StateHome::memory;  ///< of rules that look at one element at a time
};

/// The factors of one step, for parameters of each rule.
struct UpdateStep {
  kernels::AdamWStep adamw;
  kernels::LionStep lion;
  kernels::SgdStep sgd;
  kernels::BalanceStep balance;
  MuonStep muon;
  float ema_decay = 1;  ///< of averages: ema = ema_decay * ema + (1 - ema_decay) * master
};

/// Memory in bytes by purpose; what the plan prints and the constructor takes.
struct ShardingBytes {
  size_t weights = 0, gradients = 0, optimizer = 0, communication = 0;
  size_t matrix_scratch = 0;  ///< of updates of whole matrices (MuonScratch)
  std::vector<kernels::BoxListShape> square_sums;  ///< of whole matrices (MuonScratch)
  /// Of the optimizer's state in a file, whose parts that are in memory count in `optimizer`.
  size_t state_file = 0;
  size_t state_host = 0;  ///< of it in pinned memory of a device's host
  // Of the optimizer's state here:
  int64_t state_boxes = 0, state_elements = 0;  ///< chunks of parameters, and their elements
  size_t saved = 0;                             ///< bytes of what checkpoints hold of it
  int64_t saved_chunks = 0;                     ///< in so many chunks
  size_t total() const { return weights + gradients + optimizer + communication + matrix_scratch; }
};

namespace sharding {
struct Layout;   // parallel/sharding_plan.h
}

class ShardedParams {
 public:
  /// Takes the memory that the layout names. The groups' communicators must outlive this and have the sizes
  /// and ranks of the layout's lines.
  /// state_file: where the layout has state in a file, of sharding::StatePlaces::bytes() bytes; null: all
  /// of it is in memory. Only on a host.
  ShardedParams(sharding::Layout layout, const AxisGroups& groups, kernels::Backend& backend,
                kernels::Stream& stream, std::unique_ptr<File> state_file = nullptr);
  /// Lays them out, too. uses: in forward order. grids[param]: chunk grid of each parameter of the table.
  ShardedParams(std::vector<ParamUse> uses, const std::vector<std::vector<Box>>& grids,
                ShardingOptions options, const AxisGroups& groups, kernels::Backend& backend,
                kernels::Stream& stream);
  ~ShardedParams();

  /// options.fast_reduction: the groups will make the sums themselves.
  static ShardingBytes plan(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
                            const ShardingOptions& options, const AxisLines& lines);

  int use_count() const;
  const std::vector<ParamUse>& uses() const;
  /// Along which each rank has the state of chunks of its own, dealt out; 0: each has that of all chunks.
  AxisSet dealt_axis(int use) const;
  /// Whether compute copies are kept by their owners alone, and gathered for each use (ZeRO-3).
  bool shards_weights() const;
  /// The compute copy [local rows, cols]. A tied second use on the same rank has that of the first use, but
  /// with ZeRO-3.
  kernels::Matrix weight(int use) const;
  /// The f32 gradient into which micro-batches of lane `lane` accumulate: 0, 1, .. of those that come to
  /// this rank along the line of the use, in the order of lanes_in_time.
  kernels::Matrix gradient(int use, int lane) const;
  /// How many lanes come to the line of the use at one time.
  int lanes_together(int use) const;
  /// Whether lanes that come at one time have the gradients of the use one after another: each is merged before those
  /// of the next are made, so that few of them are held.
  bool merges_each(int use) const;
  /// The place in the gradient of part `part` of the same lane, of a place in that of its first part; null:
  /// it is no place in a gradient.
  void* gradient_of_part(void* place, int part) const;
  /// Sets this gradient to zero.
  void zero_gradient(int use, int lane);

  /// From ZeRO-2 on: call it before a lane's first gradients of uses [begin, end), which are whole parts, are
  /// written. Waits until those that are in this memory are on their way.
  void claim_gradients(int begin, int end);
  /// Call it when lane `lane` (see gradient; in order) has its whole gradient of uses [begin, end). Adds
  /// the gradient to those of the earlier lanes with which it forms a subtree of the lanes' tree.
  void merge_lane(int begin, int end, int lane);
  /// Call it when all lanes of uses [begin, end) are merged: once per step for every use, last uses first,
  /// and when all uses are awaited. From ZeRO-2 on: when the lanes of one time are merged for a part's
  /// uses; once for each time, in order. Begins the dp reduction of every full bucket for which the ring
  /// has room; does not wait for peers.
  void reduce(int begin, int end);
  /// Lets buckets under way go on as far as they can without a wait, and begins others for which the ring has
  /// room. Call it now and then during a step: on a host the rounds of an exchange go on in such calls alone.
  void go_on();
  /// Waits for the reductions of all uses; afterwards own chunks hold the sum over all lanes.
  void finish_reduction();

  /// Adds the sum of squares of the gradient of each chunk that this rank counts, but those of the rule
  /// `balance`. Of all ranks together every chunk is counted once, and its sum does not depend on the mesh.
  /// Waits for the stream.
  void add_gradient_squares(ExactSum& squares);
  /// The last parameter with a gradient that is not finite, of the chunks that this rank counts; -1: none.
  /// As add_gradient_squares has found them in this step. The backward pass runs from the last to the first,
  /// and what one parameter's gradient is made of goes into those before it.
  int last_bad_gradient() const;
  /// Updates the chunks whose state is on this rank. Call it after finish_reduction. Where a matrix is cut
  /// over the tensor axis and its rule needs the whole, collective along that axis.
  void step(const UpdateStep& step);
  /// Averages of weights begin as the weights. Call it after initialisation.
  void begin_averages();
  /// Starts to send the compute copies of uses [begin, end) to all ranks, in buckets, as far as the ring has
  /// room; await() goes on with them. Call it once for every use after a step, first uses first. With ZeRO-3:
  /// before a part is computed, for the uses of that part; its copies stay until those of another part come
  /// to their place (ShardingOptions::shares_weights) or until a step, and all work that reads what is in
  /// that place must be enqueued.
  void gather(int begin, int end);
  /// Computes the compute copies from the master weights, where there are any, and, but with ZeRO-3, starts to
  /// send them to all ranks. Call it after initialisation or load.
  void publish();
  /// Work enqueued on the stream from now on sees the new compute copies of uses [begin, end), and those of
  /// all before them; with ZeRO-3 those of the part that has these uses, alone. Call it before a use is read.
  void await(int begin, int end);
  /// Waits in that way for all gathers that have been started.
  void finish_gathers();

  /// A chunk whose optimizer state is on this rank.
  struct StateChunk {
    int param = 0, chunk = 0;
    int use = 0;  ///< of the parameter on this rank, the first one
    Box box;
    StateRows rows = kAdamW;
    /// [row]: on the device, as box_of says; null: weights_alone. Of a row that is in_place: the first
    /// element of `weight`, which may have a stride.
    std::vector<std::byte*> states;
    kernels::Matrix weight;                  ///< its compute copy that this rank makes
    std::byte* state(StateRole role) const;  ///< of the row with this role; null: there is none
    float* floats(StateRole role) const;  ///< of the row with this role, which is f32
    bool has_masters() const { return !rows.find(StateRole::master)->in_place; }
    /// The numbers of rows[i] that is not of_blocks.
    kernels::Matrix values(size_t i) const {
      return rows[i].in_place ? weight : kernels::matrix(states[i], rows[i].dtype, box.rows(), box.cols());
    }
    /// Of a row, in the tensor that a checkpoint has of it: `box`, or of scales the blocks of this chunk
    /// among those of the parameter, in the order of the grid.
    Box box_of(const StateRow& row) const {
      return row.of_blocks ? Box{first_block, first_block + kernels::moment_blocks(box.count()), 0, 1} : box;
    }
    int64_t first_block = 0;
    uint64_t saved_bytes() const {
      return rows.saved_bytes(box.count(), kernels::moment_blocks(box.count()));
    }
    const float* gradient = nullptr;
    int64_t gradient_stride = 0;
    bool saved_here = false;      ///< this rank writes it to checkpoints (exactly one rank does)
  };
  const std::vector<StateChunk>& state_chunks() const;
  /// Calls use(chunks) for all state_chunks(), a run of them at a time, while their state is in memory: all
  /// at once, but for state in a file. Only then may it be looked at; work on it must be done when `use`
  /// returns where it is in a file. Error(kIo), also of `use`.
  using UseChunks = std::function<void(std::span<const StateChunk> chunks)>;
  void with_state(StateAccess access, const UseChunks& use) const;
  /// The rows of a state whose first element is at `state`, where something lies between them, as in
  /// columns of a compute copy; else none.
  kernels::Matrix rows_apart(const std::byte* state) const;
  /// Whether a place in a state is in a file, and reads from there. Any thread, as long as nothing is
  /// written.
  bool is_in_file(const std::byte* state) const;
  void read_state(const std::byte* state, std::span<std::byte> to) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainctl::parallel
