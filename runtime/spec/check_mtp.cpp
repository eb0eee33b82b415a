// Checks of multi-token prediction.
#include <fmt/format.h>

#include "runtime/spec/resolution.h"

namespace trainctl::spec {

void check_mtp(Resolution& r) {
  const char *modules = "model.mtp.num_layers", *later = "model.mtp.later_loss_weight",
             *from = "model.mtp.later_from_step";
  const MtpSpec& mtp = r.job.model.mtp;
  if (!r.sound(modules)) return;
  if (mtp.num_layers == 0) {
    for (const Field& field : fields())
      if (field.path.starts_with("model.mtp.") && field.path != modules && r.given_by_user(field.path) &&
          r.sound(field.path) && field.get(r.job) != field.fallback)
        r.report("E0224", fmt::format("`{}` has no effect here", field.path), {field.path, modules},
                 {"give model.mtp.num_layers, too"});
    return;
  }
  if (r.sound({later, from}) && mtp.later_from_step == 0 && r.given_by_user(later) &&
      mtp.later_loss_weight != MtpSpec{}.later_loss_weight)
    r.report("E0224", fmt::format("`{}` has no effect here", later), {later, from},
             {"give model.mtp.later_from_step, too"});
  if (r.sound("data.seq_len") && r.job.data.seq_len <= mtp.num_layers)
    r.report("E0257",
             fmt::format("sequences of {} tokens have no target {} places ahead", r.job.data.seq_len,
                         mtp.num_layers + 1),
             {modules, "data.seq_len"}, {"use longer sequences or fewer modules"});
}

}  // namespace trainctl::spec
