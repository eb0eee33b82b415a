// `trainctl eval`: how well a trained model knows texts and answers multiple-choice tasks.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/train/generate/sample.h"
#include "runtime/train/tasks/packed_texts.h"
#include "runtime/train/tasks/task_file.h"

namespace trainctl {

struct EvaluateRequest {
  std::vector<std::string> tasks;   ///< files (read_task_file)
  std::vector<std::string> data;    ///< token files; with no tasks either: the run's validation data
  data::TokenizerChoice tokenizer;  ///< none: the one of the model's job
  int64_t most_examples = 1000, most_sequences = 256;  ///< of each file, each source; 0: all
  int64_t seq_len = 0;  ///< of the sequences that files of texts and tasks become; 0: that of the model's job
  int threads = 1;
  std::optional<DType> compute;  ///< of weights and products; none: that of the model's job
};

/// Accuracy of a task: the share of examples whose right ending is the likeliest; of equals the first is
/// taken.
struct TaskResult {
  std::string path;
  int64_t examples = 0, available = 0;
  int64_t right_by_mean = 0;  ///< by the mean log likelihood of an ending's tokens
  int64_t right_by_sum = 0;   ///< by their sum
  int64_t cut = 0;            ///< endings whose context was cut at its beginning to fit into a sequence
  double seconds = 0;
};

/// The loss on a source of tokens, as a run's evaluation takes it. targets: each as often as it is weighed.
struct SourceResult {
  std::string name;
  int64_t sequences = 0, available = 0, targets = 0;
  double loss = 0;                      ///< nats a target
  std::optional<double> bits_per_byte;  ///< where the sidecar says how long the text is
  double seconds = 0;
};

struct EvaluateResult {
  int64_t step = 0;
  std::vector<TaskResult> tasks;
  std::vector<SourceResult> sources;
};

/// `each` is called now and then with what is done, such as "hellaswag.bin: 120 of 1000 examples".
/// Error(kCheckpoint): the weights cannot be used. Error(kData): a file cannot be, or there is nothing to
/// evaluate.
EvaluateResult evaluate(FileSystem& fs, TrainedModel& model, const EvaluateRequest& request,
                        const std::function<void(const std::string&)>& each);

/// The likelihoods of the endings, in the order of pack_task. `start_token` as there.
struct TaskLikelihoods {
  std::vector<Likelihood> of_endings;
  int64_t cut = 0;
};
TaskLikelihoods task_likelihoods(Generator& generator, const TaskFile& file,
                                 std::optional<int32_t> start_token,
                                 const std::function<void(int64_t examples)>& each = {});

}  // namespace trainctl
