// Second part of the field table: how a step is computed, on which mesh, and how weights move.
#include "parallel/schedules.h"
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {

namespace {

void declare_batch(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection batch(table, sections, "batch", "How much goes into one optimizer step.", Change::branch);
  batch
      .integer("global_tokens", "Tokens in a step over all ranks: `global_sequences` times `data.seq_len`.")
      .from(1)
      .upto(1e12)
      .unit(Unit::tokens)
      .not_resolved()
      .example("\"512k\"");
  batch
      .integer("global_sequences",
               "Sequences in a step over all ranks; a multiple of `parallelism.lanes` * "
               "`micro_sequences`.")
      .to(IN_JOB(batch.global_sequences))
      .from(1)
      .upto(1 << 30)
      .unit(Unit::sequences)
      .fallback_text("the smallest multiple of lanes * micro_sequences from 32 up")
      .also({"batch_size", "global_batch_size", "global_batch"})
      .example("512");
  batch
      .integer("micro_sequences",
               "Sequences in one micro-batch: what a pipeline stage computes at a time. Smaller takes "
               "less memory.")
      .to(IN_JOB(batch.micro_sequences))
      .on_change(Change::numerics)
      .bits_by(BitsBy::sum_order)
      .from(1)
      .upto(1 << 20)
      .unit(Unit::sequences)
      .fallback(int64_t{1})
      .also({"micro_batch_size", "micro_batch", "device_batch_size"});
}

void declare_mesh_choice(DeclareSection& parallel) {
  parallel.word_is("mesh");
  parallel
      .choice(
          "mesh", words_of<MeshFrom>(),
          "`auto`: launch, validate, plan and simulate search for the mesh on which a step is predicted to "
          "be fastest and that fits: widths, schedule, virtual stages, ZeRO, recomputation and micro-batch. "
          "What the job gives of these stays; give `tensor`, `lanes`, `context_blocks` and "
          "`batch.micro_sequences` for bits that do not depend on the choice. The number of ranks is "
          "`world_size` if it is given, else the slots of the nodes, the GPUs of this machine, or as many "
          "as its cores are enough for (`threads_per_rank` each, where that is given). Chosen once: the "
          "run's own job has the result. `plan --alternatives` shows what else there is.")
      .to(IN_JOB(parallelism.mesh_from))
      .fallback(std::string("given"))
      .left_out_as_default()
      .example("\"auto\"");
}

constexpr const char* kHowRanksShare =
    "How ranks share the work: world_size = tensor * context * pipeline * data; or, for the fastest mesh "
    "that "
    "fits the launch, \"parallelism\": \"auto\". That is short for `{\"mesh\": \"auto\"}`. "
    "`launch --submit` and `manifest` choose it for the nodes' --device.";

void declare_parallelism(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection parallel(table, sections, "parallelism", kHowRanksShare, Change::free);
  declare_mesh_choice(parallel);
  parallel.integer("world_size", "Ranks in all.")
      .to(IN_JOB(parallelism.world_size))
      .from(1)
      .upto(1 << 20)
      .or_auto("tensor * context * pipeline * data")
      .also({"num_gpus", "gpus", "ranks", "n_ranks"})
      .example("8");
  parallel
      .integer("tensor",
               "Tensor parallel size: ranks that share each matrix. Divides the heads and "
               "`model.ffn_size`; divides the KV heads, or is a multiple of them: neighbouring ranks then "
               "share a KV head.")
      .to(IN_JOB(parallelism.tensor))
      .on_change(Change::numerics)
      .bits_by(BitsBy::sum_order)
      .from(1)
      .upto(1024)
      .fallback(int64_t{1})
      .also({"tp", "tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size"})
      .example("2");
  declare_sharing(parallel);
  parallel
      .integer("widest_tensor",
               "For a run whose `tensor` is, or will be, more than its KV heads: the largest one. Chunks "
               "of checkpoints, and with them the blocks of moments in int8 and the rounding of those in "
               "bf16, are cut for every size up to it. A launch with such a `tensor` sets it; a resume at "
               "another size keeps it. 0: `tensor` is never more than the KV heads.")
      .to(IN_JOB(parallelism.widest_tensor))
      .on_change(Change::numerics)
      .from(0)
      .upto(1024)
      .fallback(int64_t{0})
      .left_out_as_default()
      .example("16");
  parallel
      .integer("pipeline",
               "Pipeline stages: groups of ranks that share the layers. `stage_layers` gives the layers of "
               "each.")
      .to(IN_JOB(parallelism.pipeline))
      .from(1)
      .upto(1024)
      .fallback(int64_t{1})
      .also({"pp", "stages", "pipeline_parallel", "pipeline_parallel_size"})
      .example("2");
  parallel
      .integer("data",
               "Data parallel size: copies of the pipeline, each on its part of the batch. Any number up "
               "to `lanes`; if it does not divide `lanes`, some ranks have one lane more, and the others "
               "wait for them.")
      .to(IN_JOB(parallelism.data))
      .from(1)
      .upto(1 << 20)
      .or_auto("world_size / (tensor * context * pipeline), 1 if that is auto, too")
      .also({"dp", "data_parallel", "data_parallel_size"})
      .example("4");
  parallel
      .boolean("sequence_parallel",
               "Also split the work between matrix products along the sequence over the tensor group "
               "(arXiv:2205.05198): less memory, same traffic.")
      .to(IN_JOB(parallelism.sequence_parallel))
      .on_change(Change::numerics)
      .fallback(true)
      .also({"sp"});
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const parallel::ScheduleKind& kind : parallel::schedules()) names.push_back(kind.name);
  return names;
}
std::string schedules_text() {
  std::string text = "Order of forward and backward passes.";
  for (const parallel::ScheduleKind& kind : parallel::schedules())
    text += std::string(" `") + kind.name + "`: " + kind.text + ".";
  return text + " All give the same bits.";
}

void declare_pipeline(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection parallel(table, sections, "parallelism", "", Change::free);
  parallel
      .choice("pipeline_schedule", schedule_names(), schedules_text())
      .to(IN_JOB(parallelism.schedule))
      .fallback(std::string("1f1b"));
  parallel
      .integer("virtual_stages",
               "Virtual stages, runs of layers, that a pipeline rank holds: 2 or more for `interleaved`, any "
               "number for `merged-1f1b`, 2 for `zb-v` and `dualpipev`, else 1.")
      .to(IN_JOB(parallelism.virtual_stages))
      .from(1)
      .upto(1024)
      .fallback(int64_t{1})
      .also({"num_chunks", "virtual_pipeline", "chunks"});
  parallel
      .field(Type::integer_list, "stage_layers",
             "Layers of each virtual stage in the order of the model: pipeline * virtual_stages entries that "
             "add up to `model.num_layers`. The first one also has the embedding, the last one the head; "
             "only these two may have 0 layers. `auto`: so that the slowest stage takes as few FLOPs as "
             "possible. The same bits either way.")
      .to(IN_JOB(parallelism.stage_layers))
      .from(0)
      .upto(10000)
      .or_auto("by the counted FLOPs of a layer and of the head")
      .also({"layer_split", "num_layers_per_stage", "pipeline_layout", "partition"})
      .example("[4, 4, 3, 1]");
}

void declare_exchange(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection parallel(table, sections, "parallelism", "", Change::free);
  parallel
      .choice("transport", {"auto", "nccl", "host"},
              "How ranks on GPUs move device memory. `nccl`: directly, each rank needs a GPU of its own. `host`: through pinned host "
              "memory and MPI. `auto`: nccl, or host where ranks share GPUs. The same bits either way, if `reduction` is exact.")
      .to(IN_JOB(parallelism.transport))
      .fallback(std::string("auto"));
  parallel
      .choice("reduction", {"exact", "fast"},
              "How gradients are added over data-parallel ranks. `exact`: in the order of the lanes' tree, the same bits at every width. "
              "`fast`: by NCCL in its own order; the same bits only on the same mesh, buckets and GPUs. Where NCCL "
              "does not carry them (CPUs, transport host), `fast` does what `exact` does.")
      .to(IN_JOB(parallelism.reduction))
      .fallback(std::string("exact"))
      .on_change(Change::numerics)
      .bits_by(BitsBy::sum_order);
  parallel
      .choice(
          "reduction_dtype", {"f32", "bf16"},
          "Format in which gradients travel between data-parallel ranks. `bf16`: half the bytes, and buckets "
          "of half the memory. A lane's gradient, and every sum of the lanes' tree but the last, is then "
          "rounded to bf16 before it is added; sums are made and kept in f32. That happens whether a value "
          "is sent or not, so every width and ZeRO stage gives the same bits, but others than f32. With "
          "`reduction` fast, NCCL adds in bf16.")
      .to(IN_JOB(parallelism.reduction_dtype))
      .alias("fp32", "f32")
      .fallback(std::string("f32"))
      .on_change(Change::numerics)
      .also({"grad_reduce_dtype", "reduce_dtype", "gradient_dtype"})
      .example("\"bf16\"");
  parallel
      .choice(
          "reduction_algorithm", words_of<parallel::ExchangeChoice>(),
          "How a bucket travels between its owners and the other data-parallel ranks; the same bits either "
          "way. `halving`: log2(data) rounds with one peer each, where data is a power of two. `direct`: "
          "two rounds with all others. `auto`: for each bucket the way that takes less time, estimated "
          "from its size, the number of ranks and how many share a node; if the times are close, the way "
          "that sends fewer bytes. `plan` shows the choice. The other two values are for measurements.")
      .to(IN_JOB(parallelism.reduction_algorithm))
      .not_listed()
      .fallback(std::string("auto"));
}

void declare_receives(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection parallel(table, sections, "parallelism", "", Change::free);
  parallel
      .boolean(
          "early_receives",
          "Begin to receive a pipeline message as soon as its memory is free, so that it travels during "
          "compute. `false`: when the computation comes to need it. Over NCCL a receive that waits holds "
          "a few multiprocessors and one of the GPU's queues. The same bits either way.")
      .to(IN_JOB(parallelism.early_receives))
      .not_listed()
      .left_out_as_default()
      .fallback(true);
}

void declare_nccl(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection nccl(table, sections, "parallelism.nccl",
                      "Resources of NCCL where it carries the exchanges. Advanced; no value changes a bit.",
                      Change::free);
  nccl.integer("blocks",
               "Limit of thread blocks (NCCL's CTAs) for one exchange of a tensor-, data- or expert-parallel "
               "group. "
               "Each occupies a multiprocessor of the GPU while it waits for its peer, and has a buffer "
               "for each peer. More of them than the links between two GPUs need only slow down the "
               "compute.")
      .to(IN_JOB(parallelism.nccl.blocks))
      .not_listed()
      .from(1)
      .upto(32)
      .fallback(int64_t{16})
      .also({"nccl_max_ctas", "max_ctas", "nccl_nchannels"});
  nccl.integer("edge_blocks",
               "The same for messages between pipeline stages, which wait during compute for most of a step.")
      .to(IN_JOB(parallelism.nccl.edge_blocks))
      .not_listed()
      .from(1)
      .upto(8)
      .fallback(int64_t{4});
  nccl.integer("buffer_kib",
               "Size of the buffer of one connection in one thread block (NCCL_BUFFSIZE; `launcher.env` "
               "wins). Less saves GPU memory at the price of bandwidth; `plan` counts it.")
      .to(IN_JOB(parallelism.nccl.buffer_kib))
      .not_listed()
      .from(64)
      .upto(65536)
      .fallback(int64_t{4096})
      .also({"nccl_buffsize"});
  nccl.integer("traffic_class",
               "Traffic class of messages between nodes, for networks that keep classes apart (NCCL 2.26 or "
               "later). -1: NCCL's own.")
      .to(IN_JOB(parallelism.nccl.traffic_class))
      .not_listed()
      .from(-1)
      .upto(255)
      .fallback(int64_t{-1})
      .also({"nccl_ib_tc"});
}

void declare_execution(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection parallel(table, sections, "parallelism", "", Change::free);
  parallel
      .integer("zero_stage",
               "What the data-parallel ranks divide among themselves (ZeRO, arXiv:1910.02054). 0: nothing, "
               "each keeps the whole optimizer state. 1: the optimizer state. 2: also the gradients: those "
               "of a lane are reduced as soon as they are complete. 3: also the weights: those of a layer "
               "are gathered while the layer before is computed, and again for its backward pass, for "
               "every micro-batch. All give the same bits. With 2 and 3 gradients take less memory if a "
               "lane is one micro-batch, but a rank sends them once for each of its lanes.")
      .to(IN_JOB(parallelism.zero_stage))
      .from(0)
      .upto(3)
      .fallback(int64_t{1})
      .also({"zero"});
  parallel
      .boolean(
          "reshard_after_forward",
          "With ZeRO-3: free the gathered weights of a part after its forward pass and gather them again "
          "for its backward pass. `false`: they stay from their first use in a step to the last one. Each "
          "is then sent once a step, and a rank needs memory for the weights of all its parts; `plan` says "
          "how much. The same bits either way.")
      .to(IN_JOB(parallelism.reshard_after_forward))
      .fallback(true);
  parallel
      .integer(
          "lanes",
          "Equal parts of the global batch whose gradients are added by a fixed tree. Every data-parallel "
          "width up to this number gives the same bits, so it limits how wide a run can become without "
          "other bits. A power of two. It is fixed at launch; only `resume --allow-other-bits` changes it. "
          "A rank with 2, 4 or 8 lanes holds 2, 3 or 4 sums of its gradients (f32) at one time; with "
          "ZeRO-2 and 3 it sends its gradients once for each lane instead.")
      .to(IN_JOB(parallelism.lanes))
      .from(1)
      .upto(1 << 20)
      .or_auto(
          "the first power of two from parallelism.data up; with ZeRO-0 and 1 up to 8 times that, if the "
          "batch has enough micro-batches and the additional sums take at most 256 MiB a rank")
      .on_change(Change::numerics)
      .bits_by(BitsBy::sum_order)
      .decided_at_birth()
      .example("8");
  parallel
      .number(
          "bucket_mib",
          "Size of the buckets in which gradients are reduced and parameters gathered, counted in f32; "
          "four are in memory at a time. At least `checkpoint.chunk_mib`, or the largest matrix. In one with "
          "fewer chunks than data-parallel ranks some ranks own nothing, and others send more.")
      .to(IN_JOB(parallelism.bucket_mib))
      .above(0)
      .upto(65536)
      .unit(Unit::mebibytes)
      .or_auto(
          "2 * data * context * checkpoint.chunk_mib, so that each rank owns a part of a bucket, but at "
          "least 64 and a chunk, and at most 128; in a small model about half of a rank's gradients, at least "
          "25")
      .example("25");
  parallel.integer("threads_per_rank", "Threads each CPU rank computes with. Never changes results.")
      .to(IN_JOB(parallelism.threads_per_rank))
      .from(1)
      .upto(4096)
      .or_auto("cores / world_size, at least 1")
      .also({"num_threads", "threads"})
      .example("4");
}

void declare_schedule(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection schedule(table, sections, "schedule",
                          "How long to train and with which learning rate: warm-up, then `type`. "
                          "Lengths are given in tokens or in steps; tokens are rounded up to whole steps.",
                          Change::numerics);
  schedule.integer("total_tokens", "Tokens to train on.")
      .from(1)
      .upto(1e18)
      .unit(Unit::tokens)
      .not_resolved()
      .example("\"10B\"");
  schedule.integer("total_steps", "Optimizer steps to train for.")
      .to(IN_JOB(schedule.total_steps))
      .from(1)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback_text("from total_tokens; one of the two is required")
      .also({"max_steps", "num_steps", "iterations", "max_iters"})
      .example("1000");
  schedule.number("lr", "Highest learning rate, reached after the warm-up.")
      .to(IN_JOB(schedule.lr))
      .on_change(Change::branch)
      .above(0)
      .upto(10)
      .fallback(3e-4)
      .also({"learning_rate", "max_lr"})
      .example("3e-4");
  schedule.number("min_lr", "Learning rate at the end of the decay.")
      .to(IN_JOB(schedule.min_lr))
      .from(0)
      .upto(10)
      .fallback(0.0)
      .also({"final_lr", "end_lr"})
      .example("3e-5");
  schedule
      .choice("type", {"constant", "linear", "cosine", "wsd"},
              "Shape after the warm-up. `constant`: stays at lr. `linear`, "
              "`cosine`: fall to min_lr at the end of the run. `wsd`: stays at lr, then falls linearly to "
              "min_lr over the "
              "last `decay_steps`.")
      .to(IN_JOB(schedule.type))
      .fallback(std::string("cosine"))
      .also({"lr_schedule", "decay_style"});
  schedule
      .choice("batch_lr_rule", {"none", "linear", "sqrt"},
              "How lr and min_lr change if a run that begins from another run's checkpoint (`launch "
              "--from`) has another global batch. They are given for the batch of the other run and are "
              "multiplied once, with k = the ratio of the tokens in a step: by k (`linear`, "
              "arXiv:1706.02677), by the square root of k (`sqrt`, for Adam: arXiv:2205.10287), or not at "
              "all (`none`).")
      .to(IN_JOB(schedule.batch_lr_rule))
      .on_change(Change::free)
      .fallback(std::string("none"))
      .also({"lr_scaling"});
}

void declare_schedule_phases(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection schedule(table, sections, "schedule", "", Change::numerics);
  schedule.integer("warmup_tokens", "Tokens over which the learning rate rises from 0 to lr.")
      .from(0)
      .upto(1e18)
      .unit(Unit::tokens)
      .not_resolved()
      .on_change(Change::branch)
      .example("\"100M\"");
  schedule.integer("warmup_steps", "Steps over which the learning rate rises from 0 to lr.")
      .to(IN_JOB(schedule.warmup_steps))
      .on_change(Change::branch)
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback_text("from warmup_tokens; otherwise 0")
      .also({"warmup", "warmup_iters"})
      .example("100");
  schedule.integer("decay_tokens", "Length of the final decay of `wsd` in tokens.")
      .from(1)
      .upto(1e18)
      .unit(Unit::tokens)
      .not_resolved()
      .example("\"1B\"");
  schedule
      .integer("decay_steps",
               "Length of the final decay of `wsd` in steps; the other shapes always end with the run.")
      .to(IN_JOB(schedule.decay_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback_text("wsd: a fifth of total_steps; otherwise 0")
      .also({"decay"})
      .example("200");
}

}  // namespace

void declare_training(std::vector<Field>& table, std::vector<Section>& sections) {
  declare_batch(table, sections);
  declare_parallelism(table, sections);
  declare_pipeline(table, sections);
  declare_exchange(table, sections);
  declare_receives(table, sections);
  declare_nccl(table, sections);
  declare_execution(table, sections);
  declare_numbers(table, sections);
  declare_optimizers(table, sections);
  declare_role_factors(table, sections);
  declare_schedule(table, sections);
  declare_schedule_phases(table, sections);
}

}  // namespace trainctl::spec
