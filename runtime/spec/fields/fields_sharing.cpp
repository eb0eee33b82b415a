// Part of the field table: ranks that share each sequence, and ranks that share experts.
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {
namespace {

void declare_context(DeclareSection& parallel) {
  parallel
      .integer(
          "context",
          "Context parallel size: ranks that share each sequence, so that long ones fit. Each has its part "
          "of the tokens; keys and values are gathered for attention, and gradients and optimizer state are "
          "shared out over context and data-parallel ranks together. A divisor of `context_blocks`: every "
          "such width gives the same bits.")
      .to(IN_JOB(parallelism.context))
      .from(1)
      .upto(1024)
      .fallback(int64_t{1})
      .left_out_as_default()
      .also({"cp", "context_parallel", "context_parallel_size"})
      .example("2");
  parallel
      .integer("context_blocks",
               "Parts of each sequence whose gradients are added by a fixed tree: a power of two, which "
               "limits how many context ranks can share a sequence with the same bits. A sequence is "
               "2 * context_blocks chunks; block i has chunks i and 2 * context_blocks - 1 - i, so that all "
               "have equally much causal attention. A rank with several blocks holds a sum of gradients "
               "(f32) for each. Losses that balance experts then look at the tokens of a chunk.")
      .to(IN_JOB(parallelism.context_blocks))
      .from(1)
      .upto(1024)
      .fallback(int64_t{1})
      .fallback_text("parallelism.context")
      .left_out_as_default()
      .on_change(Change::branch)
      .example("4");
  parallel
      .choice("context_comm_type", words_of<parallel::ContextComm>(),
              "What context ranks exchange for attention; the same bits either way. `all_gather`: keys and "
              "values of all tokens. `a2a` (Ulysses): a rank's tokens for all tokens of some heads, so that "
              "ranks have equally much attention whatever documents a sample has; `context` divides "
              "num_kv_heads / tensor. `plan` counts the bytes of both.")
      .to(IN_JOB(parallelism.context_comm_type))
      .left_out_as_default()
      .also({"cp_comm_type", "context_parallel_comm_type"})
      .fallback(std::string("all_gather"));
}

void declare_experts(DeclareSection& parallel) {
  parallel
      .integer(
          "expert",
          "Expert parallel size: ranks of a data-parallel group (context ranks count) that share the experts "
          "of each layer; each token's rows travel to the ranks of its experts and back. On GPUs "
          "the host waits in each layer with experts for the numbers of rows. The same bits at every width.")
      .to(IN_JOB(parallelism.expert))
      .from(1)
      .upto(65536)
      .fallback(int64_t{1})
      .left_out_as_default()
      .also({"ep", "expert_parallel", "expert_parallel_size", "expert_model_parallel_size"})
      .example("4");
  parallel
      .integer(
          "expert_tensor",
          "How many tensor ranks cut each expert's matrices: all of them (0), or 1. With 1 experts are "
          "whole, and `expert` shares them out over tensor, context and data-parallel ranks together, so "
          "that "
          "it may be more than data * context; a multiple of `tensor`. Each tensor rank sends its part of "
          "the "
          "tokens. Products of experts are then wider, and rows cross the network once, not once for each "
          "tensor rank. The same bits at every `expert`, and others than with cut ones. Not with a capacity.")
      .to(IN_JOB(parallelism.expert_tensor))
      .on_change(Change::numerics)
      .bits_by(BitsBy::sum_order)
      .from(0)
      .upto(1024)
      .fallback(int64_t{0})
      .fallback_text("parallelism.tensor")
      .left_out_as_default()
      .also({"etp", "expert_tensor_parallel_size"})
      .example("1");
}

}  // namespace

void declare_sharing(DeclareSection& parallel) {
  declare_context(parallel);
  declare_experts(parallel);
}

}  // namespace trainctl::spec
