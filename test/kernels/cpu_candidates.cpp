// The backends of this program's tests: every instruction set of this machine, on one and on three threads.
#include "kernels/cpu/cpu_backend.h"
#include "support.h"

namespace trainctl::kernels::test {

const std::vector<DType> kActivationTypes = {DType::f32, DType::bf16, DType::f16};

const std::vector<Candidate>& candidates() {
  static const std::vector<Candidate> all = [] {
    std::vector<Candidate> made;
    for (const auto& [isa, name] : {std::pair{cpu::InstructionSet::v4, "v4"}, std::pair{cpu::InstructionSet::v3, "v3"},
                                    std::pair{cpu::InstructionSet::v2, "v2"}}) {
      for (int threads = 1; threads <= 3 && cpu::supports(isa); threads += 2) {
        made.push_back({std::string(name) + ", threads " + std::to_string(threads), name, cpu::make_cpu_backend(threads, isa)});
      }
    }
    return made;
  }();
  return all;
}

}  // namespace trainctl::kernels::test
