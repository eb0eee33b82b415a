#include "runtime/exchange/forward_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "ckpt/view.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "runtime/train/generate/asked_format.h"
#include "runtime/train/generate/sample.h"

namespace trainctl {
namespace {

constexpr uint64_t kTokenSeed = 20260101;

/// A checkpoint whose weights are rounded as they are read, each to what files in bfloat16 have of it.
class Rounded final : public ckpt::CheckpointView {
 public:
  Rounded(ckpt::Checkpoint& checkpoint, const JobSpec& job)
      : CheckpointView(checkpoint), table_(parameter_table(job.model, job.optimizer)) {}
  void read(const std::string& name, ckpt::Role role, const parallel::Box& box, void* out) override {
    CheckpointView::read(name, role, box, out);
    if (role != ckpt::Role::master || dtype_of(name, role) == DType::bf16) return;
    const Param& param = table_.params[size_t(table_.find(name))];
    if (stored_dtype(table_, param, DType::bf16) == DType::f32) return;
    auto* const values = static_cast<float*>(out);
    std::transform(values, values + box.count(), values, [](float value) { return float(bf16(value)); });
  }

 private:
  const ParamTable table_;
};

using Sequences = std::vector<std::vector<int32_t>>;

Sequences sequences_of(const JobSpec& job, int64_t tokens) {
  const Philox random(kTokenSeed, RandomPurpose::kSample);
  Sequences result;
  for (int64_t i = 0; i < tokens; ++i) {
    if (i % job.data.seq_len == 0) result.emplace_back();
    const auto id = int32_t(random.uniform(uint64_t(i)) * double(job.model.vocab_size));
    result.back().push_back(std::min(id, int32_t(job.model.vocab_size - 1)));
  }
  return result;
}

std::vector<float> logits_of(Generator generator, const Sequences& sequences) {
  std::vector<float> all;
  for (const auto& sequence : sequences) {
    const std::vector<float> logits = generator.logits(sequence);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

/// Infinite where one of them is not finite.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  ENSURE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
    largest = std::max(largest, std::abs(double(a[i]) - double(b[i])));
  }
  return largest;
}

}  // namespace

ForwardCheck check_forward(FileSystem& fs, const JobSpec& job, ckpt::Checkpoint& checkpoint,
                           const std::string& folder, DType dtype, int64_t tokens, int threads) {
  JobSpec in_f32 =
      in_format(job, DType::f32);  // as what loads the folder may compute: its files know of no FP8
  in_f32.tf32 = false;
  const auto backend = one_device(in_f32, threads);
  const Sequences sequences = sequences_of(in_f32, tokens);
  const std::vector<float> exported =
      logits_of(Generator(in_f32, *ckpt::TensorFolder::open(fs, folder), *backend), sequences);
  const std::vector<float> master = logits_of(Generator(in_f32, checkpoint, *backend), sequences);
  ForwardCheck check{.tokens = tokens, .from_master = largest_difference(exported, master)};
  check.largest = check.from_master;
  if (dtype == DType::bf16) {
    Rounded rounded(checkpoint, in_f32);
    check.largest = largest_difference(exported, logits_of(Generator(in_f32, rounded, *backend), sequences));
  }
  if (check.largest != 0)
    throw Error(ErrorCode::kCheckpoint, fmt::format("the export was removed: the logits of {} tokens differ "
                                                    "by up to {:.3g} from those of {} (0 is expected)",
                                                    tokens, check.largest, checkpoint.path()));
  return check;
}

}  // namespace trainctl
