#include "runtime/train/generate/trained_model.h"

#include <fmt/format.h>

#include "ckpt/view.h"
#include "runtime/base/error.h"
#include "runtime/spec/parse.h"

namespace trainctl {

std::unique_ptr<Generator> TrainedModel::on(kernels::Backend& backend, const JobSpec& used,
                                            int64_t pass_tokens) {
  return std::visit(
      [&](const auto& from) { return std::make_unique<Generator>(used, *from, backend, pass_tokens); },
      weights);
}

JobSpec job_of(const ckpt::Checkpoint& checkpoint) {
  const ParsedJob parsed =
      parse_job({.text = checkpoint.state().resolved_spec_json, .file = checkpoint.path()});
  if (parsed.ok()) return parsed.job;
  throw Error(ErrorCode::kCheckpoint,
              fmt::format("{} holds no usable job spec: {}", checkpoint.path(),
                          parsed.diagnostics.empty() ? "" : parsed.diagnostics.front().message));
}

TrainedModel checkpoint_model(FileSystem& fs, const std::string& path, bool averages) {
  auto checkpoint = ckpt::Checkpoint::open(fs, path);
  if (averages) checkpoint = ckpt::averages_of(std::move(checkpoint));
  JobSpec job = job_of(*checkpoint);
  const int64_t step = checkpoint->state().step;
  return {path, std::move(job), step, std::move(checkpoint)};
}

}  // namespace trainctl
