// First part of the field table: the job itself, model, data.
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {

namespace {

void declare_job(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection top(table, sections, "", "", Change::free);
  top.string("$schema",
             "Where an editor finds the JSON Schema of this file (`trainctl validate --schema` prints it). "
             "Ignored by trainctl.")
      .not_resolved()
      .example("\"./trainctl-job.schema.json\"");
  top.integer("version", "Version of the spec's format. This build reads version 1.")
      .to(IN_JOB(version))
      .from(1)
      .upto(1)
      .fallback(int64_t{1});
  top.field(Type::text_list, "extends",
            "Other specs to start from, in order; this file's fields replace theirs (RFC 7386: "
            "objects are merged, lists replaced, null removes). Paths are relative to the file that names "
            "them.")
      .fallback(std::vector<std::string>{})
      .not_resolved()
      .example("[\"base.json\"]");
  top.string("name", "Name of the job; part of the run's id, so letters, digits, `.`, `_` and `-` only.")
      .to(IN_JOB(name))
      .fallback(std::string("job"))
      .identifier()
      .example("\"gpt2-124m-fineweb\"");
  top.string("description", "Free text, kept with the run.")
      .to(IN_JOB(description))
      .fallback(std::string());
  top.integer("seed",
              "Seed of the initial weights. Together with `data.shuffle_seed` it fixes every random choice "
              "of a run.")
      .to(IN_JOB(seed))
      .from(0)
      .fallback(int64_t{1234})
      .on_change(Change::branch);
  top.choice("device", words_of<DeviceChoice>(),
             "What the ranks compute on. `auto` takes GPUs where this build can use them and the node has enough for all ranks, and "
             "the CPU otherwise. `gpu` is accepted for `cuda`.")
      .to(IN_JOB(device))
      .alias("gpu", "cuda")
      .on_change(Change::numerics)
      .bits_by(BitsBy::device)
      .fallback(std::string("auto"));
}

void declare_model(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection model(table, sections, "model",
                       "The transformer: a family, and its shape either by `preset` or field by "
                       "field. Fields given with a preset replace the preset's.",
                       Change::never);
  model
      .choice(
          "family", words_of<Family>(),
          "Architecture: a preset of `model.layer` and `model.position`, and the names of parameters in "
          "files "
          "of Hugging Face. `gpt2`: LayerNorm, GELU, learned positions, biases. `llama`, also Mistral and "
          "SmolLM2: RMSNorm, SwiGLU, rotary positions, no biases. `qwen2`: with biases of q, k and v. "
          "`qwen3`: with a norm of each query and key. `olmo2`, `olmo3`: norms behind the sublayers, and of "
          "all "
          "queries and keys. `gemma2`, `gemma3`: norms before and behind, weights as 1 + w, GeGLU, a scaled "
          "embedding. `mixtral`, `qwen2_moe`, `qwen3_moe`: llama, qwen2 and qwen3 with the names of experts. "
          "`glm4_moe` (GLM-4.5): qwen2 with the experts of DeepSeek-V3. `gpt_oss`: biases everywhere, sinks, "
          "a "
          "clamped SwiGLU. `deepseek_v3`, also Kimi K2: experts of the same names, positions of neighbours, "
          "for "
          "`model.latent`. Each field of "
          "`model.layer` that is given replaces the family's.")
      .to(IN_JOB(model.family))
      .fallback_text("the preset's; required without one")
      .also({"architecture", "model_type"});
  model
      .string("preset",
              "A known model. Its shape is used for every field that is not given; `trainctl init --list` "
              "lists the presets.")
      .to(IN_JOB(model.preset))
      .fallback(std::string())
      .on_change(Change::free)
      .example("\"llama3-8b\"");
  model.integer("hidden_size", "Width of the residual stream.")
      .to(IN_JOB(model.hidden_size))
      .from(1)
      .upto(1 << 20)
      .fallback_text("the preset's; required without one")
      .also({"hidden_dim", "d_model", "n_embd", "dim", "width"})
      .example("768");
  model.integer("num_layers", "Transformer blocks.")
      .to(IN_JOB(model.num_layers))
      .from(1)
      .upto(10000)
      .fallback_text("the preset's; required without one")
      .also({"n_layer", "n_layers", "num_hidden_layers", "depth"})
      .example("12");
  model
      .integer("num_heads",
               "Attention heads; must divide `model.hidden_size` where `model.head_dim` is not given.")
      .to(IN_JOB(model.num_heads))
      .from(1)
      .upto(1 << 16)
      .fallback_text("the preset's; required without one")
      .also({"n_head", "n_heads", "heads", "num_attention_heads"})
      .example("12");
}

void declare_model_widths(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection model(table, sections, "model", "", Change::never);
  model.integer("num_kv_heads", "Key/value heads (grouped-query attention); must divide `model.num_heads`.")
      .to(IN_JOB(model.num_kv_heads))
      .from(1)
      .upto(1 << 16)
      .fallback_text("model.num_heads")
      .also({"n_kv_heads", "kv_heads", "num_key_value_heads"})
      .example("8");
  model.integer("head_dim", "Channels of an attention head.")
      .to(IN_JOB(model.head_dim_given))
      .by_family("hidden_size / num_heads")
      .from(1)
      .upto(1 << 16)
      .also({"head_size", "d_head", "kv_channels"})
      .example("128");
  model.integer("ffn_size", "Width of the feed-forward layer.")
      .to(IN_JOB(model.ffn_size))
      .from(1)
      .upto(1 << 22)
      .fallback_text("4 * hidden_size; with a gate 8/3 * hidden_size rounded up to a multiple of 256")
      .also({"intermediate_size", "ffn_dim", "ffn_hidden_size", "mlp_size"})
      .example("3072");
  model.integer("vocab_size", "Number of token ids; must be at least the tokenizer's.")
      .to(IN_JOB(model.vocab_size))
      .from(2)
      .upto(1 << 24)
      .fallback_text("the preset's; required without one")
      .also({"n_vocab"})
      .example("50257");
  model
      .integer(
          "max_seq_len",
          "Longest sequence the model is made for; where positions are learned, there is a vector for each.")
      .to(IN_JOB(model.max_seq_len))
      .on_change(Change::branch)
      .where_learned(WhereLearned::part_of_shape)
      .from(1)
      .upto(1 << 24)
      .fallback_text("the preset's; required without one")
      .unit(Unit::tokens)
      .also({"n_positions", "max_position_embeddings", "context_length", "block_size", "n_ctx"})
      .example("1024");
}

void declare_model_details(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection model(table, sections, "model", "", Change::never);
  model.choice("norm", words_of<LayerNormKind>(), "Old name of `model.layer.norm`, checked if given.")
      .fallback_text("model.layer.norm")
      .not_listed()
      .not_resolved();
  model.number("norm_eps", "Added to the variance inside the norms.")
      .to(IN_JOB(model.norm_eps))
      .on_change(Change::branch)
      .above(0)
      .upto(1)
      .fallback(1e-5)
      .also({"layer_norm_epsilon", "rms_norm_eps"});
  model
      .choice("activation", words_of<FfnActivation>(),
              "Old name of `model.layer.activation`, checked if given.")
      .fallback_text("model.layer.activation")
      .not_listed()
      .not_resolved();
  model.boolean("tie_embeddings", "Also use the token embedding as the output matrix.")
      .to(IN_JOB(model.tie_embeddings))
      .fallback_text("true for gpt2, gemma2, gemma3 and smollm3; else false; the preset's")
      .also({"tie_word_embeddings"})
      .example("true");
}

void declare_sources(std::vector<Field>& table, std::vector<Section>& sections, const std::string& list,
                     std::vector<DataSource> DataSpec::*members, const char* what, Change change,
                     bool required) {
  DeclareSection data(table, sections, "data", "", change);
  Declare all = data.field(Type::source_list, list, what);
  all.sources(members);
  if (required) all.required();
  all.example("[{\"path\": \"data/" + list + ".idx\"}]");
  DeclareSection entry(table, sections, "data." + list + "[]", "", change);
  entry
      .string("path",
              "Token file, prefix of a Megatron .bin/.idx pair, or a glob of them, taken in the order of "
              "their names.")
      .to_source(IN_SOURCE(path))
      .names(Names::file)
      .required()
      .on_change(Change::free)
      .also({"file", "files", "prefix"})
      .example("\"data/train/*.idx\"");
  entry
      .choice("format", {"auto", "megatron", "llmc", "raw"},
              "Format of the files: `megatron` (.bin + .idx), `llmc` (llm.c "
              "shards), `raw` (bare token ids), `auto` (decided by the header).")
      .to_source(IN_SOURCE(format))
      .fallback(std::string("auto"));
  entry
      .choice("dtype", {"uint16", "uint32"},
              "Integer type of a token id; only for `raw` files, which do not record it.")
      .to_source(IN_SOURCE(dtype))
      .fallback_text("the one in the file; required for raw");
  entry.number("weight", "Share of this source in the mixture, relative to the others'.")
      .to_source(IN_SOURCE(weight))
      .above(0)
      .upto(1e12)
      .fallback(1.0)
      .also({"proportion", "ratio", "share"})
      .example("0.85");
  entry.string("name", "Name of the source in messages and metrics.")
      .to_source(IN_SOURCE(name))
      .fallback(std::string())
      .on_change(Change::free);
}

void declare_data(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection data(table, sections, "data",
                      "Where tokens come from. Sample i of a run depends on (`shuffle_seed`, i) alone, "
                      "whatever the mesh.",
                      Change::branch);
  data.string("tokenizer",
              "Tokenizer that made the token files: a Hugging Face tokenizer.json (byte-level BPE), a "
              "tiktoken file, a "
              "SentencePiece .model file, or `bytes`. Needed for `sample` and to check the vocabulary.")
      .to(IN_JOB(data.tokenizer))
      .names(Names::file_or_bytes)
      .fallback(std::string())
      .on_change(Change::free)
      .example("\"tok/tokenizer.model\"");
  declare_sources(table, sections, "train", &DataSpec::train, "Training data: a mixture of token sources.",
                  Change::branch, true);
  declare_sources(table, sections, "val", &DataSpec::val, "Validation data.", Change::free, false);
  data.integer("seq_len", "Tokens in a training sequence.")
      .to(IN_JOB(data.seq_len))
      .from(1)
      .upto(1 << 24)
      .unit(Unit::tokens)
      .fallback_text("model.max_seq_len")
      .also({"sequence_length", "seq_length", "block_size"})
      .example("1024");
  data.boolean("shuffle", "Visit the samples of each source in random order, a new one each epoch.")
      .to(IN_JOB(data.shuffle))
      .fallback(true);
  data.integer("shuffle_seed", "Seed of the order of samples.")
      .to(IN_JOB(data.shuffle_seed))
      .from(0)
      .fallback(int64_t{1234});
}

void declare_samples(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection data(table, sections, "data", "", Change::branch);
  data.choice("documents", words_of<Documents>(),
              "Whether the documents in a sample are kept apart. `mask`: attention stays inside a document, "
              "positions begin again with it, and the first token of a document is no target "
              "(`data.count_boundary_targets`); the loss is the mean over the targets that count, of the "
              "whole step. Every source must know its documents (Megatron sets do). `ignore`: a sample is "
              "one text. `auto`: `mask` where every source knows its documents; a run keeps what it began "
              "with.")
      .to(IN_JOB(data.documents))
      .fallback(std::string("auto"))
      .also({"document_mask", "reset_attention_mask"})
      .left_out_as_default();
  data.boolean("count_boundary_targets",
               "With `documents: mask`, whether the first token of a document counts as the target of the "
               "token before it.")
      .to(IN_JOB(data.count_boundary_targets))
      .fallback(false)
      .left_out_as_default();
  data.choice(
          "packing", words_of<PackingKind>(),
          "How documents become samples. `stream`: the tokens of a source end to end, cut every `seq_len` "
          "tokens. `best_fit`: no document is cut that fits into a sample; a longer one fills whole "
          "samples, and its rest is a document. Of 1024 documents each that follow each other, the "
          "longest first, each goes into the fullest sample that has room; what stays free is padding, "
          "without targets. Every source must know its documents, which are kept apart (`documents`: "
          "`mask`).")
      .to(IN_JOB(data.packing))
      .fallback(std::string("stream"))
      .left_out_as_default();
  data.choice(
          "loss", words_of<TargetLoss>(),
          "Which targets have a loss. `mask`: those whose weight in the loss file NAME.loss, next to the "
          "token file, is not 0, as `data tokenize` writes it for conversations; those of files without "
          "one all do. `weights`: the loss of each is multiplied by its weight, a whole number up to 255, "
          "and the loss of a step is divided by the sum of the weights. `all`: every target, whatever "
          "files there are. `auto`: `mask` where a training source has a loss file, `weights` where one "
          "has weights above 1, else `all`; a run keeps what it began with.")
      .to(IN_JOB(data.loss))
      .fallback(std::string("auto"))
      .also({"loss_mask", "train_on_inputs"})
      .left_out_as_default();
  data.integer("prefetch_batches", "Steps whose samples each rank reads ahead.")
      .to(IN_JOB(data.prefetch_batches))
      .from(1)
      .upto(1024)
      .fallback(int64_t{4})
      .on_change(Change::free);
}

}  // namespace

void declare_model_and_data(std::vector<Field>& table, std::vector<Section>& sections) {
  declare_job(table, sections);
  declare_model(table, sections);
  declare_model_widths(table, sections);
  declare_model_details(table, sections);
  declare_layer(table, sections);
  declare_init_and_mup(table, sections);
  declare_data(table, sections);
  declare_samples(table, sections);
}

}  // namespace trainctl::spec
