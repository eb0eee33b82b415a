// Part of the field table: multi-token prediction.
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {

void declare_mtp(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection mtp(table, sections, "model.mtp",
                     "Multi-token prediction (DeepSeek-V3, GLM-4.5): modules behind the model that predict "
                     "further tokens in training. Evaluation and samples are the model's alone.",
                     Change::branch);
  mtp.integer(
         "num_layers",
         "Modules, of one layer each. The first predicts the token behind the next one from what the head "
         "reads and the embedding of the next token, each other one a token more from what the module "
         "before gives. They share the embedding and the head. 0: none.")
      .to(IN_JOB(model.mtp.num_layers))
      .on_change(Change::never)
      .from(0)
      .upto(kMostMtpLayers)
      .fallback(int64_t{0})
      .left_out_as_default()
      .also({"mtp_num_layers", "num_nextn_predict_layers"})
      .example("1");
  mtp.number("loss_weight",
             "How much the mean of the modules' losses adds to the loss of the next token. Each loss is "
             "the mean over the module's own targets of the whole batch: those of the same document, in the "
             "same sequence.")
      .to(IN_JOB(model.mtp.loss_weight))
      .from(0)
      .upto(100)
      .fallback(0.3)
      .left_out_as_default()
      .also({"mtp_loss_scaling_factor", "mtp_loss_weight"})
      .example("0.1");
  mtp.number("later_loss_weight", "The weight from step `later_from_step` on.")
      .to(IN_JOB(model.mtp.later_loss_weight))
      .from(0)
      .upto(100)
      .fallback(0.1)
      .left_out_as_default();
  mtp.integer(
         "later_from_step",
         "After so many steps the losses count by `later_loss_weight` (DeepSeek-V3: 0.3, and 0.1 after two "
         "thirds of its tokens). 0: never.")
      .to(IN_JOB(model.mtp.later_from_step))
      .from(0)
      .fallback(int64_t{0})
      .left_out_as_default()
      .example("100000");
}

}  // namespace trainctl::spec
