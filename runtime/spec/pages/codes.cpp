#include "runtime/spec/pages/codes.h"

#include <algorithm>

namespace trainctl::spec {

namespace {

const std::vector<CodePage> kSyntax = {
    {"E0100", "The text is not JSON",
     "The spec breaks the rules of JSON at the place shown. Several such mistakes are reported at once "
     "where possible; the fields are checked once there is none. `//` comments are allowed; trailing "
     "commas, single quotes and /* */ comments are not.",
     R"({"model": {"preset": "gpt2-124m",}})", "Remove the comma before `}`."},
    {"E0101", "Unknown field",
     "The spec has no field of this name at this place; usually a typing mistake, or the field belongs in "
     "another section. "
     "Names starting with `x-` are free for your own notes.",
     R"("parallelism": {"tensor_paralel": 2})",
     R"(Write "tensor": 2. `trainctl explain parallelism` lists the fields.)"},
    {"E0102", "A field is given twice",
     "The same name is in one object twice; one of the values would silently be lost.",
     R"("schedule": {"lr": 3e-4, "lr": 1e-3})", "Keep one of them."},
    {"E0103", "Not a finite number",
     "JSON has no NaN and no infinity, and numbers beyond about 1.8e308 cannot be held.",
     R"("schedule": {"lr": NaN})", "Write a finite number, or null for the default."},
    {"E0104", "Unusable override",
     "An override is PATH=VALUE, with the path of a field. `extends` is read before overrides apply.",
     "--set schedule.lr", "--set schedule.lr=3e-4, or TRAINCTL_SET__schedule__lr=3e-4 in the environment."},
    {"E0105", "No such list entry",
     "An override names an entry of a list by its number, from 0; one past the end adds an entry.",
     "--set data.train.7.weight=2 with two sources", "Use 0 or 1 to change an entry, 2 to add one."},
    {"E0106", "Cannot extend that spec",
     "A file named in `extends` cannot be read, or extends itself. Paths are relative to the file that "
     "names them.",
     R"("extends": ["bass.json"])", "Correct the path, or take the file out of the circle."},
    {"E0107", "A spec is an object", "The file holds a value that is not an object.", "[1, 2, 3]",
     "Start with { and end with }; `trainctl init` writes a starter."},
    {"E0109", "Unsupported version",
     "`version` is the format of the spec that the file follows; this build reads version 1.",
     R"("version": 2)", "Use version 1, or a newer trainctl."},
};

const std::vector<CodePage> kValues = {
    {"E0201", "Wrong type", "The field wants another kind of value.", R"("parallelism": {"tensor": "two"})",
     R"(Write "tensor": 2.)"},
    {"E0202", "Out of range", "The number is outside what the field allows.",
     R"("optimizer": {"beta2": 1.5})", "Use a value in the range shown."},
    {"E0203", "Not one of the choices", "The field allows a few words only.",
     R"("schedule": {"type": "cosin"})", R"(Write "cosine".)"},
    {"E0204", "A required field is missing",
     "Something without a default is not given: the model's shape, the training data, a source's path.",
     R"({"version": 1, "schedule": {"total_steps": 100}})",
     R"(Add "model": {"preset": "gpt2-124m"} and "data": {"train": [{"path": "data/train.idx"}]}.)"},
    {"E0205", "Not a quantity",
     "A quantity is a number, or a text of a number and a unit. Counts: k, M, B, T (and Ki, Mi, Gi). Time: "
     "ms, s, m, h, d. "
     "Size: KiB, MiB, GiB, kB, MB, GB.",
     R"("schedule": {"total_tokens": "10m"})", R"(Write "10M": a lower-case m is a minute.)"},
    {"E0206", "Not a whole number", "The field counts things, so it has no fraction.",
     R"("model": {"num_layers": 12.5})", "Write 12 or 13."},
    {"E0207", "Two fields say the same",
     "A length was given in tokens and in steps (or sequences) in the same place. An override of one "
     "replaces the other.",
     R"("schedule": {"total_tokens": "1B", "total_steps": 1000})", "Remove one of them."},
    {"E0208", "One of two fields is needed", "The length of the run has no default.",
     R"("schedule": {"lr": 3e-4})", R"(Add "total_tokens": "1B" or "total_steps": 1000.)"},
    {"E0209", "Unknown preset", "model.preset names a model this build does not know.",
     R"("model": {"preset": "gpt2-124"})", "`trainctl init --list` shows the presets."},
    {"E0210", "Does not fit the rest of the model",
     "A preset has its own family, only rotary positions have frequencies, and an old name of a field says "
     "the same "
     "as its new one.",
     R"("model": {"family": "gpt2", "position": {"theta": 500000}})",
     "Remove the field, or choose the llama family."},
    {"E0211", "Empty list", "There must be at least one source of training data.", R"("data": {"train": []})",
     R"(Write "train": [{"path": "data/train.idx"}].)"},
    {"E0212", "Cannot name a run", "The name becomes part of folder names.", R"("name": "my run/1")",
     R"(Write "my-run-1".)"},
    {"E0220", "Heads do not divide the hidden size", "Every head gets hidden_size / num_heads channels.",
     R"("hidden_size": 768, "num_heads": 10)", "Use 12 heads."},
    {"E0221", "KV heads do not divide the heads", "Every KV head serves the same number of heads.",
     R"("num_heads": 32, "num_kv_heads": 5)", "Use 8 KV heads."},
    {"E0222", "Rotary positions need even heads",
     "Rotary positions turn channels in pairs, so their number in a head, hidden_size / num_heads or "
     "head_dim, must be "
     "even.",
     R"("hidden_size": 60, "num_heads": 4)", "Use a hidden_size of 64."},
    {"E0224", "A field without effect",
     "Another field decides that this one is not used, so its value was probably meant for something else.",
     R"("layer": {"window": 1024}, "layers": ["full"])", R"(Write "layers": ["window", "full"].)"},
    {"E0225", "The pattern does not fill the layers",
     "A pattern of kinds is repeated a whole number of times.",
     R"("num_layers": 32, "layers": ["window", "window", "full"])",
     "Use a pattern of 1, 2, 4, 8 or 16, or list all 32."},
    {"E0226", "A kind of layer that is not described",
     "A windowed layer needs the window's length, a layer without rotary positions other layers with them.",
     R"("layers": ["window", "full"])", R"(Add "layer": {"window": 1024}.)"},
    {"E0227", "The scaling's limits are not in order",
     "Between the two limits, scaling goes from none to all.",
     R"("scaling": {"type": "yarn", "beta_fast": 1, "beta_slow": 32})", "Exchange the two values."},
    {"E0228", "Latent attention's sizes do not fit",
     "Heads need channels that turn in pairs, and values that are no wider than keys.",
     R"("latent": {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 63, "v_head_dim": 128})",
     R"(Write "qk_rope_head_dim": 64.)"},
    {"E0229", "Latent attention cannot have that",
     "The field belongs to heads with keys and values of their own.",
     R"("layer": {"qk_norm": "head"}, "latent": {"kv_lora_rank": 512})", "Remove the field."},
    {"E0250", "Experts without a width",
     "Each expert is a feed-forward part of its own, whose width nothing else says.",
     R"("moe": {"num_experts": 64})", R"(Add "expert_ffn_size": 768.)"},
    {"E0251", "More experts for a token than there are",
     "A token goes to top_k different experts of num_experts.", R"("moe": {"num_experts": 4, "top_k": 8})",
     "Use a top_k of at most 4."},
    {"E0252", "Tensor parallelism does not fit the experts",
     "Tensor parallelism cuts the width of each expert into parts that need not be equally wide, but each "
     "rank "
     "has a column at least. The expert that every token meets is cut into equal parts.",
     R"("moe": {"expert_ffn_size": 2}, "parallelism": {"tensor": 4})", "Use 1 or 2 tensor ranks."},
    {"E0253", "No layer has experts",
     "The first layers are dense, or each so many-th layer has experts, and no layer is left for them.",
     R"("num_layers": 4, "moe": {"first_dense_layers": 4})", R"(Write "first_dense_layers": 1.)"},
    {"E0254", "A shared expert cannot have that",
     "The products of the expert that every token meets have no biases.",
     R"("layer": {"mlp_bias": true}, "moe": {"num_experts": 8, "shared_ffn_size": 512})", "Remove mlp_bias."},
    {"E0255", "Groups of experts do not fit",
     "Groups are equally large, and those that a token may use have at least top_k experts together.",
     R"("moe": {"num_experts": 64, "top_k": 8, "groups": 16, "top_groups": 1})",
     "Use a top_groups of at least 2."},
    {"E0256", "Tokens of experts cannot be counted",
     "The bias of an expert follows from how many tokens of the whole batch it had. The counts are added as "
     "gradients are, in float32, which is exact below 2^24.",
     R"("moe": {"bias_update_rate": 0.001}, "parallelism": {"reduction_dtype": "bf16"})",
     R"(Set reduction_dtype to "f32".)"},
    {"E0257", "Sequences are too short for the modules",
     "Module d of multi-token prediction predicts the token d + 1 places ahead, so data.seq_len must be "
     "larger "
     "than model.mtp.num_layers.",
     R"("seq_len": 2, "mtp": {"num_layers": 2})", "Use longer sequences, or fewer modules."},
    {"E0258", "Experts take less than a token",
     "An expert takes capacity_factor times the tokens that an expert has on average in a micro-batch (with "
     "context blocks: in a block). Below one token nearly all would be dropped.",
     R"("moe": {"num_experts": 256, "top_k": 1, "capacity_factor": 0.1}, "data": {"seq_len": 1024})",
     "Use a capacity_factor of 1 to 2."},
    {"E0259", "Quantile balancing cannot count that",
     "Each token adds to a histogram of each expert: of the bias with which the expert would come level with "
     "the best of those that the token leaves. It needs scores between two bounds, experts that compete with "
     "all others, and counts below 2^31.",
     R"("moe": {"bias_update": "quantile", "router": "sqrt_softplus"})", R"(Write "router": "sigmoid".)"},
    {"E0230", "Sequences are too long for the model",
     "data.seq_len may not exceed model.max_seq_len, for which positions exist.",
     R"("data": {"seq_len": 4096} with the preset gpt2-124m)",
     "Use at most 1024, or raise model.max_seq_len."},
    {"E0231", "Warm-up longer than the run", "The learning rate would never reach its top.",
     R"("total_steps": 100, "warmup_steps": 500)", "Use 10 warm-up steps."},
    {"E0232", "min_lr above lr", "The schedule falls from lr to min_lr.", R"("lr": 3e-5, "min_lr": 3e-4)",
     "Exchange the two values, or lower min_lr."},
    {"E0233", "Warm-up and decay longer than the run",
     "The decay ends with the run and starts after the warm-up.",
     R"("total_steps": 100, "warmup_steps": 20, "decay_steps": 90)", "Decay over at most 80 steps."},
    {"E0234", "Decay length without wsd",
     "linear and cosine fall from the end of the warm-up to the end of the run; only wsd has a decay of "
     "its own length.",
     R"("type": "cosine", "decay_steps": 100)", R"(Remove decay_steps, or set type to "wsd".)"},
    {"E0236", "global_tokens holds no whole sequences",
     "A step is made of whole sequences of data.seq_len tokens.",
     R"("global_tokens": 500000 with seq_len 1024)",
     "Use 499712 or 500736, or say global_sequences instead."},
    {"E0238", "Packed documents are kept apart",
     "With data.packing = best_fit a sample holds documents that do not follow each other in any text, and "
     "padding. Attention stays inside each, and the first token of one is no target.",
     R"("packing": "best_fit", "documents": "ignore")", "Leave data.documents out, or write \"mask\"."},
    {"E0240", "A tied head cannot begin as zeros",
     "With tied embeddings the head is the embedding, and an embedding of zeros says nothing of its token.",
     R"("tie_embeddings": true, "init": {"zero_output": ["head"]})",
     R"(Use "zero_output": ["sublayers"], or untie the head.)"},
    {"E0241", "Attention scores have two scales",
     "model.mup scales attention scores by sqrt(base_head_dim) / head_dim, so model.layer.score_scale must "
     "not give another factor.",
     R"("layer": {"score_scale": 0.0625}, "mup": {"base_hidden_size": 256})",
     "Set model.layer.score_scale to 0, or remove model.mup."},
    {"E0242", "muP with weights from files",
     "Files of Hugging Face describe models without muP's factors of scores and logits, so that with them "
     "the same weights would be another model.",
     R"("init": {"from": "models/gpt2"}, "mup": {"base_hidden_size": 256})",
     "Remove model.mup, or begin with random weights."},
    {"E0243", "muP without a base width",
     "muP carries what was tuned at one width over to another, so it needs the first.",
     R"("mup": {"base_hidden_size": 0})", "Give the width of the tuned model, or remove model.mup."},
    {"E0244", "muP with experts or latent attention",
     "Tensor Programs V says nothing of routers, whose outputs are neither logits nor as wide as the model, "
     "and of "
     "products through a latent whose width does not grow with the model.",
     R"("mup": {"base_hidden_size": 256}, "moe": {"num_experts": 8})", "Remove model.mup."},
};

const std::vector<CodePage> kParallelism = {
    {"E0301", "The mesh does not have world_size ranks",
     "Ranks form a mesh of tensor * context * pipeline * data, so the product is the number of ranks.",
     R"("world_size": 8, "tensor": 3, "pipeline": 2, "data": 2)",
     R"(Correct a factor, or set world_size (or data) to "auto".)"},
    {"E0302", "Ranks cannot be cut into pipelines",
     "With data \"auto\", world_size must be a multiple of tensor * context * pipeline.",
     R"("world_size": 8, "tensor": 3)", "Use 9 ranks, or tensor 2 or 4."},
    {"E0303", "More virtual stages than layers",
     "Every virtual stage of the pipeline needs something to compute: the first has the embedding, the last "
     "the head, the others need a layer.",
     R"("pipeline": 16 with 12 layers)", "Use at most 14."},
    {"E0304", "The pipeline cannot be scheduled",
     "`interleaved` needs virtual_stages > 1, pipeline > 1 and micro-batches divisible by pipeline; `zb-v` "
     "and `dualpipev` need virtual_stages 2 and pipeline > 1, and `dualpipev` twice as many micro-batches as "
     "stages; `merged-1f1b` has any number of virtual_stages, with several also what `interleaved` needs; "
     "the other schedules have virtual_stages 1. `trainctl plan JOB --schedules` says of each schedule "
     "whether the job can have it, and why not.",
     R"("pipeline_schedule": "1f1b", "virtual_stages": 2)",
     R"(Set pipeline_schedule to "interleaved", or virtual_stages to 1.)"},
    {"E0305", "More data parallel ranks than lanes",
     "Gradients of lanes are added by a fixed binary tree, and a rank has one lane or several neighbouring "
     "ones. "
     "The number of lanes stays what it was when the run was launched. That is what makes every width give "
     "the "
     "same bits.",
     R"("data": 8, "lanes": 4)",
     "Use 1 to 4; give lanes the largest wanted width from the start, or resume with --allow-other-bits: "
     "other "
     "bits from there on."},
    {"E0306", "lanes is no power of two", "Lanes are added by a balanced binary tree.", R"("lanes": 6)",
     "Use 4 or 8."},
    {"E0307", "The batch cannot be cut into lanes",
     "Every lane gets the same number of micro-batches: global_sequences is a multiple of lanes * "
     "micro_sequences.",
     R"("global_sequences": 100, "micro_sequences": 8, "lanes": 4)", "Use 96 or 128 sequences."},
    {"E0308", "stage_layers do not make up the model",
     "parallelism.stage_layers gives the layers of each virtual stage: one entry for each of pipeline * "
     "virtual_stages, in the order of the model, which add up to model.num_layers. Only the first, which has "
     "the embedding, and the last, which has the head, may have 0 layers.",
     R"("pipeline": 4, "stage_layers": [4, 4, 4] with 12 layers)",
     R"(Use [4, 4, 3, 1], or "auto", which cuts the layers by their cost.)"},
    {"E0309", "More layers to compute again than there are",
     "memory.activation_recompute as a number is the number of layers of each virtual stage that backward "
     "computes again.",
     R"("activation_recompute": 24 with 12 layers)", R"(Use at most 12, or "full" for all of them.)"},
    {"E0310", "tensor does not divide the heads", "Each tensor parallel rank computes whole attention heads.",
     R"("tensor": 8 with 12 heads)", "Use 1, 2, 3, 4, 6 or 12."},
    {"E0311", "tensor does not divide the feed-forward width",
     "Each tensor parallel rank holds the same part of the feed-forward layer.",
     R"("tensor": 3 with ffn_size 14336)", "Use a divisor of model.ffn_size."},
    {"E0312", "tensor does not fit the KV heads",
     "Each tensor parallel rank has whole KV heads, or shares one with its neighbours: each of them computes "
     "an equal part of the head's channels, and takes the others' for its own queries. So `tensor` divides "
     "the KV heads, or is a multiple of them that divides num_kv_heads * head_dim.",
     R"("tensor": 12 with 8 KV heads)", "Use 1, 2, 4, 8 or 16."},
    {"E0313", "tensor does not divide the rows of a micro-batch",
     "With sequence_parallel the rows (micro_sequences * seq_len) are split over the tensor group between "
     "matrix products.",
     R"("tensor": 3, "micro_sequences": 1, "seq_len": 1024)",
     "Use a divisor, or set sequence_parallel to false."},
    {"E0314", "Fewer token ids than tensor parallel ranks", "The embedding is cut along the vocabulary.",
     R"("tensor": 512 with vocab_size 256)", "Use fewer ranks."},
    {"E0315", "A width that does not divide the lanes, and what does not allow it",
     "Data parallel ranks that share sequences (context blocks), or with ZeRO-2 and 3 experts, compute "
     "neighbouring lanes at one time and reduce them together, so every rank needs as many lanes. So do sums "
     "that the transport makes (reduction \"fast\") with ZeRO-2 and 3.",
     R"("context": 2, "context_blocks": 4, "data": 3, "lanes": 4)",
     "Use a power of two; for experts, zero_stage 1 takes any width."},
    {"E0316", "Recursive halving at a width that is no power of two",
     "In each round of the halving a rank exchanges with one peer, and each of the two continues with half "
     "of its values.",
     R"("reduction_algorithm": "halving", "data": 6)", R"(Use "auto": other widths exchange directly.)"},
    {"E0317", "Weights that stay after a forward pass, without ZeRO-3",
     "parallelism.reshard_after_forward false keeps weights that ZeRO-3 has gathered. With a lower "
     "zero_stage nothing is gathered for a pass: every rank has all its weights.",
     R"("zero_stage": 2, "reshard_after_forward": false)",
     "Remove reshard_after_forward: zero_stage 2 also sends each weight once a step, in less memory."},
    {"E0318", "A bucket that is smaller than a chunk",
     "Gradients are reduced in buckets of parallelism.bucket_mib, each made of whole chunks of "
     "checkpoint.chunk_mib, because a chunk has one owner.",
     R"("bucket_mib": 4 with "chunk_mib": 8)", "Use a bucket_mib of 8 or more."},
    {"E0319", "Sequences that cannot be cut over context ranks",
     "Context parallelism cuts each sequence into 2 * context_blocks chunks of equal length. The "
     "number of blocks is a power of two, fixed when a run is born, and every number of ranks that "
     "divides it gives the same bits. With context_comm_type \"a2a\" each context rank has whole KV heads "
     "of those of its tensor rank.",
     R"("context": 3, "context_blocks": 4)",
     "Use a context that divides context_blocks (with \"a2a\" also num_kv_heads / tensor), and a seq_len "
     "that is a multiple of 2 * context_blocks."},
    {"E0320", "Experts that cannot be shared out",
     "Expert parallelism gives each of `expert` neighbouring ranks of a data-parallel group equally many "
     "experts of each layer, and sends the rows of tokens to them. All of these ranks must come to each "
     "layer equally often.",
     R"("expert": 3 with 8 experts)", "Use an expert that divides both num_experts and data * context."},
    {"E0321", "Whole experts that tensor ranks cannot share",
     "With expert_tensor 1 tensor ranks do not cut experts: each sends its part of a micro-batch's tokens to "
     "whole ones, which are shared out over tensor, context and data-parallel ranks together. So `expert` is "
     "a multiple of `tensor`, each tensor rank has as many tokens of a context block, and there is no "
     "capacity, which would be of these.",
     R"("expert_tensor": 1 with "tensor": 4, "expert": 2)",
     "Use an expert that is a multiple of tensor, or leave expert_tensor out: experts are then cut."},
};

const std::vector<CodePage> kOperation = {
    {"E0401", "Too large to plan",
     "The model has so many parts, or a step so many activations, that the plan itself would take too much "
     "memory and time: at most 4,194,304 chunks of checkpoint.chunk_mib and 2^60 bytes of activations. "
     "Usually one digit too many.",
     R"("hidden_size": 1048576, "num_layers": 10000, "ffn_size": 4194304)",
     "Use a smaller model or batch; for a model that really is so large, raise checkpoint.chunk_mib."},
    {"E0402", "No room on this machine",
     "The ranks need more memory, shared memory or GPUs than this machine has free.",
     R"("model": {"preset": "llama3-8b"}, "device": "cpu" on a laptop)",
     "`trainctl plan` shows what takes most, and settings with which the job fits. Of a job for other "
     "machines: "
     "`trainctl validate JOB --no-data`."},
    {"E0501", "Raw token file without dtype",
     "A raw file holds bare token ids and nothing about their width.",
     R"({"path": "a.bin", "format": "raw"})", R"(Add "dtype": "uint16".)"},
    {"E0502", "dtype for a file that knows it", "Megatron and llm.c files hold their integer type.",
     R"({"path": "a.idx", "format": "megatron", "dtype": "uint16"})", "Remove dtype."},
    {"E0503", "Two sources share a name",
     "Names of sources appear in messages and metrics, so each is used once.",
     R"([{"path": "a.idx", "name": "web"}, {"path": "b.idx", "name": "web"}])", "Rename one."},
    {"E0504", "No such token file",
     "A source of data.train or data.val names no file, or one of no known format. A path in a spec is "
     "relative to the folder of "
     "the file it is written in, a path given with --set to the current folder. `trainctl data tokenize` "
     "makes token files.",
     R"({"train": [{"path": "data/train.idx"}]} and no data/train.idx in the folder of the spec)",
     "Make the file, or correct the path. `validate` and `plan` with --no-data do not look for files."},
    {"E0505", "Vocabulary smaller than the tokenizer's",
     "Every id of the tokenizer needs a row in the embedding; `bytes` has 257 (256 bytes and the end of a "
     "text).",
     R"("vocab_size": 256 with the tokenizer "bytes")", "Use a vocab_size of 257 or more."},
    {"E0506", "No such tokenizer",
     "data.tokenizer names a file that does not exist. `sample` needs it to read and write text.",
     R"("tokenizer": "data/tokenizer.model")",
     "Make it with `trainctl data tokenize --train-vocab N`, correct the path, or remove the field."},
    {"E0507", "No initial weights",
     "model.init.from names no safetensors file and no Hugging Face folder that can be read.",
     R"("init": {"from": "models/gpt2"})",
     "Correct the path, or remove the field to start from random weights."},
    {"E0508", "Tokens of a larger vocabulary",
     "PREFIX.json of token files names the vocabulary of their tokenizer. Every id needs a row in "
     "the "
     "embedding, so model.vocab_size must be at least as large.",
     R"("vocab_size": 256 with files made by --train-vocab 2048)",
     "Set model.vocab_size to the number in the message; a multiple of 64 or 128 is faster on GPUs."},
    {"E0509", "Another tokenizer than that of the tokens",
     "data.tokenizer is not the tokenizer that made the token files (their PREFIX.json has its name "
     "and "
     "hash). The run would train, but `sample` and `export` would read its ids as other text.",
     R"("tokenizer": "bytes" with files made by data/tokenizer.model)",
     "Remove data.tokenizer, which then is that of the files, or tokenize again with the one you mean."},
    {"E0510", "Token files that cannot be read",
     "A file of data.train or data.val is damaged or of another format, has token ids that the model does "
     "not know, or fewer tokens than one sample; or one of eval.tasks is damaged, empty, or made with "
     "another "
     "tokenizer.",
     R"("train": [{"path": "data/cut-off.idx"}])",
     "Do what the message says; `trainctl data verify` reads every byte, `trainctl data tokenize` makes it "
     "again."},
    {"E0511", "A source without documents",
     "With data.documents \"mask\" attention, positions and targets stay inside a document. Only Megatron "
     "sets (.bin and .idx) say where documents begin; llm.c shards and raw files do not.",
     R"("documents": "mask", "train": [{"path": "raw.bin", "format": "raw", "dtype": "uint16"}])",
     "Tokenize the text again with `trainctl data tokenize`, or set documents to \"ignore\"."},
    {"E0513", "A loss file that does not fit",
     "NAME.loss next to a token file has a weight for each of its tokens. This file is none, is cut off, or "
     "is of "
     "other tokens.",
     R"("loss": "mask", "train": [{"path": "chat.idx"}])",
     "Tokenize again, move the file away, or set data.loss to \"all\"."},
    {"E0514", "No loss file",
     "data.loss asks for the weights of targets, but no training source has a loss file next to its tokens.",
     R"("loss": "mask", "train": [{"path": "books.idx"}])",
     "Tokenize conversations with `trainctl data tokenize`, or set data.loss to \"auto\"."},
    {"E0601", "An automatic and a given interval",
     "With checkpoint.interval \"auto\" the run decides after how many steps it saves, from what a save "
     "costs and how often the run fails. every_steps contradicts that.",
     R"("interval": "auto", "every_steps": 500)",
     "Leave one of them out. every_seconds limits an automatic interval; keep_every_steps saves milestones "
     "in any case."},
    {"E0602", "Fixed for the life of a run",
     "What makes a run this run (model, data, seeds, batch, precision, learning rate, optimizer) cannot "
     "change when it resumes. "
     "The mesh, checkpoints, evaluation, logging and launching may change freely; the length and the future "
     "of the schedule, "
     "clipping, lanes and the device may change, too, which the run records. `trainctl explain FIELD` says "
     "which of them a field is.",
     "trainctl resume RUN -s schedule.lr=1e-4",
     "Begin a new run from a checkpoint: trainctl launch RUN/job.json --from RUN@STEP -s schedule.lr=1e-4."},
    {"E0603", "A checkpoint fixes the model's shape",
     "A run launched with --from takes its weights from a checkpoint, so the model must have the shape of "
     "that checkpoint. Learning rate, schedule, optimizer, batch, data and precision may differ.",
     "trainctl launch job.json --from RUN -s model.num_layers=24", "Launch a new run without --from."},
    {"E0604", "A store needs a bucket and a prefix",
     "Copies of the checkpoints go to an object store, below a prefix in a bucket that exists, or into a "
     "folder given by its absolute path.",
     R"("store": "s3://bucket")", "Write s3://bucket/prefix."},
    {"E0605", "Other lanes are other bits",
     "Every data parallel width gives the same bits because the gradients of lanes are added by one fixed "
     "tree. A resume may cut the batch into other lanes, e.g. to become wider than the run has lanes. From "
     "there on the sums are rounded in another order: the loss curve continues, but its last digits differ "
     "from those with the old lanes. The run records it.",
     "trainctl resume RUN -s parallelism.lanes=16",
     "Add --allow-other-bits. With it, a wider parallelism.data alone is enough: lanes become what a "
     "launch at that width would choose."},
    {"E0606", "A store without credentials",
     "checkpoint.store is a bucket, and neither the environment nor ~/.aws/credentials has keys for it.",
     R"("store": "s3://bucket/prefix" without AWS_ACCESS_KEY_ID)",
     "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; or leave checkpoint.store out."},
    {"E0607", "A folder that cannot be written",
     "The folder of the runs or of the checkpoints cannot be made, or this user may not write to it.",
     R"("run_dir": "/read-only/runs")", "Choose another folder, or make this one writable."},
    {"E0701", "NCCL with shared GPUs",
     "NCCL refuses two ranks on one GPU; through host memory they can share it.",
     R"("transport": "nccl" with "ranks_per_gpu": 2)", R"(Use "transport": "host" or "auto".)"},
    {"E0702", "Not enough slots", "launcher.slots is how many ranks this machine may run.",
     R"("slots": 4 with world_size 8)", "Use fewer ranks or more slots; 0 lets ranks share cores."},
    {"E0703", "Unusable environment variable",
     "A variable's name is not empty and holds no `=`, and neither name nor value holds a NUL.",
     R"("env": {"A=B": "1"})", "Correct the name."},
    {"E0704", "Timeouts in the wrong order",
     "A rank names the peers it waits for after collective_timeout_seconds; the run is declared hung after "
     "step_timeout_seconds. The first must "
     "come first, or the verdict names no rank. Likewise a burn-in (launcher.burn_in, and 20 seconds for its "
     "answer) must be over before setup_timeout_seconds and start_skew_seconds.",
     R"("collective_timeout_seconds": 900, "step_timeout_seconds": 600)", "Use 60 and 600."},
    {"E0705", "No node can take the supervisor's place",
     "With fault_tolerance.supervisor_takeover a node starts another supervisor after a quarter of "
     "grace_seconds without contact, which must not be shorter than node_silence_seconds. Agents that "
     "something else starts (launcher.shell \"none\") know one address only, that of the first supervisor.",
     R"("supervisor_takeover": true, "grace_seconds": 3, "node_silence_seconds": 2)",
     "Give grace_seconds at least four times node_silence_seconds, or leave supervisor_takeover out."},
    {"E0706", "A list of hosts that cannot carry the run",
     "launcher.hosts or the hostfile has an entry that is no host, a host twice, or too few slots.",
     R"("hosts": ["node0:8", "node0:8"])", "Correct the entry that the message names."},
    {"E0707", "No CUDA in this program", "device is \"gpu\", and this program was built without CUDA.",
     R"("device": "gpu")", "Build with the CUDA toolkit (README, or `trainctl doctor`), or use \"cpu\"."},
    {"E0708", "No mpirun", "launcher.mpirun is no executable that is found.",
     R"("launcher": {"mpirun": "/opt/none/mpirun"})",
     "Install OpenMPI (openmpi-bin), or give the full path of its mpirun."},
    {"E0709", "A mesh larger than the cluster",
     "plan --cluster gives a cluster with its number of devices, as h100-2048, or as a file with \"nodes\". "
     "Each "
     "rank needs a GPU, or its part of one (launcher.ranks_per_gpu).",
     "--cluster h100-64 with tensor 8, pipeline 4, data 4: 128 ranks",
     "Use a smaller mesh; plan --gpus finds one."},
    {"W0101", "One override replaces another field",
     "A length can be given in tokens or in steps. An override of one replaces the other, which a file or an "
     "override before it gives.",
     R"(-s schedule.total_steps=10, and "total_tokens" in the file)",
     "This is what counts; take the other out where it should never count."},
    {"W0501", "Nothing to evaluate on", "eval.every_steps is set, but data.val and eval.tasks are empty.",
     R"("eval": {"every_steps": 100} without data.val)",
     "Add data.val or eval.tasks, or remove eval.every_steps."},
    {"W0502", "Validation data is never used",
     "data.val is given, but eval.every_steps is 0, so no validation loss is computed.",
     R"("val": [{"path": "data/val.idx"}] without eval.every_steps)",
     R"(Set eval.every_steps, e.g. to 500, or remove data.val.)"},
    {"W0601", "Restarts without checkpoints",
     "fault_tolerance.max_restarts restarts a failed run from its last checkpoint, but none is saved "
     "before the end.",
     R"("max_restarts": 3 with checkpoint.every_steps 0)",
     R"(Set checkpoint.interval to "auto", or checkpoint.every_steps.)"},
};

}  // namespace

const std::vector<CodePage>& code_pages() {
  static const std::vector<CodePage> all = [] {
    std::vector<CodePage> pages;
    for (const auto* part : {&kSyntax, &kValues, &kParallelism, &kOperation, &number_pages(), &watch_pages()})
      pages.insert(pages.end(), part->begin(), part->end());
    std::sort(pages.begin(), pages.end(), [](const auto& a, const auto& b) { return a.code < b.code; });
    return pages;
  }();
  return all;
}

const CodePage* find_code(const std::string& code) {
  const auto found = std::find_if(code_pages().begin(), code_pages().end(),
                                  [&](const CodePage& p) { return p.code == code; });
  return found == code_pages().end() ? nullptr : &*found;
}

}  // namespace trainctl::spec
