// Pages of the codes of runtime/spec/check_fp8.cpp, of state in files, and of fields that another field
// makes void.
#include "runtime/spec/pages/codes.h"

namespace trainctl::spec {

const std::vector<CodePage>& number_pages() {
  static const std::vector<CodePage> pages = {
      {"E0322", "FP8 blocks do not fit",
       "With the recipe `block` 128 neighbours along the sum of a product have a scale, and weights one for "
       "128 x 128 of them; with `mxfp8` 32 neighbours have one, also in weights; with `nvfp4` 16, and 16 x "
       "16 of a "
       "weight. So each dimension of a "
       "product that stays FP8 is a multiple of 128, of 32, or of 16, on every rank, and a tensor rank's "
       "part "
       "begins with a block. Rows of tokens may have any number: their last group "
       "is shorter.",
       R"("fp8": {"recipe": "block"} with "hidden_size": 192)",
       R"(Use a hidden_size of 128 or 256, or the recipe "mxfp8" or "tensor".)"},
      {"E0323", "f16 is for ranks on CPUs",
       "The kernels of GPUs compute in f32 and bf16. bf16 has the range of f32 and needs no loss scale.",
       R"("precision": {"compute": "f16"} with "device": "auto")",
       R"(Use bf16 on GPUs, or write "device": "cpu".)"},
      {"E0324", "FP8 and f16 do not go together",
       "Products in FP8 multiply values times their scales, which are any powers of two: exact in bf16 and "
       "f32, not in f16, whose largest number is 65504.",
       R"("compute": "f16" with "fp8": {"recipe": "block"})", R"(Use "compute": "bf16".)"},
      {"E0325", "A loss scale that does not fit",
       "A power of two changes no bit of a gradient, so the loss scale, its beginning and its floor are "
       "such, and the floor is not above the beginning.",
       R"("loss_scale": {"initial": 1000})", R"(Use 512 or 1024.)"},
      {"E0326", "State that cannot be elsewhere",
       "With `optimizer.offload` = \"disk\" the optimizer's state of ranks on CPUs is in a file of each "
       "rank, in a folder that every node has at the same absolute path; with \"host\" that of ranks on GPUs "
       "is in the memory of their host. Updates see one part after another, so "
       "their rule must look at one element at a time: adamw, lion and sgd do.",
       R"("optimizer": {"type": "muon", "offload": "disk"})",
       R"(Write "type": "adamw", or "offload": "none".)"},
      {"E0327", "Master weights are needed",
       "With `optimizer.master_weights` = \"none\" an update reads weights in bf16 and rounds what it writes "
       "at random. That exists for `precision.compute` = \"bf16\", for adamw, lion and sgd, without "
       "FP8 products, and for ranks on CPUs.",
       R"("optimizer": {"type": "muon", "master_weights": "none"})",
       R"(Write "type": "adamw", or "master_weights": "f32".)"},
      {"E0328", "NVFP4 is for ranks on CPUs",
       "The kernels of GPUs do not round to 4 bits; `nvfp4` exists to study what it does to a run.",
       R"("fp8": {"recipe": "nvfp4"} with "device": "auto")",
       R"(Use the recipe "mxfp8" or "block" on GPUs, or write "device": "cpu".)"},
      {"W0245", "A field that nothing reads",
       "`optimizer.momentum` is of muon and sgd, `optimizer.muon` of muon alone: other optimizers do not "
       "read them. `precision.keep` and `precision.fp8.gradients` are of a recipe of FP8 (the latter not of "
       "`nvfp4`, which has one format), and "
       "`precision.loss_scale` is of f16. `optimizer.offload_directory` is of an offload to disk.",
       R"("optimizer": {"type": "adamw", "momentum": 0.9})", R"(Remove the field, or write "type": "sgd".)"},
  };
  return pages;
}

}  // namespace trainctl::spec
