// Goal: every mistake in a spec gets the right code, sentence and place, and no mistake hides another.
// Method: a table of broken specs, each a valid job plus overrides or a text of its own, with the exact
// diagnostics.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <set>

#include "runtime/spec/pages/codes.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

const char* kValid = R"({
  "version": 1,
  "model": {"preset": "llama-tiny"},
  "data": {"train": [{"path": "a.idx"}], "val": [{"path": "v.idx"}]},
  "batch": {"global_sequences": 16, "micro_sequences": 2},
  "parallelism": {"world_size": 8, "tensor": 2, "pipeline": 2, "data": 2},
  "schedule": {"total_steps": 100, "lr": 3e-3, "warmup_steps": 10},
  "eval": {"every_steps": 10}
})";

struct Broken {
  std::vector<std::string> overrides;
  std::vector<std::string> expected;  ///< "CODE message"
};

std::vector<std::string> found_in(const ParsedJob& parsed) {
  std::vector<std::string> found;
  for (const Diagnostic& d : parsed.diagnostics) found.push_back(d.code + " " + d.message);
  return found;
}

// clang-format off
const std::vector<Broken> kOverrides = {
    {{"parallelism.tensor=3"}, {"E0301 tensor * pipeline * data = 3 * 2 * 2 = 12, but world_size is 8",
      "E0310 tensor parallel size must divide the number of attention heads",
      "E0312 tensor parallel size must divide the KV heads, or be a multiple of them that divides their channels",
      "E0313 with sequence_parallel the tensor parallel size must divide the 64 rows of a micro-batch"}},
    {{"parallelism.tensor=two"}, {"E0201 `parallelism.tensor` must be a whole number, not \"two\""}},
    {{"parallelism.tensor=0"}, {"E0202 `parallelism.tensor` = 0 is out of range"}},
    {{"parallelism.tensor=1.5"}, {"E0206 `parallelism.tensor` must be a whole number, not 1.5"}},
    {{"parallelism.tensr=2"}, {"E0101 unknown field `tensr`"}},
    {{"parallelism.data=auto", "parallelism.tensor=3"}, {"E0302 8 ranks cannot be cut into groups of tensor * pipeline = 6",
      "E0310 tensor parallel size must divide the number of attention heads",
      "E0312 tensor parallel size must divide the KV heads, or be a multiple of them that divides their channels",
      "E0313 with sequence_parallel the tensor parallel size must divide the 64 rows of a micro-batch"}},
    {{"data.packing=best_fit"}, {}},
    {{"data.packing=best_fit", "data.documents=ignore"}, {"E0238 packed documents are kept apart"}},
    {{"data.packing=best_fit", "data.count_boundary_targets=true"},
     {"E0238 packed documents do not follow each other in a text"}},
    {{"parallelism.data=3", "parallelism.world_size=12"}, {}},
    {{"parallelism.context=2", "device=cpu"},
     {"E0301 tensor * context * pipeline * data = 2 * 2 * 2 * 2 = 16, but world_size is 8"}},
    {{"parallelism.context=2", "parallelism.data=auto", "parallelism.world_size=12", "device=cpu"},
     {"E0302 12 ranks cannot be cut into groups of tensor * context * pipeline = 8"}},
    {{"parallelism.context=2", "parallelism.world_size=16", "device=cpu"}, {}},
    {{"parallelism.context=2", "parallelism.context_blocks=4", "parallelism.world_size=16", "device=cpu",
      "parallelism.sequence_parallel=false"}, {}},
    {{"parallelism.context=0"}, {"E0202 `parallelism.context` = 0 is out of range"}},
    {{"parallelism.context=3", "parallelism.world_size=24", "device=cpu", "parallelism.sequence_parallel=false"},
     {"E0319 the context parallel size must be a power of two"}},
    {{"parallelism.context_blocks=6", "device=cpu"}, {"E0319 the number of context blocks must be a power of two"}},
    {{"parallelism.context=4", "parallelism.context_blocks=2", "parallelism.world_size=32", "device=cpu"},
     {"E0319 the context parallel size must divide the number of context blocks"}},
    {{"parallelism.context=2", "parallelism.context_blocks=1", "parallelism.world_size=16"},
     {"E0319 a sequence of one block cannot be shared by several ranks"}},
    {{"parallelism.context=4", "parallelism.world_size=32", "device=cpu", "data.seq_len=12"},
     {"E0319 sequences of 12 tokens cannot be cut into 2 * context_blocks = 8 chunks"}},
    {{"parallelism.context=2", "parallelism.context_comm_type=ring", "parallelism.world_size=16"},
     {"E0203 `parallelism.context_comm_type` cannot be \"ring\""}},
    {{"parallelism.context=2", "parallelism.context_comm_type=a2a", "parallelism.tensor=1"}, {}},
    {{"parallelism.context=2", "parallelism.context_comm_type=a2a", "parallelism.world_size=16"},
     {"E0319 context ranks that exchange heads have whole KV heads each"}},
    {{"parallelism.context=2", "parallelism.world_size=16"}, {}},
    {{"parallelism.context_blocks=2", "device=cuda", "parallelism.sequence_parallel=false"}, {}},
    {{"parallelism.context_blocks=2", "device=cpu"},
     {"E0319 tensor ranks that cut the rows of a micro-batch cannot have several context blocks of it"}},
    {{"parallelism.context=2", "parallelism.data=3", "parallelism.world_size=24", "device=cpu"},
     {"E0315 with context blocks the data parallel size must divide the number of lanes"}},
    {{"parallelism.context=16", "parallelism.world_size=128", "device=cpu", "data.seq_len=32",
      "batch.micro_sequences=1", "parallelism.tensor=4", "parallelism.data=1", "model.num_kv_heads=4"},
     {"E0313 with sequence_parallel the tensor parallel size must divide the 2 rows of a micro-batch"}},
    {{"parallelism.data=3", "parallelism.world_size=12", "parallelism.lanes=2"},
     {"E0305 there are more data parallel ranks than lanes"}},
    {{"parallelism.data=3", "parallelism.world_size=12", "parallelism.zero_stage=2"}, {}},
    {{"parallelism.data=3", "parallelism.world_size=12", "parallelism.zero_stage=2", "parallelism.reduction=fast"},
     {"E0315 with ZeRO-2 and fast sums the data parallel size must divide the number of lanes"}},
    {{"parallelism.expert=2"}, {"E0320 the model has no experts to share"}},
    {{"parallelism.expert_tensor=1"}, {"E0321 the model has no experts to be kept whole"}},
    {{"precision.fp8.recipe=blocks"}, {"E0203 `precision.fp8.recipe` cannot be \"blocks\""}},
    {{"precision.keep=[\"middle\"]"}, {"E0203 `precision.keep` cannot be \"middle\""}},
    {{"precision.keep=[\"first\"]"}, {"W0245 `precision.keep` has no effect here"}},
    {{"precision.fp8.gradients=e5m2"}, {"W0245 `precision.fp8.gradients` has no effect here"}},
    {{"precision.fp8.recipe=block", "model.hidden_size=192", "model.head_dim=64", "model.num_kv_heads=4",
      "model.ffn_size=384"},
     {"E0322 FP8 blocks of 128 do not fit the 192 channels of model.hidden_size = 192",
      "E0322 FP8 blocks of 128 do not fit the 192 channels that each of 2 tensor ranks has of model.ffn_size = 384"}},
    {{"precision.fp8.recipe=block", "model.hidden_size=256", "model.head_dim=64", "model.ffn_size=512"},
     {"E0322 FP8 blocks of 128 do not fit the 64 channels that each of 2 tensor ranks has of model.num_kv_heads = 2"}},
    {{"precision.fp8.recipe=block", "model.hidden_size=256", "model.head_dim=64", "model.ffn_size=500",
      "precision.keep=[\"qkv\", \"up\", \"down\"]"}, {}},
    {{"precision.fp8.recipe=block", "model.hidden_size=256", "model.num_kv_heads=4", "model.ffn_size=512"}, {}},
    {{"parallelism.reduction_algorithm=halving"}, {}},
    {{"parallelism.data=3", "parallelism.world_size=12", "parallelism.reduction_algorithm=halving"},
     {"E0316 recursive halving needs a power of two of data parallel ranks"}},
    {{"parallelism.data=3", "parallelism.world_size=12", "parallelism.reduction_algorithm=direct"}, {}},
    {{"parallelism.reduction_algorithm=ring"},
     {"E0203 `parallelism.reduction_algorithm` cannot be \"ring\""}},
    {{"parallelism.reduction_dtype=fp16"}, {"E0203 `parallelism.reduction_dtype` cannot be \"fp16\""}},
    {{"parallelism.reduction_dtype=bf16"}, {}},
    {{"parallelism.reshard_after_forward=false"},
     {"E0317 with ZeRO-1 a rank has all its weights at all times: none are gathered for a pass, and none can "
      "stay after it"}},
    {{"parallelism.reshard_after_forward=false", "parallelism.zero_stage=3"}, {}},
    {{"parallelism.reshard_after_forward=2"},
     {"E0201 `parallelism.reshard_after_forward` must be true or false, not 2"}},
    {{"parallelism.bucket_mib=0.01"},
     {"E0318 a bucket of 0.01 MiB cannot hold a chunk of the largest matrix, 0.0625 MiB"}},
    {{"parallelism.bucket_mib=0.01", "checkpoint.chunk_mib=0.01"}, {}},
    {{"parallelism.bucket_mib=0"}, {"E0202 `parallelism.bucket_mib` = 0 is out of range"}},
    {{"parallelism.lanes=6"}, {"E0306 the number of lanes must be a power of two"}},
    {{"parallelism.lanes=1"}, {"E0305 there are more data parallel ranks than lanes"}},
    {{"parallelism.pipeline=8", "parallelism.world_size=32"}, {"E0303 4 layers cannot fill 8 virtual stages"}},
    {{"parallelism.pipeline=6", "parallelism.world_size=24"}, {}},   // the ends need no layer
    {{"parallelism.stage_layers=[4]"}, {"E0308 stage_layers has 1 entry for 2 virtual stages"}},
    {{"parallelism.stage_layers=1,1,2"}, {"E0308 stage_layers has 3 entries for 2 virtual stages"}},
    {{"parallelism.stage_layers=[]"}, {"E0308 stage_layers has 0 entries for 2 virtual stages"}},
    {{"parallelism.stage_layers=[2,1]"},
     {"E0308 the entries of stage_layers add up to 3, not to the model's 4 layers"}},
    {{"parallelism.stage_layers=[2,2,0,0]", "parallelism.pipeline=4", "parallelism.world_size=16"},
     {"E0308 virtual stage 2 has no layer, and so nothing to compute"}},
    {{"parallelism.stage_layers=[0,3,1,0]", "parallelism.pipeline=4", "parallelism.world_size=16"}, {}},
    {{"parallelism.stage_layers=[0,4]"}, {}},
    {{"parallelism.stage_layers=auto"}, {}},
    {{"parallelism.stage_layers=[5,-1]"}, {"E0202 `parallelism.stage_layers` = -1 is out of range"}},
    {{"parallelism.stage_layers=[2,1.5]"},
     {"E0206 `parallelism.stage_layers` must be a whole number, not 1.5"}},
    {{"parallelism.stage_layers=even"},
     {"E0201 `parallelism.stage_layers` must be a list of whole numbers, not \"even\""}},
    {{"parallelism.stage_layers=[2,\"2\"]"},
     {"E0201 `parallelism.stage_layers` must be a list of whole numbers, not a list with 2 entries"}},
    {{"parallelism.stage_layers=4"}, {"E0308 stage_layers has 1 entry for 2 virtual stages"}},
    {{"memory.activation_recompute=4"}, {}},
    {{"memory.activation_recompute=5"}, {"E0309 5 layers cannot be computed again: the model has 4"}},
    {{"memory.activation_recompute=-1"}, {"E0202 `memory.activation_recompute` = -1 is out of range"}},
    {{"memory.activation_recompute=1.5"},
     {"E0206 `memory.activation_recompute` must be a whole number, not 1.5"}},
    {{"memory.activation_recompute=half"}, {"E0203 `memory.activation_recompute` cannot be \"half\""}},
    {{"memory.activation_recompute=[1]"}, {"E0203 `memory.activation_recompute` cannot be \"[1]\""}},
    {{"parallelism.virtual_stages=2"}, {"E0304 the pipeline cannot be scheduled: virtual_stages = 2 does not suit the schedule 1f1b, which has 1; use 1, or the schedule interleaved"}},
    {{"parallelism.pipeline_schedule=zb-v", "parallelism.virtual_stages=2"}, {}},
    {{"parallelism.pipeline_schedule=dualpipev", "parallelism.virtual_stages=2"}, {}},
    {{"parallelism.pipeline_schedule=dualpipev", "parallelism.virtual_stages=2", "batch.global_sequences=8"}, {"E0304 the pipeline cannot be scheduled: micro_batches = 2 is fewer than 2 * stages = 4, which the schedule dualpipev needs; use at least 4"}},
    {{"parallelism.pipeline_schedule=zb-v", "parallelism.pipeline=1", "parallelism.world_size=4"}, {"E0304 virtual stages need a pipeline of at least two stages"}},
    {{"parallelism.pipeline_schedule=zb-v"}, {"E0304 the pipeline cannot be scheduled: virtual_stages = 1 does not suit the schedule zb-v, which has 2; use 2"}},
    {{"parallelism.pipeline_schedule=merged-1f1b", "parallelism.virtual_stages=2"}, {}},
    {{"parallelism.pipeline_schedule=interleaved"}, {"E0304 the interleaved schedule needs at least two virtual stages: with one it would be 1f1b"}},
    {{"parallelism.pipeline_schedule=interleaved", "parallelism.virtual_stages=2"}, {}},
    {{"model.hidden_size=1048576", "model.num_layers=10000", "model.ffn_size=4194304"},
     {"E0401 too large to plan: a model of about 1.6e+17 parameters makes 7.9e+10 chunks; at most 4194304 can be planned"}},
    {{"checkpoint.chunk_mib=1e-6", "model.num_layers=1000", "model.hidden_size=4096"},
     {"E0401 too large to plan: a model of about 5.3e+10 parameters makes 5.3e+10 chunks; at most 4194304 can be planned"}},
    {{"batch.micro_sequences=1048576", "batch.global_sequences=1073741824", "model.hidden_size=16384", "model.num_layers=100"},
     {"E0401 too large to plan: the activations of a step could take 3.6e+18 bytes"}},
    {{"parallelism.pipeline_schedule=1b1f"}, {"E0203 `parallelism.pipeline_schedule` cannot be \"1b1f\""}},
    {{"parallelism.sequence_parallel=yes"}, {"E0201 `parallelism.sequence_parallel` must be true or false, not \"yes\""}},
    {{"parallelism.reduction=nccl"}, {"E0203 `parallelism.reduction` cannot be \"nccl\""}},
    {{"parallelism.zero_stage=4"}, {"E0202 `parallelism.zero_stage` = 4 is out of range"}},
    {{"batch.global_sequences=15"}, {"E0307 15 sequences cannot be cut into 2 lanes of micro-batches of 2"}},
    {{"batch.global_tokens=500"}, {
     "W0101 batch.global_tokens takes the place of batch.global_sequences, which is given, too",
     "E0236 a step must hold whole sequences: batch.global_tokens is not a multiple of data.seq_len"}},
    {{"batch.global_tokens=2M", "batch.micro_sequences=3"}, {
     "W0101 batch.global_tokens takes the place of batch.global_sequences, which is given, too",
     "E0307 62500 sequences cannot be cut into 2 lanes of micro-batches of 3"}},
    {{"batch.micro_sequences=-1"}, {"E0202 `batch.micro_sequences` = -1 is out of range"}},
    {{"batch.global_tokens=10m"}, {
     "W0101 batch.global_tokens takes the place of batch.global_sequences, which is given, too",
     "E0205 `batch.global_tokens` is not a quantity: \"10m\" has an unknown unit; use k, K, M, B, G, T, Ki, Mi, Gi"}},
    {{"model.preset=llama3-8"}, {"E0209 there is no preset `llama3-8`"}},
    {{"model.family=gpt2"}, {"E0210 preset llama-tiny is not of this family"}},
    {{"model.norm=layernorm", "model.layer.norm=rmsnorm"}, {"E0210 `model.layer.norm` and its old name `model.norm` say different things"}},
    {{"model.position.type=learned", "model.position.interleaved=true"}, {"E0210 `model.position.interleaved` does not fit positions that are not rotary"}},
    {{"model.layer.window=8", "model.layers=[\"full\"]"}, {"E0224 `model.layer.window` has no effect here"}},
    {{"model.layer.activation_limit=3"}, {"E0224 `model.layer.activation_limit` has no effect here"}},
    {{"eval.tasks_every_steps=2"}, {"E0224 `eval.tasks_every_steps` has no effect here"}},
    {{"model.layer.norm_bias=true"}, {"E0224 `model.layer.norm_bias` has no effect here"}},
    {{"model.position.scaling.factor=2"}, {"E0224 `model.position.scaling.factor` has no effect here"}},
    {{"model.position.scaling.type=linear", "model.position.scaling.truncate=false"}, {"E0224 `model.position.scaling.truncate` has no effect here"}},
    {{"model.position.window_theta=100"}, {"E0224 `model.position.window_theta` has no effect here"}},
    {{"model.position.scaling.mscale=1"}, {"E0224 `model.position.scaling.mscale` has no effect here"}},
    {{"model.mtp.loss_weight=1"}, {"E0224 `model.mtp.loss_weight` has no effect here"}},
    {{"model.mtp.num_layers=1", "model.mtp.later_loss_weight=1"}, {"E0224 `model.mtp.later_loss_weight` has no effect here"}},
    {{"model.mtp.num_layers=1", "model.mtp.loss_weight=0.1", "model.mtp.later_from_step=8"}, {}},
    {{"model.mtp.num_layers=5"}, {"E0202 `model.mtp.num_layers` = 5 is out of range"}},
    {{"model.mtp.num_layers=4", "data.seq_len=4"}, {"E0257 sequences of 4 tokens have no target 5 places ahead"}},
    {{"model.latent.v_head_dim=8"}, {"E0224 `model.latent.v_head_dim` has no effect here"}},
    {{"model.num_kv_heads=4", "model.latent.kv_lora_rank=8", "model.latent.qk_nope_head_dim=8", "model.latent.qk_rope_head_dim=4",
      "model.latent.v_head_dim=8"}, {}},
    {{"model.num_kv_heads=4", "model.latent.kv_lora_rank=8", "model.latent.qk_nope_head_dim=8", "model.latent.qk_rope_head_dim=4"},
     {"E0228 values of 0 channels do not fit keys of 8 + 4"}},
    {{"model.num_kv_heads=4", "model.latent.kv_lora_rank=8", "model.latent.qk_nope_head_dim=8", "model.latent.qk_rope_head_dim=3",
      "model.latent.v_head_dim=12"},
     {"E0228 3 channels of a key cannot turn in pairs", "E0228 values of 12 channels do not fit keys of 8 + 3"}},
    {{"model.num_kv_heads=2", "model.latent.kv_lora_rank=8", "model.latent.qk_nope_head_dim=8", "model.latent.qk_rope_head_dim=4",
      "model.latent.v_head_dim=8", "model.layer.qk_norm=head", "model.layer.sinks=true", "model.layer.output_gate=true",
      "model.layer.qkv_bias=true", "model.layer.out_bias=true", "model.head_dim=8", "model.mup.base_hidden_size=32",
      "model.position.rotary_fraction=0.5"},
     {"E0229 latent attention has a key for each of 4 heads, not 2",
      "E0229 latent attention has no `model.layer.qk_norm`", "E0229 latent attention has no `model.layer.sinks`",
      "E0229 latent attention has no `model.layer.output_gate`", "E0229 latent attention has no `model.layer.qkv_bias`",
      "E0229 latent attention has no `model.layer.out_bias`",
      "E0229 a head of latent attention has qk_nope_head_dim + qk_rope_head_dim = 12 channels, not 8",
      "E0244 muP is not known for latent attention", "E0229 latent attention has no `model.position.rotary_fraction`"}},
    {{"model.init.cut=2"}, {"E0224 `model.init.cut` has no effect here"}},
    {{"model.init.type=truncated_normal", "model.init.cut=0.5"}, {"E0202 `model.init.cut` = 0.5 is out of range"}},
    {{"model.init.zero_output=head", "model.tie_embeddings=true"}, {"E0240 a head that is the embedding cannot begin as zeros"}},
    {{"model.init.zero_output=tail"}, {"E0203 `model.init.zero_output` cannot be \"tail\""}},
    {{"model.mup.base_head_dim=8"}, {"E0224 `model.mup.base_head_dim` has no effect here"}},
    {{"model.mup.base_hidden_size=0"}, {"E0243 muP needs the width of a base model"}},
    {{"model.mup.base_hidden_size=32", "model.layer.score_scale=0.5"}, {"E0241 muP gives attention scores their scale"}},
    {{"model.mup.base_hidden_size=32", "model.init.from=w"}, {"E0242 weights that are given were not trained with muP"}},
    {{"model.mup.base_hidden_size=32", "model.moe.num_experts=4", "model.moe.expert_ffn_size=32"},
     {"E0244 muP is not known for experts"}},
    {{"optimizer.lr_scale.matrix=-1"}, {"E0202 `optimizer.lr_scale.matrix` = -1 is out of range"}},
    {{"optimizer.lr_scale.matrices=1"}, {"E0101 unknown field `matrices`"}},
    {{"optimizer.lr_scale.head=2", "model.tie_embeddings=true"}, {"E0224 `optimizer.lr_scale.head` has no effect here"}},
    {{"model.layers=[\"full\", \"full\", \"full_nope\"]"}, {"E0225 a pattern of 3 kinds does not fill 4 layers"}},
    {{"model.layers=[\"local\"]"}, {"E0203 `model.layers` cannot be \"local\""}},
    {{"model.layers=[\"window\", \"full\"]"}, {"E0226 layers are called `window`, and there is no window"}},
    {{"model.preset=gpt2-tiny", "model.layers=[\"full_nope\"]"}, {"E0226 layers without rotary positions need others that have them"}},
    {{"model.position.scaling.type=llama3", "model.position.scaling.factor=2", "model.position.scaling.low_freq_factor=4"}, {"E0227 low_freq_factor must be below high_freq_factor"}},
    {{"model.position.scaling.type=yarn", "model.position.scaling.factor=2", "model.position.scaling.beta_fast=0.5"}, {"E0227 beta_slow must be above 0 and at most beta_fast"}},
    {{"model.position.rotary_fraction=0.7"}, {"E0222 rotary positions need an even number of channels in a head, not 11"}},
    {{"model.head_dim=9"}, {"E0222 rotary positions need an even number of channels in a head, not 9"}},
    {{"model.moe.num_experts=4"}, {"E0250 4 experts have no width"}},
    {{"model.moe.num_experts=4", "model.moe.expert_ffn_size=32", "model.moe.top_k=5"},
     {"E0251 a token cannot go to 5 of 4 experts"}},
    {{"model.moe.num_experts=4", "model.moe.expert_ffn_size=1"},
     {"E0252 an expert has fewer columns than tensor ranks that share them"}},
    {{"model.moe.num_experts=4", "model.moe.expert_ffn_size=32", "model.moe.first_dense_layers=4"},
     {"E0253 no layer has experts"}},
    {{"model.moe.num_experts=4", "model.moe.expert_ffn_size=32", "model.layer.mlp_bias=true",
      "model.moe.shared_ffn_size=32"},
     {"E0254 a shared expert has no biases"}},
    {{"model.moe.num_experts=4", "model.moe.expert_ffn_size=32", "model.moe.shared_ffn_size=33"},
     {"E0252 tensor parallel size must divide the width of the shared expert"}},
    {{"model.moe.num_experts=4", "model.moe.expert_ffn_size=32", "model.moe.shared_gate=true"},
     {"E0224 `model.moe.shared_gate` has no effect here"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.groups=4"},
     {"E0255 groups of experts must be equally large"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.groups=3", "model.moe.top_groups=4"},
     {"E0255 a token cannot have experts in 4 of 3 groups"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.groups=6"},
     {"E0255 a token has 2 experts, and 1 of 6 groups have only 1"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.bias_update_rate=0.1",
      "model.moe.selection_bias=false"},
     {"E0224 `model.moe.bias_update_rate` has no effect here"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.bias_update_rate=0.1",
      "parallelism.reduction_dtype=bf16"},
     {"E0256 biases of experts follow from counts, which bf16 would round"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.bias_update=quantile",
      "model.moe.bias_update_rate=0.1"},
     {"E0224 `model.moe.bias_update_rate` has no effect here"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.bias_update=quantile",
      "model.moe.selection_bias=false"},
     {"E0224 `model.moe.bias_update` has no effect here"}},
    {{"model.moe.num_experts=2", "model.moe.expert_ffn_size=32", "model.moe.bias_update=quantile"},
     {"E0224 `model.moe.bias_update` has no effect here"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.bias_update=quantile",
      "model.moe.router=sqrt_softplus", "model.moe.groups=3", "model.moe.top_groups=2"},
     {"E0259 scores of sqrt_softplus have no largest value",
      "E0259 experts in groups have no quantile of their own"}},
    {{"model.moe.bias_update=quantile"}, {"E0224 `model.moe.bias_update` has no effect here"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.capacity_factor=3"},
     {"E0224 `model.moe.capacity_factor` has no effect here"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.drop_policy=position"},
     {"E0224 `model.moe.drop_policy` has no effect here"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.capacity_factor=0.001"},
     {"E0258 experts would take 0.021 of 64 tokens each"}},
    {{"model.moe.num_experts=6", "model.moe.expert_ffn_size=32", "model.moe.capacity_factor=-1"},
     {"E0202 `model.moe.capacity_factor` = -1 is out of range"}},
    {{"model.moe.latent_size=8"}, {"E0224 `model.moe.latent_size` has no effect here"}},
    {{"model.moe.groups=4"}, {"E0224 `model.moe.groups` has no effect here"}},
    {{"model.moe.top_k=4"}, {"E0224 `model.moe.top_k` has no effect here"}},
    {{"model.activation=relu"}, {"E0203 `model.activation` cannot be \"relu\""}},
    {{"model.num_heads=5"}, {"E0220 the number of heads must divide the hidden size",
      "E0221 the number of KV heads must divide the number of heads",
      "E0310 tensor parallel size must divide the number of attention heads"}},
    {{"model.num_kv_heads=3"}, {"E0221 the number of KV heads must divide the number of heads",
      "E0312 tensor parallel size must divide the KV heads, or be a multiple of them that divides their channels"}},
    {{"model.hidden_size=60", "model.num_heads=4", "model.num_kv_heads=4"}, {"E0222 rotary positions need an even number of channels in a head, not 15"}},
    {{"model.vocab_size=1"}, {"E0202 `model.vocab_size` = 1 is out of range"}},
    {{"model.preset=null"}, {"E0204 the model is not fully described: model.family, model.hidden_size, model.num_layers, model.num_heads, model.vocab_size, model.max_seq_len are missing"}},
    {{"model.position.type=alibi"}, {"E0203 `model.position.type` cannot be \"alibi\""}},
    {{"data.seq_len=64"}, {"E0230 sequences are longer than the model is made for"}},
    {{"data.train=[]"}, {"E0211 `data.train` is empty: there is nothing to train on"}},
    {{"data.train=null"}, {"E0204 `data.train` is missing: there is nothing to train on"}},
    {{"data.train.0.weight=0"}, {"E0202 `data.train.0.weight` = 0 is out of range"}},
    {{"data.train.0.format=raw"}, {"E0501 a raw token file cannot tell its integer type"}},
    {{"data.train.0.dtype=uint16"}, {"E0502 dtype is for raw files only"}},
    {{"data.train.5.path=x"}, {"E0105 `5` is not an entry of data.train, which has 1"}},
    {{"data.train.1.weight=2"}, {"E0204 `data.train.1.path` is missing"}},
    {{"data.train.1.path=b", "data.train.1.name=n", "data.train.0.name=n"}, {"E0503 two sources are named `n`"}},
    {{"data.tokenizer=bytes"}, {"E0505 the vocabulary is smaller than the tokenizer's 257 ids"}},
    {{"schedule.total_steps=null"}, {"E0208 neither `schedule.total_tokens` nor `schedule.total_steps` is given"}},
    {{"schedule.warmup_steps=500"}, {"E0231 the warm-up of 500 steps is longer than the run of 100"}},
    {{"schedule.min_lr=1"}, {"E0232 the lowest learning rate is above the highest"}},
    {{"schedule.lr=0"}, {"E0202 `schedule.lr` = 0 is out of range"}},
    {{"schedule.lr=nan"}, {"E0201 `schedule.lr` must be a number, not \"nan\""}},
    {{"schedule.decay_steps=50"}, {"E0234 a decay length is for the wsd schedule only"}},
    {{"schedule.type=wsd", "schedule.decay_steps=95"}, {"E0233 warm-up and decay take 10 + 95 steps, the run has 100"}},
    {{"schedule.type=cosin"}, {"E0203 `schedule.type` cannot be \"cosin\""}},
    {{"schedule.beta1=0.9"}, {"E0101 unknown field `beta1`"}},
    {{"optimizer.beta2=1.5"}, {"E0202 `optimizer.beta2` = 1.5 is out of range"}},
    {{"optimizer.decay_exclude=norm,biases"}, {"E0203 `optimizer.decay_exclude` cannot be \"biases\""}},
    {{"optimizer.type=adafactor"}, {"E0203 `optimizer.type` cannot be \"adafactor\""}},
    {{"optimizer.moments=fp8"}, {"E0203 `optimizer.moments` cannot be \"fp8\""}},
    {{"optimizer.momentum=0.5"}, {"W0245 `optimizer.momentum` has no effect here"}},
    {{"optimizer.type=sgd", "optimizer.momentum=0.5", "optimizer.muon.scale=spectral"},
     {"W0245 `optimizer.muon.scale` has no effect here"}},
    {{"optimizer.muon.steps=0"}, {"E0202 `optimizer.muon.steps` = 0 is out of range"}},
    {{"learning_rate=1e-3"}, {"E0101 unknown field `learning_rate`"}},
    {{"schedule=3"}, {"E0201 `schedule` must be an object, not a number"}},
    {{"parallelism.transport=nccl", "launcher.ranks_per_gpu=2"}, {"E0701 NCCL needs a GPU of its own for every rank"}},
    {{"launcher.slots=4"}, {"E0702 8 ranks do not fit in 4 slots"}},
    {{"launcher.env={\"A\": 1}"}, {"E0201 `launcher.env.A` must be text, not 1"}},
    {{"launcher.env={\"A=B\": \"1\"}"}, {"E0703 `A=B` cannot be an environment variable"}},
    {{"name=my run"}, {"E0212 `name` = \"my run\" cannot name a run"}},
    {{"observability.run_id=../x"}, {"E0212 `observability.run_id` = \"../x\" cannot name a run"}},
    {{"version=2"}, {"E0109 this build reads version 1 of the spec, not 2"}},
    {{"schedule.lr"}, {"E0104 this override has no `=`"}},
    {{"=3"}, {"E0104 this override names no field"}},
    {{"extends=a.json"}, {"E0104 `extends` can only be in a file"}},
    {{"checkpoint.store=s3://bucket"}, {"E0604 checkpoint.store is neither s3://bucket/prefix nor an absolute path"}},
    {{"checkpoint.interval=auto", "checkpoint.every_steps=500"}, {"E0601 an automatic interval decides by itself after how many steps to save"}},
    {{"checkpoint.interval=automatic"}, {"E0203 `checkpoint.interval` cannot be \"automatic\""}},
    {{"checkpoint.every_seconds=-5"}, {"E0202 `checkpoint.every_seconds` = -5 is out of range"}},
    {{"checkpoint.mtbf_seconds=5 hours"},
     {"E0205 `checkpoint.mtbf_seconds` is not a quantity: \"5 hours\" has an unknown unit; use ms, s, m, "
      "min, h, d"}},
    {{"fault_tolerance.collective_timeout_seconds=1h"}, {"E0704 a step would count as hung before a rank could name whom it waits for"}},
    {{"launcher.burn_in=10m", "fault_tolerance.start_skew_seconds=70"},
     {"E0704 a rank would count as hung during its burn-in", "E0704 a rank would count as hung during its burn-in"}},
    {{"launcher.burn_in=true"}, {"E0201 `launcher.burn_in` must be a number, not true"}},
    {{"fault_tolerance.supervisor_takeover=true", "fault_tolerance.grace_seconds=7"},
     {"E0705 a quarter of the grace passes before the silence of a supervisor counts"}},
    {{"fault_tolerance.supervisor_takeover=true", "launcher.shell=none"}, {"E0705 agents that something else starts reach no other supervisor than the first"}},
    {{"fault_tolerance.heartbeat_seconds=5 parsecs"}, {"E0205 `fault_tolerance.heartbeat_seconds` is not a quantity: \"5 parsecs\" has an unknown unit; use ms, s, m, min, h, d"}},
    {{"fault_tolerance.max_restarts=3"}, {"W0601 restarts begin at step 0 again, because no checkpoint is saved before the end"}},
    {{"eval.every_steps=10", "data.val=null"}, {"W0501 eval.every_steps is set but there is neither validation data nor a task: nothing is evaluated"}},
    {{"seed=-1"}, {"E0202 `seed` = -1 is out of range"}},
    {{"seed=18446744073709551616"}, {"E0202 `seed` = 18446744073709551616 is out of range"}},
    {{"eval.every_steps=0"}, {"W0502 data.val is given but eval.every_steps is 0: it is never evaluated"}},
    {{"seed=\"12\""}, {"E0201 `seed` must be a whole number, not \"12\""}},
    {{"parallelism.tensor=2", "parallelism.tensor=2000"}, {"E0202 `parallelism.tensor` = 2000 is out of range"}},
    {{"data={\"train\": "}, {"E0100 the text ends where a value should be",
      "E0201 `data` must be an object, not text"}},
    {{"parallelism.tensor=512", "parallelism.world_size=auto"}, {"E0310 tensor parallel size must divide the number of attention heads",
      "E0311 tensor parallel size must divide the feed-forward width",
      "E0312 tensor parallel size must divide the KV heads, or be a multiple of them that divides their channels",
      "E0313 with sequence_parallel the tensor parallel size must divide the 64 rows of a micro-batch",
      "E0314 there are fewer token ids than tensor parallel ranks"}},
};
// clang-format on

struct BrokenText {
  std::string text;
  std::vector<std::string> expected;  ///< "CODE line:column message"
};

// clang-format off
const std::vector<BrokenText> kTexts = {
    {"", {"E0100 1:1 the file is empty"}}, {" \n\t\r\n", {"E0100 1:1 the file has nothing but spaces"}},
    {R"~({)~", {"E0100 1:1 this object is never closed"}},
    {R"~([1, 2])~", {"E0107 1:1 a job spec is an object, not a list"}},
    {R"~({"version": 1,})~", {"E0100 1:14 comma before `}`"}},
    {R"~({'version': 1})~", {"E0100 1:2 a field's name must be in double quotes"}},
    {R"~({"version": 1 "name": "x"})~", {"E0100 1:15 expected `,` or `}` here"}},
    {R"~({"name": "x)~", {"E0100 1:10 this text has no closing quote"}},
    {R"~({"name": "a\q"})~", {"E0100 1:12 unknown escape in a text"}},
    {R"~({"seed": 01})~", {"E0100 1:10 `01` is not a JSON number"}},
    {R"~({"seed": 4M})~", {"E0100 1:10 `4M` is not a JSON number"}},
    {R"~({"a": tru})~", {"E0100 1:7 `tru` is not a value"}},
    {R"~({"version": 1}
})~", {"E0100 2:1 there is more text after the end of the spec"}},
    {R"~(/* c
*/ {})~", {"E0100 1:1 /* */ comments are not understood"}},
    // Several mistakes in one reading, where it is clear how to go on.
    {R"~({"seed": 1, "model": {"preset": "gpt2-tiny",},
 'name': 'x', data: {"train": [{"path": "a"},],},
 "schedule": {"lr": 1M "total_steps": ten,}, /* c */ "seed": 2,})~",
     {"E0100 1:44 comma before `}`", "E0100 2:2 a field's name must be in double quotes", "E0100 2:10 text must be in double quotes",
      "E0100 2:15 a field's name must be in double quotes", "E0100 2:45 comma before `]`", "E0100 2:47 comma before `}`",
      "E0100 3:21 `1M` is not a JSON number", "E0100 3:24 expected `,` or `}` here", "E0100 3:39 `ten` is not a value",
      "E0100 3:42 comma before `}`", "E0100 3:46 too many mistakes: reading stops here"}},
    {std::string("{\"a\": \0 1}", 10), {"E0100 1:7 byte 6 of the text is a NUL"}},
    {"{\"a\":\n \"\xc3\xa4\xff\"}", {"E0100 2:4 the text is not UTF-8: byte 10 of it is 0xff"}},
    {std::string("\xff\xfe{\0}\0", 6), {"E0100 1:1 the text is UTF-16, not UTF-8"}},
    {std::string("{\0}\0", 4), {"E0100 1:1 the text is UTF-16, not UTF-8"}},
    {R"~({"seed": 1, // one
 "seed": 2, "version": 1, "model": {"preset": "gpt2-tiny"},
 "data": {"train": [{"path": "a"}]}, "schedule": {"total_steps": 1}})~", {"E0102 2:2 `seed` is given twice"}},
    {R"~({"version": 1, "model": {"preset": "gpt2-tiny"},
 "data": {"train": [{"path": "a"}]},
 "schedule": {"total_steps": 1, "lr": NaN}})~", {"E0103 3:39 `NaN` is not a number a spec can hold"}},
    {R"~({"version": 1, "model": {"preset": "gpt2-tiny", "x-note": [1]},
 "data": {"train": [{"path": "a"}, {"paht": "b"}, 3]},
 "schedule": {"total_steps": 1, "total_tokens": "1M"}})~", {"E0204 2:36 `data.train.1.path` is missing", "E0101 2:37 unknown field `paht`", "E0201 2:51 `data.train.2` must be an object, not a number", "E0207 3:30 give `schedule.total_tokens` or `schedule.total_steps`, not both"}},
    {R"~({"version": 1})~", {"E0208 0:0 neither `schedule.total_tokens` nor `schedule.total_steps` is given", "E0204 0:0 the model is not fully described: model.family, model.hidden_size, model.num_layers, model.num_heads, model.vocab_size, model.max_seq_len are missing", "E0204 0:0 `data.train` is missing: there is nothing to train on"}},
    {R"~({"version": 1, "model": {"family": "gpt2", "hidden_size": 64}, "data": {"train": {"path": "a"}},
 "schedule": {"total_steps": 1},
 "optimizer.beta1": 0.9})~", {"E0204 1:16 the model is not fully described: model.num_layers, model.num_heads, model.vocab_size, model.max_seq_len are missing", "E0201 1:82 `data.train` must be a list of sources, not an object", "E0101 3:2 unknown field `optimizer.beta1`"}},
    {R"~({"extends": ["no/such.json"], "version": 1,
 "model": {"preset": "gpt2-tiny"}, "data": {"train": [{"path": "a"}]}, "schedule": {"total_steps": 1}})~", {"E0106 1:14 cannot read the spec to extend: cannot open no/such.json: No such file or directory"}},
    {"{\"a\": 1}\xff", {"E0100 1:9 the text is not UTF-8: byte 8 of it is 0xff"}},
};

// clang-format on

}  // namespace

TEST_CASE("each broken spec gets exactly its diagnostics", "[spec]") {
  for (const Broken& broken : kOverrides) {
    INFO(fmt::format("{}", fmt::join(broken.overrides, "  ")));
    const ParsedJob parsed = parse_job({.text = kValid, .file = "job.json", .overrides = broken.overrides});
    CHECK(found_in(parsed) == broken.expected);
  }
}

TEST_CASE("mistakes in the text are found at their line and column", "[spec]") {
  for (const BrokenText& broken : kTexts) {
    INFO(broken.text);
    std::vector<std::string> found;
    for (const Diagnostic& d : parse_job({.text = broken.text, .file = "job.json"}).diagnostics)
      found.push_back(fmt::format("{} {}:{} {}", d.code, d.line, d.column, d.message));
    CHECK(found == broken.expected);
  }
}

TEST_CASE("every diagnostic has a page, a help and a place, and every code is shown by a broken spec",
          "[spec]") {
  std::set<std::string> seen;
  std::vector<ParsedJob> all;
  for (const Broken& broken : kOverrides)
    all.push_back(parse_job({.text = kValid, .file = "job.json", .overrides = broken.overrides}));
  for (const BrokenText& broken : kTexts)
    all.push_back(parse_job({.text = broken.text, .file = "job.json"}));
  for (const ParsedJob& parsed : all) {
    CHECK(parsed.ok() == !parsed.resolved_json.empty());
    for (const Diagnostic& d : parsed.diagnostics) {
      INFO(d.code << " " << d.message);
      CHECK(!explain(d.code, nullptr).empty());
      CHECK(!d.help.empty());
      CHECK(!d.file.empty());
      seen.insert(d.code);
    }
  }
  // spec_parse_, spec_watch_, spec_numbers_test.cpp; of files and surroundings: end_to_end/validate_test.cpp
  seen.insert({"E0602", "E0603", "E0605", "E0710", "E0711", "W0602", "E0323", "E0324", "E0325", "E0326",
               "E0327", "E0328", "E0402", "E0504", "E0506", "E0507", "E0508", "E0509", "E0510", "E0511",
               "E0513", "E0514", "E0606", "E0607", "E0706", "E0707", "E0708", "E0709", "E0712"});
  for (const spec::CodePage& page : spec::code_pages()) {
    INFO(page.code);
    CHECK(seen.count(page.code) == 1);
  }
}

TEST_CASE("a diagnostic reads as the command line promises", "[spec]") {
  const std::string text =
      render(parse_job({.text = R"({
  "version": 1,
  "model": {"preset": "llama-tiny", "hidden_size": 96, "num_heads": 12, "num_kv_heads": 4},
  "data": {"train": [{"path": "a.idx"}]},
  "schedule": {"total_steps": 10}
})",
                        .file = "job.json",
                        .overrides = {"parallelism.tensor=6", "parallelism.sequence_parallel=false"}})
                 .diagnostics,
             false);
  CHECK(
      text ==
      R"(error[E0312]: tensor parallel size must divide the KV heads, or be a multiple of them that divides their channels
  --> --set parallelism.tensor=6
   = parallelism.tensor = 6, model.num_kv_heads = 4
  --> job.json:3:89  /model/num_kv_heads
  |
3 |   "model": {"preset": "llama-tiny", "hidden_size": 96, "num_heads": 12, "num_kv_heads": 4},
  |                                                                                         ^ 6 ranks cannot share 4 KV heads evenly
   = help: use 1, 2 or 4
   = more: trainctl explain E0312

1 error, 0 warnings. Nothing was started.
)");
}
