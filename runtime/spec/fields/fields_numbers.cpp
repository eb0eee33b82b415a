// Fields of number formats, and of what memory is saved.
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {

void declare_numbers(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection precision(table, sections, "precision", "Number formats.", Change::branch);
  precision
      .choice("compute", {"f32", "bf16"},
              "Format of activations and matrix products. Master weights, gradient sums and "
              "optimizer state are always float32. `fp32` is accepted for `f32`.")
      .to(IN_JOB(compute))
      .alias("fp32", "f32")
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
          "What stays in `compute` where `fp8` is on: layers (`first`, `last`), or products of all layers: "
          "`qkv` (all before the core of attention), `out` (behind it), `up` (with the gate) and `down` of "
          "MLPs and experts. The embedding, the head, routers, norms, the core of attention and what joins "
          "modules of multi-token prediction always stay.",
          words_of<Fp8Kept>())
      .to(IN_JOB(fp8.keep))
      .fallback(std::vector<std::string>{})
      .left_out_as_default()
      .example("[\"first\", \"last\"]");
  DeclareSection fp8(
      table, sections, "precision.fp8",
      "Products of layers in 8 bits. Master weights, gradients, sums and checkpoints stay as "
      "they are. Every device computes exactly these products, of operands that are rounded to "
      "8 bits and multiplied in `compute`: to see what they do to a run, no faster than without.",
      Change::branch);
  fp8.choice("recipe", words_of<Fp8Recipe>(),
             "`block`: as DeepSeek-V3: activations and gradients have a scale for each 128 neighbours along "
             "the sum of a product, weights one for each 128 x 128 block; sizes must be multiples of 128. "
             "`tensor`: one scale for each operand of a product, as a rank has it of a micro-batch. Scales "
             "are powers of two, from the values at hand; nothing is carried from step to step.")
      .to(IN_JOB(fp8.recipe))
      .fallback(std::string("none"))
      .left_out_as_default()
      .example("\"block\"");
  fp8.choice(
         "gradients", words_of<Fp8Gradients>(),
         "Format of gradients in products; activations and weights are in e4m3. `e5m2` has a larger range "
         "and one bit less.")
      .to(IN_JOB(fp8.gradients))
      .fallback(std::string("e4m3"))
      .left_out_as_default()
      .example("\"e5m2\"");
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
