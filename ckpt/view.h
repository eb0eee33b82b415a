// A checkpoint as another one shows it: views change what is read.
#pragma once
#include <memory>

#include "ckpt/checkpoint.h"

namespace trainctl::ckpt {

/// Passes everything on to `of`, which must outlive it. A view overrides read(), through which read_all()
/// goes.
class CheckpointView : public Checkpoint {
 public:
  explicit CheckpointView(Checkpoint& of) : of_(of) {}
  const StateInfo& state() const override { return of_.state(); }
  const std::vector<Tensor>& tensors() const override { return of_.tensors(); }
  const std::vector<ShardReceipt>& files() const override { return of_.files(); }
  std::string root_hash() const override { return of_.root_hash(); }
  std::string path() const override { return of_.path(); }
  StoredFiles& stored() const override { return of_.stored(); }
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

 protected:
  /// Of a tensor; f32: there is none.
  DType dtype_of(const std::string& name, Role role) const {
    for (const Tensor& t : tensors())
      if (t.name == name && t.role == role) return t.dtype;
    return DType::f32;
  }

 private:
  Checkpoint& of_;
};

/// A checkpoint whose master weights are the averages (Role::ema) of `of`, which it holds. Error(kCheckpoint)
/// if it has none.
std::unique_ptr<Checkpoint> averages_of(std::unique_ptr<Checkpoint> of);

}  // namespace trainctl::ckpt
