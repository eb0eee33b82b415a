#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels {

namespace cpu {

bool supports(InstructionSet isa) {
  switch (isa) {
    case InstructionSet::v2: return __builtin_cpu_supports("x86-64-v2");
    case InstructionSet::v3: return __builtin_cpu_supports("x86-64-v3");
    case InstructionSet::v4: return __builtin_cpu_supports("x86-64-v4");
  }
  return false;
}

const KernelTable& table_of(InstructionSet isa) {
  switch (isa) {
    case InstructionSet::v4: return v4::kTable;
    case InstructionSet::v3: return v3::kTable;
    case InstructionSet::v2: break;
  }
  return v2::kTable;
}

namespace {
/// Counts the changes of bits by the kernels of this folder and by the cuts of products.
constexpr int kKernels = 2;
}  // namespace

std::string numerics_of(InstructionSet isa) {
  static constexpr const char* kNames[] = {"v2", "v3", "v4"};
  return fmt::format("cpu {} kernels {} {}", kNames[int(isa)], kKernels, product_library());
}

CpuBackend::CpuBackend(int threads, InstructionSet isa)
    : isa_(isa),
      kernels_(table_of(isa)),
      multiplies_bf16_(isa == InstructionSet::v4),
      pool_(threads),
      products_(pool_, kernels_) {
  ENSURE(threads >= 1, "threads = {}", threads);
}

std::unique_ptr<Backend> make_cpu_backend(int threads, InstructionSet isa) {
  return std::make_unique<CpuBackend>(threads, isa);
}

}  // namespace cpu

namespace {

cpu::InstructionSet best_instruction_set() {
  for (const cpu::InstructionSet isa : {cpu::InstructionSet::v4, cpu::InstructionSet::v3, cpu::InstructionSet::v2})
    if (cpu::supports(isa)) return isa;
  throw Error(ErrorCode::kPreflight, "this CPU lacks SSE4.2 (x86-64-v2), which trainctl needs; use a newer machine");
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads) { return cpu::make_cpu_backend(threads, best_instruction_set()); }

std::string cpu_numerics() { return cpu::numerics_of(best_instruction_set()); }

}  // namespace trainctl::kernels
