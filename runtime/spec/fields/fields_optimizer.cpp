// The part of the field table that says how gradients change the parameters.
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {

namespace {

void declare_muon(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection muon(table, sections, "optimizer.muon", "Of `optimizer.type` = \"muon\".", Change::branch);
  muon.integer(
          "steps",
          "Newton-Schulz steps of an update. The first five bring singular values to between about 0.7 and "
          "1.2; each one more, of the classical quintic, brings them nearer to 1.")
      .to(IN_JOB(optimizer.muon.steps))
      .from(1)
      .upto(20)
      .fallback(int64_t{5})
      .left_out_as_default();
  muon.choice(
          "scale", words_of<parallel::MuonScale>(),
          "How long an update of an n x m matrix is. `match_rms`: 0.2 sqrt(max(n, m)), as long as AdamW's "
          "usually are, so that its learning rate fits. `spectral`: sqrt(max(1, n / m)).")
      .to(IN_JOB(optimizer.muon.scale))
      .fallback(std::string("match_rms"))
      .left_out_as_default();
  muon.boolean("split_heads",
               "Each head's rows of the query, key and value weights are a matrix of their own. Otherwise "
               "all heads together are one, and queries, keys and values of a fused weight three.")
      .to(IN_JOB(optimizer.muon.split_heads))
      .fallback(false)
      .left_out_as_default();
}

void declare_ema(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection ema(table, sections, "optimizer.ema", "A moving average of the weights.", Change::branch);
  ema.number(
         "decay",
         "After each update the average keeps this part of itself and takes the rest from the weights, in "
         "float32. Checkpoints have it; `sample` and `export` read it with --ema. 0: no average is kept.")
      .to(IN_JOB(optimizer.ema_decay))
      .from(0)
      .upto(0.9999999)
      .fallback(0.0)
      .example("0.999")
      .left_out_as_default();
}

void declare_offload(DeclareSection& optimizer) {
  optimizer
      .choice(
          "offload", words_of<StateOffload>(),
          "Where master weights, moments and averages are. `none`: in the memory of the device. `host`, of "
          "ranks on "
          "GPUs: in pinned memory of the host, which updates, digests and saves read and write where it is, "
          "at "
          "the speed of the link between them. `disk`: in a "
          "file for each rank (`optimizer.offload_directory`); updates, digests and saves bring them into "
          "memory part by part, of which at most three are there, while the disk reads the next and writes "
          "the last. A step then reads and writes all of them once, and a digest of the state "
          "(`observability.state_digest_every_steps`) reads them twice: the same bits, in less memory, at "
          "the speed of the disk. `disk` is for ranks on CPUs; its copies in memory (`checkpoint.memory`) "
          "would take what it saves: they are best `off`, or `one`. Neither is for `muon`, whose updates "
          "need whole matrices.")
      .to(IN_JOB(optimizer.offload))
      .on_change(Change::free)
      .fallback(std::string("none"))
      .left_out_as_default()
      .also({"optimizer_offload", "offload_optimizer", "cpu_offload"})
      .example("\"disk\"");
  optimizer
      .string("offload_directory",
              "Of `optimizer.offload` = \"disk\": an absolute path to a folder on a disk of each node, no "
              "network file system and no memory. The files have no names there: nothing is left of a rank "
              "that ends, however it does. Empty: the run's scratch folder in /tmp.")
      .to(IN_JOB(optimizer.offload_directory))
      .on_change(Change::free)
      .fallback(std::string())
      .left_out_as_default()
      .also({"nvme_path"})
      .example("\"/local/scratch\"");
}

/// In which formats the state of a parameter is kept.
void declare_formats(DeclareSection& optimizer) {
  optimizer
      .choice(
          "moments", words_of<kernels::Moments>(),
          "The format of the moments between steps. `f32`: 4 bytes each. `bf16`: 2. `int8`: 1, and a scale "
          "for each block of 256 (arXiv:2110.02861). Both round at random with the right mean, by a hash "
          "of the value and the step, so that the bits are the same on every mesh; the update is computed "
          "in float32. Muon keeps the momentum of its matrices in f32.")
      .to(IN_JOB(optimizer.moments))
      .on_change(Change::never)
      .fallback(std::string("f32"))
      .left_out_as_default();
  optimizer
      .choice(
          "master_weights", words_of<MasterWeights>(),
          "`f32`: updates change weights in float32, of which products read bf16 copies: 6 bytes for a "
          "weight. `none`: there are the bf16 weights alone, 2 bytes: an update reads them, is computed in "
          "float32 and rounds what it writes up or down at random with the right mean, by a hash of the "
          "seed, the parameter, the element and the step, so that the bits are the same on every mesh. "
          "Norms, biases and routers stay f32, and so do the numbers that balance experts. It costs "
          "accuracy: weights have 8 bits, and their noise grows with each step (a tiny Llama ends within 2 "
          "% of the loss after 500 steps), so moments in fewer bits, ZeRO and an offload come first. For "
          "`precision.compute` = \"bf16\" on CPUs, not for FP8 products and not for `muon`.")
      .to(IN_JOB(optimizer.master_weights))
      .on_change(Change::never)
      .fallback(std::string("f32"))
      .left_out_as_default()
      .also({"master_weight", "main_params_dtype", "use_precision_aware_optimizer"})
      .example("\"none\"");
}

void declare_optimizer(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection optimizer(table, sections, "optimizer", "How gradients change the parameters, in float32.",
                           Change::branch);
  optimizer
      .choice(
          "type", words_of<OptimizerType>(),
          "The rule of an update. `adamw` (arXiv:1711.05101): keeps two moments of each parameter. `lion` "
          "(arXiv:2302.06675): the sign of a moment; keeps one. `sgd`: SGD with momentum; keeps one. "
          "`muon` (arXiv:2502.16982): a layer's matrices move along their momentum, made orthogonal by a "
          "few products; embeddings, head and vectors have AdamW. All decay weights apart from gradients.")
      .to(IN_JOB(optimizer.type))
      .on_change(Change::never)
      .fallback(std::string("adamw"))
      .left_out_as_default();
  optimizer.number("momentum", "Of `muon` and `sgd`: the part of the momentum that a step keeps.")
      .to(IN_JOB(optimizer.momentum))
      .from(0)
      .upto(0.999999)
      .fallback(0.95)
      .left_out_as_default();
  declare_formats(optimizer);
  optimizer.number("beta1", "Decay of the first moment.")
      .to(IN_JOB(optimizer.beta1))
      .from(0)
      .upto(0.999999)
      .fallback(0.9);
  optimizer.number("beta2", "Decay of the second moment.")
      .to(IN_JOB(optimizer.beta2))
      .from(0)
      .upto(0.9999999)
      .fallback(0.95);
  optimizer.number("eps", "Added to the root of the second moment.")
      .to(IN_JOB(optimizer.eps))
      .above(0)
      .upto(1)
      .fallback(1e-8);
  optimizer.number("weight_decay", "Decoupled weight decay, multiplied by the learning rate.")
      .to(IN_JOB(optimizer.weight_decay))
      .from(0)
      .upto(100)
      .fallback(0.1)
      .also({"wd"});
  optimizer
      .field(Type::text_list, "decay_exclude", "Kinds of parameters without weight decay.",
             words_of<DecayKind>())
      .to(IN_JOB(optimizer.decay_exclude))
      .fallback(std::vector<std::string>{"norm", "bias"})
      .example("[\"norm\", \"bias\", \"embedding\"]");
  optimizer.number("grad_clip", "Largest norm of the whole gradient; 0 turns clipping off.")
      .to(IN_JOB(optimizer.grad_clip))
      .on_change(Change::numerics)
      .from(0)
      .upto(1e9)
      .fallback(1.0)
      .also({"clip_grad", "max_grad_norm", "gradient_clipping"});
  declare_offload(optimizer);
}

}  // namespace

void declare_optimizers(std::vector<Field>& table, std::vector<Section>& sections) {
  declare_optimizer(table, sections);
  declare_muon(table, sections);
  declare_ema(table, sections);
}

}  // namespace trainctl::spec
