#include "ckpt/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

class Averages final : public CheckpointView {
 public:
  explicit Averages(std::unique_ptr<Checkpoint> of) : CheckpointView(*of), held_(std::move(of)) {}
  DType dtype_of(const std::string& name, Role role) const override {
    return held_->dtype_of(name, role_of(role));
  }
  void read(const std::string& name, Role role, const parallel::Box& box, void* out) override {
    held_->read(name, role_of(role), box, out);
  }
  void read_all(std::span<const BoxRead> boxes, const std::function<void(uint64_t bytes)>& got) override {
    std::vector<BoxRead> others(boxes.begin(), boxes.end());
    for (BoxRead& b : others) b.role = role_of(b.role);
    held_->read_all(others, got);
  }

 private:
  static Role role_of(Role role) { return role == Role::master ? Role::ema : role; }
  const std::unique_ptr<Checkpoint> held_;
};

}  // namespace

std::unique_ptr<Checkpoint> averages_of(std::unique_ptr<Checkpoint> of) {
  if (std::none_of(of->tensors().begin(), of->tensors().end(),
                   [](const Tensor& t) { return t.role == Role::ema; }))
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("{} has no averages of the weights: the run's optimizer.ema.decay is 0; leave out --ema",
                    of->path()));
  return std::make_unique<Averages>(std::move(of));
}

}  // namespace trainctl::ckpt
