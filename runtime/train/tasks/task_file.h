// Multiple-choice tasks, such as HellaSwag and MMLU: a context, endings of which one is right.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "data/tokenizer_choice.h"
#include "runtime/base/file_system.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

struct TaskExample {
  std::vector<int32_t> context;               ///< may be empty
  std::vector<std::vector<int32_t>> endings;  ///< at least two, none empty
  int64_t label = 0;                          ///< of the right one
};

struct TaskFile {
  std::string path;
  std::vector<TaskExample> examples;  ///< the first `limit`
  int64_t available = 0;              ///< in the file
  bool is_text = false;               ///< it was tokenized here
};

/// Reads a file of one of two forms, told by its content:
///   llm.c's .bin    256 i32: magic 20240522, version 1, number of examples, bytes of the longest; then u16 for
///                   each example: 65535, its bytes, its number, label, number of endings, and for context and
///                   endings a count and so many tokens
///   JSON lines      {"context" | "ctx" | "question": text, "endings" | "choices": [text, ..], "label" |
///                   "answer" | "gold": number}; a space comes before an ending that begins without one
/// `limit` 0: all. `tokenizer`: of the model, for JSON lines; null: not known. Error(kData), one sentence
/// with the example and the value: damaged, a token that is not below vocab_size, a label of no ending, ...
TaskFile read_task_file(FileSystem& fs, const std::string& path, const data::Tokenizer* tokenizer,
                        int64_t vocab_size, int64_t limit);

/// The tokenizer of the job or of its training data; none is given if nothing names one.
data::TokenizerChoice tokenizer_of(const DataSpec& spec);
/// `named` by a command, or else that of the job. Error(kData): the training data was made with another one,
/// so that the model knows other ids; where the data is gone nothing is compared.
data::TokenizerChoice tokenizer_for(FileSystem& fs, const DataSpec& spec, const data::TokenizerChoice& named);
/// The task files of an evaluation, read with one tokenizer.
struct TaskFiles {
  std::vector<TaskFile> files;
  std::optional<int32_t> start_token;  ///< of texts without a context; nullopt: no tokenizer is known
};
/// `tokenizer`: none: it is not known. Error(kData): also where it does not fit the vocabulary.
TaskFiles read_task_files(FileSystem& fs, const std::vector<std::string>& paths,
                          const data::TokenizerChoice& tokenizer, int64_t vocab_size, int64_t limit);

}  // namespace trainctl
