// Prints the logits of trainctl for comparisons with other programs.
//
//     peer_logits CHECKPOINT < "12 7 90 ..."
//
// Reads token ids, at most a sequence's length, and writes float32 [tokens, vocabulary] to stdout, computed
// in float32 with the checkpoint's master weights.
#include <cstdio>
#include <iostream>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/train/generate/sample.h"

int main(int argc, char** argv) {
  using namespace trainctl;
  if (argc != 2) {
    std::fputs("usage: peer_logits CHECKPOINT < TOKENS\n", stderr);
    return 2;
  }
  try {
    const auto checkpoint = ckpt::Checkpoint::open(real_file_system(), argv[1]);
    JobSpec job = job_of(*checkpoint);
    job.compute = DType::f32;
    std::vector<int32_t> tokens;
    for (int32_t token = 0; std::cin >> token;) tokens.push_back(token);
    const auto backend = one_device(job, 1);
    const std::vector<float> logits = Generator(job, *checkpoint, *backend).logits(tokens);
    return std::fwrite(logits.data(), sizeof(float), logits.size(), stdout) == logits.size() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer_logits: %s\n", error.what());
    return 1;
  }
}
