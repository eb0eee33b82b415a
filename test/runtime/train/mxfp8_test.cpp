// Goal: with MXFP8 each operand of each product of layers has its scales along that product's sum: of a weight
// in rows forward and in columns for the input's gradient, of tokens for the weight's gradient.
// Method: steps of models of all kinds of sublayers on a device that rounds each operand once more. One that
// is rounded so already stays as it is; with scales across the sum small numbers would lose bits.
#include <array>
#include <catch2/catch.hpp>
#include <cstring>

#include "kernels/host_memory.h"
#include "kernels/plain_weight.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using kernels::Fp8Groups;
using kernels::Matrix;

namespace {

/// Operands of one kind.
struct SeenOperands {
  int along = 0, not_along = 0;  ///< with their scales along the sum, or not
  int not_across = 0;            ///< those that scales across the sum would change
};
enum OperandKind { kForwardWeight, kBackwardWeight, kRows, kTokens, kOperandKinds };
using AllOperands = std::array<SeenOperands, kOperandKinds>;

class OperandWatch final : public kernels::HostDevice {
 public:
  OperandWatch(AllOperands& seen, int64_t vocabulary) : seen_(seen), vocabulary_(vocabulary) {}
  std::string name() const override { return device_->name(); }
  std::string numerics() const override { return device_->numerics(); }
  std::unique_ptr<kernels::PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return device_->make_packed(n, k, dtype);
  }
  void run(kernels::Stream& stream, const kernels::Op& op) override {
    std::visit([&](const auto& of) { watch(stream, of); }, op);
    device_->run(stream, op);
  }

 private:
  template <typename O>
  void watch(kernels::Stream& stream, const O& op) {
    using namespace kernels;
    Matrix offsets;
    if constexpr (requires { op.offsets; }) offsets = op.offsets;
    if constexpr (requires { op.product(); }) {
      watch(stream, op.product());
    } else if constexpr (std::is_same_v<O, LinearForward> || std::is_same_v<O, GroupedForward>) {
      if (is_kept(op.w->n)) return;
      look(stream, op.x, Fp8Groups::rows, offsets);
      look_at_weight(stream, *op.w, Fp8Groups::rows, offsets);
    } else if constexpr (std::is_same_v<O, LinearBackwardInput> || std::is_same_v<O, GroupedBackwardInput>) {
      if (is_kept(op.w->n)) return;
      look(stream, op.dy, Fp8Groups::rows, offsets);
      look_at_weight(stream, *op.w, Fp8Groups::columns, offsets);
    } else if constexpr (std::is_same_v<O, LinearBackwardWeight> ||
                         std::is_same_v<O, GroupedBackwardWeight>) {
      if (is_kept(op.dw.rows)) return;
      look(stream, op.dy, Fp8Groups::columns, offsets);
      look(stream, op.x, Fp8Groups::columns, offsets);
    }
  }

  /// The head, a router.
  bool is_kept(int64_t outputs) const { return outputs == vocabulary_ || outputs < kGroup; }

  static Fp8Groups across(Fp8Groups groups) {
    return groups == Fp8Groups::rows ? Fp8Groups::columns : Fp8Groups::rows;
  }
  void look(kernels::Stream& stream, const Matrix& x, Fp8Groups groups, const Matrix& offsets) {
    // Rows behind the last expert's have no meaning.
    const Matrix used = offsets ? x.row_range(0, offsets.as<int32_t>()[offsets.cols - 1]) : x;
    const auto stays = [&](Fp8Groups as) {
      return unchanged(used, [&](const Matrix& copy) {
        device_->run(stream, kernels::Quantize{
                                 .x = copy, .y = copy, .groups = as, .offsets = offsets, .group = kGroup});
      });
    };
    note(groups == Fp8Groups::rows ? kRows : kTokens, stays(groups), stays(across(groups)));
  }
  void look_at_weight(kernels::Stream& stream, const kernels::PackedWeight& packed, Fp8Groups groups,
                      const Matrix& offsets) {
    const int64_t parts = offsets ? offsets.cols - 1 : 1;
    const auto stays = [&](Fp8Groups as) {
      return unchanged(kernels::PlainWeight::of(&packed), [&](const Matrix& copy) {
        device_->run(stream,
                     kernels::QuantizeWeight{.w = copy, .groups = as, .parts = parts, .group = kGroup});
      });
    };
    note(groups == Fp8Groups::rows ? kForwardWeight : kBackwardWeight, stays(groups), stays(across(groups)));
  }
  void note(OperandKind kind, bool along, bool across) {
    SeenOperands& seen = seen_[kind];
    along ? ++seen.along : ++seen.not_along;
    seen.not_across += !across;
  }
  template <typename Round>
  bool unchanged(const Matrix& x, Round round) const {
    const size_t row = size_t(x.cols) * size_of(x.dtype);
    std::vector<char> bytes(row * size_t(x.rows));
    const Matrix copy = kernels::matrix(bytes.data(), x.dtype, x.rows, x.cols);
    for (int64_t r = 0; r < x.rows; ++r) std::memcpy(copy.row_range(r, 1).data, x.row_range(r, 1).data, row);
    round(copy);
    for (int64_t r = 0; r < x.rows; ++r)
      if (std::memcmp(copy.row_range(r, 1).data, x.row_range(r, 1).data, row) != 0) return false;
    return true;
  }

  static constexpr int64_t kGroup = 32;
  const std::unique_ptr<kernels::Backend> device_ = kernels::make_cpu_backend(1);
  AllOperands& seen_;
  const int64_t vocabulary_;
};

void narrow_latent(ModelSpec& m) {
  describe_latent(m);
  m.hidden_size = 96, m.num_layers = 1, m.ffn_size = 160;
  m.latent = {.kv_lora_rank = 64,
              .q_lora_rank = 32,
              .qk_nope_head_dim = 16,
              .qk_rope_head_dim = 16,
              .v_head_dim = 32};
}
void narrow_experts(ModelSpec& m) {
  describe_blocks_of_experts(m);
  m.num_layers = 1, m.moe.latent_size = 96;
}

}  // namespace

TEST_CASE("MXFP8: each operand has its scales along the sum of its product", "[fp8]") {
  std::array<int, kOperandKinds> not_across = {};
  for (const auto& [family, describe] : {std::pair{Family::llama, &describe_blocks},
                                         {Family::gpt2, &describe_blocks},
                                         {Family::llama, &narrow_latent},
                                         {Family::llama, &narrow_experts}})
    for (const DType compute : {DType::f32, DType::bf16}) {
      const TemporaryFolder dir;
      JobSpec job = tiny_job(family, dir.path());
      describe(job.model);
      job.compute = compute;
      job.fp8.recipe = Fp8Recipe::mxfp8;
      job.batch.micro_sequences = 4;
      CAPTURE(word_of(family), name_of(compute), job.model.hidden_size);
      AllOperands seen;
      run_on_threads(job, {.dir = dir / "run", .max_steps = 2, .make_backend = [&](int) {
                             return std::make_unique<OperandWatch>(seen, job.model.vocab_size);
                           }});
      for (const SeenOperands& of : seen) {
        CAPTURE(&of - seen.data());
        CHECK(of.not_along == 0);
        CHECK(of.along > 0);
        not_across[size_t(&of - seen.data())] += of.not_across;
      }
    }
  for (const int count : not_across) CHECK(count > 0);
}
