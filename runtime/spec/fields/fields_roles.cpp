// Part of the field table: how parameters begin and move by their role, and muP.
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {
namespace {

void declare_init(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection init(table, sections, "model.init", "Initial weights.", Change::branch);
  init.number("std",
              "Standard deviation of the normal distribution of the initial weights; projections back into "
              "the residual stream are scaled by 1/sqrt(2 * num_layers).")
      .to(IN_JOB(model.init.std))
      .above(0)
      .upto(10)
      .fallback(0.02)
      .also({"init_std", "initializer_range"});
  init.string("from", "Folder of Hugging Face safetensors to start from instead of random weights.")
      .to(IN_JOB(model.init.from))
      .names(Names::file)
      .fallback(std::string())
      .example("\"models/gpt2\"");
  init.choice("type", words_of<InitKind>(),
              "Distribution of the initial weights. `normal`: std * z. `truncated_normal`: the same where "
              "|z| <= `cut`; other elements are drawn again, until they are within. The draws of an element "
              "depend on the seed, the parameter's name and the element's place in the whole parameter "
              "alone, so that every mesh begins with the same weights.")
      .to(IN_JOB(model.init.type))
      .fallback(std::string("normal"))
      .left_out_as_default();
  init.number("cut", "Where `truncated_normal` cuts, in standard deviations, which are those before the cut.")
      .to(IN_JOB(model.init.cut))
      .from(1)
      .upto(10)
      .fallback(3.0)
      .left_out_as_default();
  init.number("embedding_std",
              "Standard deviation of the embeddings of tokens and of learned positions. 0: `std`.")
      .to(IN_JOB(model.init.embedding_std))
      .from(0)
      .upto(10)
      .fallback(0.0)
      .left_out_as_default()
      .example("1.0");
  init.boolean("residual_scale",
               "The last matrix of each sublayer, which feeds the residual stream, begins scaled by "
               "1/sqrt(2 * num_layers), as in GPT-2. Every family has this.")
      .to(IN_JOB(model.init.residual_scale))
      .fallback(true)
      .left_out_as_default();
  init.field(Type::text_list, "zero_output",
             "What begins as zeros: the last matrix of each sublayer (`sublayers`), so that a layer begins "
             "as the identity, and the `head`, so that the first loss is ln(vocab_size).",
             words_of<ZeroOutput>())
      .to(IN_JOB(model.init.zero_output))
      .fallback(std::vector<std::string>{})
      .left_out_as_default()
      .example("[\"sublayers\", \"head\"]");
}

}  // namespace

void declare_init_and_mup(std::vector<Field>& table, std::vector<Section>& sections) {
  declare_init(table, sections);
  DeclareSection mup(
      table, sections, "model.mup",
      "Maximal update parametrisation (Tensor Programs V, arXiv:2203.03466): learning rates and initial "
      "weights that are tuned at a small width hold at a larger one.",
      Change::branch);
  mup.integer(
         "base_hidden_size",
         "The width at which `schedule.lr`, `model.init.*` and `optimizer.*` hold as given. With r = "
         "base_hidden_size / hidden_size, matrices of layers begin with std * sqrt(r) and have r times the "
         "learning rate (AdamW, Lion), the logits are multiplied by r, and attention scores by "
         "sqrt(base_head_dim) / head_dim. Muon: sqrt(r) times the learning rate with "
         "`match_rms`, as given with `spectral`. SGD: 1/r times for all but these matrices. Weight decay a "
         "step stays as given. Other sizes of a layer are taken to grow with the width.")
      .to(IN_JOB(model.mup.base_hidden_size))
      .from(0)
      .upto(1 << 20)
      .fallback(int64_t{0})
      .fallback_text("none: no muP")
      .left_out_as_default()
      .also({"mup_base_hidden_size", "mup_base_width", "base_width"})
      .example("256");
  mup.integer("base_head_dim",
              "Channels of a head of the base model. Give it where wider models have wider heads, not more.")
      .to(IN_JOB(model.mup.base_head_dim))
      .from(0)
      .upto(1 << 16)
      .fallback(int64_t{0})
      .fallback_text("model.head_dim")
      .left_out_as_default()
      .example("64");
}

void declare_role_factors(std::vector<Field>& table, std::vector<Section>& sections) {
  struct Role {
    const char *name, *what;
    double RoleFactors::*member;
  };
  const Role roles[] = {
      {"embedding", "the embeddings of tokens and of learned positions", &RoleFactors::embedding},
      {"head", "the output matrix, where it is not the embedding", &RoleFactors::head},
      {"matrix", "the matrices of layers", &RoleFactors::matrix},
      {"vector", "norms, biases and scalars of heads", &RoleFactors::vector}};
  struct Factor {
    const char *section, *text, *of;
    RoleFactors OptimizerSpec::*member;
    double most;
  };
  const Factor factors[] = {
      {"optimizer.lr_scale",
       "Factors of the learning rate by the role of a parameter, at every step; weight decay is multiplied "
       "by the rate, and so by them.",
       "Factor of the learning rate of {}. 0: they stay as they begin.", &OptimizerSpec::lr_scale, 1000},
      {"optimizer.weight_decay_scale",
       "Factors of `optimizer.weight_decay` by the role of a parameter; kinds in `optimizer.decay_exclude` "
       "have none.",
       "Factor of the weight decay of {}.", &OptimizerSpec::weight_decay_scale, 1000}};
  for (const Factor& factor : factors) {
    DeclareSection section(table, sections, factor.section, factor.text, Change::branch);
    for (const Role& role : roles) {
      std::string text = factor.of;
      text.replace(text.find("{}"), 2, role.what);
      section.number(role.name, std::move(text))
          .to([ of = factor.member, member = role.member ](JobSpec & job) -> auto& {
            return job.optimizer.*of.*member;
          })
          .from(0)
          .upto(factor.most)
          .fallback(1.0)
          .left_out_as_default()
          .example("0.5");
    }
  }
}

}  // namespace trainctl::spec
