// Fields of number formats, and of what memory is saved.
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {
namespace {

void declare_loss_scale(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection scale(
      table, sections, "precision.loss_scale",
      "With `compute` f16: the factor of the loss in its gradients, so that small ones are not lost below "
      "the least f16. A step whose gradients overflow is skipped and halves it; steps without an overflow "
      "double it. Gradients are divided by it before they are used, so that updates do not depend on it. "
      "It is in metrics and in every checkpoint, and is the same on every mesh. Powers of two.",
      Change::numerics);
  scale
      .integer(
          "initial",
          "The factor of the first step. The loss is a mean over the tokens of a step: one of millions of "
          "tokens may begin with more. A resume or a branch within f16 goes on with the checkpoint's factor, "
          "whatever is written here.")
      .to(IN_JOB(loss_scale.initial))
      .from(1)
      .upto(double(LossScaleSpec::kLargest))
      .fallback(int64_t{65536})
      .left_out_as_default()
      .also({"init_scale", "initial_loss_scale"})
      .example("1048576");
  scale.integer("growth_interval", "It doubles after so many steps without an overflow; 0: never.")
      .to(IN_JOB(loss_scale.growth_interval))
      .from(0)
      .upto(1 << 30)
      .unit(Unit::steps)
      .fallback(int64_t{2000})
      .left_out_as_default()
      .also({"loss_scale_window"})
      .example("1000");
  scale
      .integer("minimum",
               "Its floor. There an overflow is a bad step as in other formats "
               "(`fault_tolerance.skip_bad_steps`). As large as `initial`, with a growth_interval of 0: the "
               "factor is fixed.")
      .to(IN_JOB(loss_scale.minimum))
      .from(1)
      .upto(double(LossScaleSpec::kLargest))
      .fallback(int64_t{1})
      .left_out_as_default()
      .also({"min_loss_scale", "min_scale"})
      .example("1");
}

void declare_fp8(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection fp8(
      table, sections, "precision.fp8",
      "Products of layers in 8 bits, or in 4. Master weights, gradients, sums and checkpoints stay as "
      "they are. Every device computes exactly these products, of operands that are rounded to "
      "so few bits and multiplied in `compute`: to see what they do to a run, no faster than without.",
      Change::branch);
  fp8.choice(
         "recipe", words_of<Fp8Recipe>(),
         "`block`: as DeepSeek-V3: activations and gradients have a scale for each 128 neighbours along "
         "the sum of a product, weights one for each 128 x 128 block; sizes must be multiples of 128. "
         "`mxfp8`: the format of Blackwell's tensor cores and of the OCP Microscaling specification: "
         "all operands, weights too, have a scale for each 32 neighbours along the sum of a product; "
         "sizes must be multiples of 32. A weight is rounded anew for each product, along its columns or "
         "its rows. `tensor`: one scale for each operand of a product, as a rank has it of a micro-batch. "
         "Scales are powers of two, from the values at hand; nothing is carried from step to step. "
         "`nvfp4`: Blackwell's format of 4 bits (E2M1), for study on CPUs: 16 neighbours along the sum of a "
         "product, and 16 x 16 of a weight, have a scale in E4M3, and each operand has a power of two; sizes "
         "must "
         "be multiples of 16. Gradients are rounded at random with the right mean, and before the product "
         "that "
         "makes a weight's gradient each 16 tokens of both operands are mixed by a Hadamard matrix with "
         "random "
         "signs. The random numbers depend on `seed`, step, micro-batch and place, not on the mesh. The "
         "published recipe also keeps the last layers: `precision.keep` = [\"tail\"].")
      .to(IN_JOB(fp8.recipe))
      .fallback(std::string("none"))
      .left_out_as_default()
      .example("\"block\"");
  fp8.choice(
         "gradients", words_of<Fp8Gradients>(),
         "Format of gradients in products; activations and weights are in e4m3. `e5m2` has a larger range "
         "and one bit less. `nvfp4` has one format for all.")
      .to(IN_JOB(fp8.gradients))
      .fallback(std::string("e4m3"))
      .left_out_as_default()
      .example("\"e5m2\"");
}

}  // namespace

void declare_numbers(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection precision(table, sections, "precision", "Number formats.", Change::branch);
  precision
      .choice(
          "compute", {"f32", "bf16", "f16"},
          "Format of activations and matrix products. Gradient sums are float32, and so are weights and "
          "moments between updates (but see `optimizer`). `f16` has `precision.loss_scale` and is for ranks "
          "on CPUs. `fp32` is accepted for `f32`, `fp16` for `f16`.")
      .to(IN_JOB(compute))
      .alias("fp32", "f32")
      .alias("fp16", "f16")
      .fallback(std::string("f32"))
      .also({"dtype", "precision"});
  precision
      .boolean("tf32",
               "On a GPU, compute f32 matrix products in TF32 on the tensor cores: faster, inputs rounded "
               "to 10 bits of mantissa. It has no effect on bf16 products.")
      .to(IN_JOB(tf32))
      .fallback(false)
      .also({"allow_tf32"});
  precision
      .field(
          Type::text_list, "keep",
          "What stays in `compute` where `fp8` is on: layers (`first`, `last`, `tail`: the last 15 % of "
          "them, one "
          "at least), or products of all layers: "
          "`qkv` (all before the core of attention), `out` (behind it), `up` (with the gate) and `down` of "
          "MLPs and experts. The embedding, the head, routers, norms, the core of attention and what joins "
          "modules of multi-token prediction always stay.",
          words_of<Fp8Kept>())
      .to(IN_JOB(fp8.keep))
      .fallback(std::vector<std::string>{})
      .left_out_as_default()
      .example("[\"first\", \"last\"]");
  declare_loss_scale(table, sections);
  declare_fp8(table, sections);
  DeclareSection memory(table, sections, "memory", "What memory is saved, at what price.", Change::free);
  memory
      .choice("activation_recompute", {"none", "selective", "full"},
              "`selective`: recompute the outputs of norms and of SwiGLU during backward; hardly more "
              "work, up to a third less memory. `full`: keep only each layer's input and recompute the "
              "layer; a third more work, far less memory. A number N: `full` for the first N layers of "
              "each virtual stage, `none` for the others; `plan` offers the least N that fits. All give "
              "the same bits.")
      .from(0)
      .upto(10000)
      .to_word_or_count(IN_JOB(recompute), Recompute::first_layers, IN_JOB(recompute_layers))
      .fallback(std::string("none"))
      .also({"activation_checkpointing", "recompute", "gradient_checkpointing"});
}

}  // namespace trainctl::spec
