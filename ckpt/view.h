// A checkpoint as another one shows it: views change what is read.
#pragma once
#include <memory>

#include "ckpt/checkpoint.h"

namespace trainctl::ckpt {

/// Passes everything on to `of`, which must outlive it. A view overrides read(), through which read_all()
/// goes, and dtype_of() where it reads another tensor.
class CheckpointView : public Checkpoint {
 public:
  explicit CheckpointView(Checkpoint& of) : of_(of) {}
  const StateInfo& state() const override { return of_.state(); }
  const std::vector<Tensor>& tensors() const override { return of_.tensors(); }
  const std::vector<ShardReceipt>& files() const override { return of_.files(); }
  std::string root_hash() const override { return of_.root_hash(); }
  std::string path() const override { return of_.path(); }
  StoredFiles& stored() const override { return of_.stored(); }
  DType dtype_of(const std::string& name, Role role) const override { return of_.dtype_of(name, role); }
  bool has(const std::string& name, Role role, const parallel::Box& box) const override {
    return of_.has(name, role, box);
  }
  void read(const std::string& name, Role role, const parallel::Box& box, void* out) override {
    of_.read(name, role, box, out);
  }
  void read_all(std::span<const BoxRead> boxes, const std::function<void(uint64_t bytes)>& got) override {
    for (const BoxRead& b : boxes) {
      const DType dtype = b.as_f32 ? dtype_of(b.name, b.role) : DType::f32;
      read(b.name, b.role, b.box, stored_place(b, dtype));
      make_f32(b, dtype);
      got(uint64_t(b.box.count()) * sizeof(float));  // about: progress only
    }
  }

 private:
  Checkpoint& of_;
};

/// A checkpoint that reads the averages (Role::ema, f32) of `of`, which it holds, as its weights
/// (Role::master); tensors() are those of `of`. Error(kCheckpoint) if it has none.
std::unique_ptr<Checkpoint> averages_of(std::unique_ptr<Checkpoint> of);

}  // namespace trainctl::ckpt
