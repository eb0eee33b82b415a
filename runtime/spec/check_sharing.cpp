// Checks of ranks that share sequences, and of those that share experts, cut or whole.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "runtime/base/text.h"
#include "runtime/spec/resolution.h"

namespace trainctl::spec {
namespace {

void check_heads_of_context(Resolution& r) {
  const ParallelSpec& p = r.job.parallelism;
  if (!r.sound({"parallelism.context_comm_type", "parallelism.context", "parallelism.tensor",
                "model.num_kv_heads"}) ||
      !p.exchanges_heads())
    return;
  const int64_t heads = std::max<int64_t>(1, r.job.model.num_kv_heads / p.tensor);
  if (has_whole_heads(r.job.model.num_kv_heads, p.tensor, p.context)) return;
  const int64_t widest = heads & -heads;  // a power of two
  r.report(
      "E0319", "context ranks that exchange heads have whole KV heads each",
      {"parallelism.context_comm_type", "parallelism.context", "parallelism.tensor", "model.num_kv_heads"},
      {widest > 1 ? fmt::format("use context_comm_type = \"all_gather\", or context = {}", widest)
                  : std::string("use context_comm_type = \"all_gather\"")},
      fmt::format("{} of a tensor rank on {} context ranks", count_of(heads, "KV head"), p.context));
}

void check_context(Resolution& r) {
  const ParallelSpec& p = r.job.parallelism;
  if (!r.sound({"parallelism.context", "parallelism.context_blocks"}) || p.context_blocks == 1) {
    if (p.context > 1 && r.sound({"parallelism.context", "parallelism.context_blocks"}))
      r.report("E0319", "a sequence of one block cannot be shared by several ranks",
               {"parallelism.context", "parallelism.context_blocks"},
               {fmt::format("use context_blocks = {} in a new run", p.context)});
    return;
  }
  const std::vector<std::string> fields = {"parallelism.context", "parallelism.context_blocks"};
  if (!std::has_single_bit(uint64_t(p.context_blocks)) && p.context_blocks == p.context &&
      !r.given("parallelism.context_blocks")) {
    const int below = int(std::bit_floor(unsigned(p.context)));
    r.report("E0319", "the context parallel size must be a power of two", {"parallelism.context"},
             {fmt::format("use {} or {}", below, 2 * below)});
    return;
  }
  if (!std::has_single_bit(uint64_t(p.context_blocks))) {
    r.report("E0319", "the number of context blocks must be a power of two", {"parallelism.context_blocks"},
             {fmt::format("use {} or {}", int64_t(std::bit_floor(uint64_t(p.context_blocks))),
                          2 * int64_t(std::bit_floor(uint64_t(p.context_blocks))))});
    return;
  }
  if (p.context_blocks % p.context != 0)
    r.report("E0319", "the context parallel size must divide the number of context blocks",
             {"parallelism.context", "parallelism.context_blocks"},
             {fmt::format("use context = {}",
                          std::min(int64_t(std::bit_floor(unsigned(p.context))), p.context_blocks))},
             fmt::format("{} blocks on {} ranks", p.context_blocks, p.context));
  if (r.sound({"data.seq_len", "batch.micro_sequences"}) &&
      double(r.job.data.seq_len) * double(r.job.batch.micro_sequences) >= 2147483648.0)
    r.report("E0319", "a micro-batch whose sequences are cut has fewer than 2^31 tokens",
             {"batch.micro_sequences", "data.seq_len"}, {"use smaller micro-batches"});
  if (r.sound({"data.seq_len"}) && r.job.data.seq_len % (2 * p.context_blocks) != 0)
    r.report("E0319",
             fmt::format("sequences of {} tokens cannot be cut into 2 * context_blocks = {} chunks",
                         r.job.data.seq_len, 2 * p.context_blocks),
             {"data.seq_len", "parallelism.context_blocks"},
             {fmt::format("use a seq_len that is a multiple of {}", 2 * p.context_blocks)});
  if (p.blocks_of_rank() > 1 && p.tensor > 1 && p.sequence_parallel &&
      r.sound({"parallelism.tensor", "parallelism.sequence_parallel"}))
    r.report("E0319",
             "tensor ranks that cut the rows of a micro-batch cannot have several context blocks of it",
             {"parallelism.context", "parallelism.context_blocks", "parallelism.tensor",
              "parallelism.sequence_parallel"},
             {fmt::format("use context = {}, or sequence_parallel = false", p.context_blocks)});
}

/// Whole experts: shared out over tensor ranks, too, each of which sends equally many tokens.
void check_whole_experts(Resolution& r) {
  const ParallelSpec& p = r.job.parallelism;
  if (!r.sound({"parallelism.expert_tensor", "parallelism.tensor"}) || p.expert_tensor == 0 ||
      p.expert_tensor == p.tensor)
    return;
  const auto refuse = [&](std::string what, std::vector<std::string> fields, std::string legal) {
    fields.insert(fields.begin(), "parallelism.expert_tensor");
    r.report("E0321", std::move(what), std::move(fields), {std::move(legal)});
  };
  if (p.expert_tensor != 1)
    return refuse(
        fmt::format("experts are cut over all tensor ranks, {}, or over none", p.tensor),
        {"parallelism.tensor"},
        p.tensor == 1 ? "use expert_tensor = 1" : fmt::format("use expert_tensor = 1 or {}", p.tensor));
  const std::string cut = fmt::format("expert_tensor = {}", p.tensor);
  if (!r.sound({"model.moe.num_experts", "parallelism.expert"})) return;
  const int64_t experts = r.job.model.moe.num_experts;
  if (experts == 0)
    return refuse("the model has no experts to be kept whole", {"model.moe.num_experts"}, "leave it out");
  if (p.expert % p.tensor != 0)
    return refuse(fmt::format("whole experts are shared out over whole tensor groups of {}, not over {}",
                              count_of(p.tensor, "rank"), count_of(p.expert, "rank")),
                  {"parallelism.expert", "parallelism.tensor"},
                  experts % p.tensor == 0
                      ? fmt::format("use an expert that is a multiple of {}, or {}", p.tensor, cut)
                      : "use " + cut);
  if (!r.sound({"batch.micro_sequences", "data.seq_len", "parallelism.context_blocks"})) return;
  const int64_t tokens = r.job.batch.micro_sequences * r.job.data.seq_len / p.context_blocks;
  if (tokens % p.tensor != 0)
    return refuse(
        fmt::format("{} tokens of a context block cannot be sent in equal parts by {} tensor ranks", tokens,
                    p.tensor),
        {"data.seq_len", "batch.micro_sequences", "parallelism.tensor"},
        fmt::format("use a seq_len that is a multiple of {}, or {}", p.tensor * p.context_blocks, cut));
  if (r.sound("model.moe.capacity_factor") && r.job.model.moe.capacity_factor > 0)
    refuse(
        "a capacity is of the tokens that a rank sends, so that whole experts would drop others at each "
        "tensor width",
        {"model.moe.capacity_factor"}, "use capacity_factor = 0, or " + cut);
}

void check_expert_ranks(Resolution& r) {
  const ParallelSpec& p = r.job.parallelism;
  if (!r.sound({"parallelism.expert", "parallelism.expert_tensor"}) || p.expert == 1) return;
  const int64_t experts = r.job.model.moe.num_experts;
  if (r.sound("model.moe.num_experts") && (experts == 0 || experts % p.expert != 0)) {
    r.report("E0320",
             experts == 0 ? std::string("the model has no experts to share")
                          : fmt::format("{} experts cannot be shared evenly by {} ranks", experts, p.expert),
             {"parallelism.expert", "model.moe.num_experts"},
             {experts == 0 ? "use expert = 1" : fmt::format("use a divisor of {}", experts)});
    return;
  }
  const int ranks = p.ranks_of_experts();
  if (r.sound({"parallelism.data", "parallelism.context", "parallelism.tensor"}) && ranks % p.expert != 0)
    r.report(
        "E0320",
        fmt::format("the experts are shared by ranks of a data-parallel group{}, and {} ranks are not cut "
                    "into groups of {}",
                    p.token_parts() > 1 ? " and their tensor ranks" : "", ranks, p.expert),
        {"parallelism.expert", "parallelism.data", "parallelism.context"},
        {fmt::format("use a divisor of data * context{} = {}", p.token_parts() > 1 ? " * tensor" : "",
                     ranks)});
  if (r.sound({"parallelism.lanes", "parallelism.data"}) && p.expert_lanes() > 1 && p.data <= p.lanes &&
      p.lanes % p.data != 0)
    r.report(
        "E0320",
        "ranks that share experts compute equally many micro-batches: the data parallel size must divide the "
        "number of lanes",
        {"parallelism.expert", "parallelism.data", "parallelism.lanes"},
        {fmt::format("use data = {}", std::bit_floor(unsigned(p.data)))});
}

}  // namespace

void check_sharing(Resolution& r) {
  check_context(r);
  check_heads_of_context(r);
  check_whole_experts(r);
  check_expert_ranks(r);
}

}  // namespace trainctl::spec
