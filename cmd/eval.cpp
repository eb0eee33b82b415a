// trainctl eval: the loss of a trained model on texts, and its accuracy on multiple-choice tasks.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cmd/commands.h"
#include "cmd/model_arguments.h"
#include "cmd/output.h"
#include "runtime/base/file_system.h"
#include "runtime/observe/text_table.h"
#include "runtime/train/generate/evaluate.h"

namespace trainctl::cmd {
namespace {

/// A whole sequence is computed at once, which takes memory for all of its logits.
constexpr int64_t kMostFolderTokens = 2048;

struct EvalOptions {
  ModelArguments model;
  EvaluateRequest request;
  int64_t limit = -1;  // -1: the request's own
};

/// What is being done, on stderr: in one line of a terminal, else now and then a line.
class EvalProgress {
 public:
  explicit EvalProgress(bool quiet) : quiet_(quiet) {}
  ~EvalProgress() {
    if (shown_ && terminal_) fmt::print(stderr, "\r\x1b[K");
  }
  void operator()(const std::string& text) {
    const double now = real_clock().monotonic_s();
    if (quiet_ || now < next_) return;
    next_ = now + (terminal_ ? 0.5 : 10);
    fmt::print(stderr, "{}{}{}", terminal_ ? "\r" : "", text, terminal_ ? "\x1b[K" : "\n");
    std::fflush(stderr);
    shown_ = true;
  }

 private:
  const bool quiet_, terminal_ = isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
  double next_ = real_clock().monotonic_s() + 2;
};

double share(int64_t part, int64_t of) { return double(part) / double(std::max<int64_t>(1, of)); }

OrderedJson result_json(const std::string& checkpoint, const EvaluateResult& result) {
  OrderedJson tasks = OrderedJson::array(), sources = OrderedJson::array();
  for (const TaskResult& t : result.tasks)
    tasks.push_back({{"path", t.path},
                     {"examples", t.examples},
                     {"available", t.available},
                     {"accuracy", share(t.right_by_mean, t.examples)},
                     {"accuracy_of_sums", share(t.right_by_sum, t.examples)},
                     {"cut", t.cut},
                     {"seconds", t.seconds}});
  for (const SourceResult& s : result.sources)
    sources.push_back({{"name", s.name},
                       {"sequences", s.sequences},
                       {"available", s.available},
                       {"targets", s.targets},
                       {"loss", s.loss},
                       {"bits_per_byte", s.bits_per_byte ? OrderedJson(*s.bits_per_byte) : OrderedJson()},
                       {"seconds", s.seconds}});
  return {{"checkpoint", checkpoint}, {"step", result.step}, {"tasks", tasks}, {"sources", sources}};
}

std::string part_text(int64_t part, int64_t all) {
  return part == all ? fmt::format("{}", all) : fmt::format("{} of {}", part, all);
}

void print_table(const TextTable& table) {
  for (const std::string& line : table.lines(0, false)) fmt::print("{}\n", line);
}

void print_words(const EvaluateResult& result) {
  if (!result.tasks.empty()) {
    TextTable table({{"task"}, {"examples", true}, {"accuracy", true}, {"by sums", true}});
    for (const TaskResult& t : result.tasks)
      table.add({std::filesystem::path(t.path).filename().string(), part_text(t.examples, t.available),
                 fmt::format("{:.2f} %", 100 * share(t.right_by_mean, t.examples)),
                 fmt::format("{:.2f} %", 100 * share(t.right_by_sum, t.examples))});
    print_table(table);
  }
  if (!result.sources.empty()) {
    TextTable table({{"data"}, {"sequences", true}, {"loss", true}, {"bits per byte", true, 0, 0, true}});
    for (const SourceResult& s : result.sources)
      table.add({s.name, part_text(s.sequences, s.available), fmt::format("{:.4f}", s.loss),
                 s.bits_per_byte ? fmt::format("{:.4f}", *s.bits_per_byte) : "-"});
    print_table(table);
  }
  std::fflush(stdout);
}

/// What the numbers leave out.
void print_notes(const TrainedModel& model, const EvaluateResult& result) {
  bool limited = false;
  for (const TaskResult& t : result.tasks) {
    limited |= t.examples < t.available;
    if (t.cut > 0)
      fmt::print(stderr,
                 "note: {}: the contexts of {} endings were cut at their beginning to fit into a sequence\n",
                 t.path, t.cut);
  }
  for (const SourceResult& s : result.sources) limited |= s.sequences < s.available;
  if (limited) fmt::print(stderr, "note: only the first of each; --limit 0 takes all\n");
  fmt::print(stderr, "-- {}{}\n", model.is_folder() ? "" : fmt::format("step {} of ", model.step),
             model.path);
}

int run(EvalOptions options, const Context& context) {
  set_model(options.request, options.model);
  if (options.limit >= 0) options.request.most_examples = options.request.most_sequences = options.limit;
  TrainedModel model = open_model(options.model, context);
  if (model.is_folder() && options.request.seq_len == 0)
    options.request.seq_len = std::min(model.job.data.seq_len, kMostFolderTokens);
  EvaluateResult result;
  {
    EvalProgress progress(context.quiet());
    result = evaluate(real_file_system(), model, options.request,
                      [&](const std::string& text) { progress(text); });
  }
  if (context.json)
    print_json("eval", result_json(model.path, result), -1);
  else
    print_words(result);
  if (!context.json && !context.quiet()) print_notes(model, result);
  return kExitDone;
}

}  // namespace

void add_eval(CommandLine& app, Context& context) {
  auto options = std::make_shared<EvalOptions>();
  CommandLine command = app.add_subcommand(
      "eval", "measure a checkpoint or a Hugging Face folder on texts and multiple-choice tasks");
  add_run_arguments(command, options->model.run, true, kTrainedModel);
  command
      .add_option("--tasks", options->request.tasks,
                  "multiple-choice tasks: llm.c's .bin, or JSON lines with context, endings and label; may "
                  "be repeated")
      .repeatable()
      .type_name("FILE");
  command
      .add_option("--data", options->request.data,
                  "token files instead of the run's validation data; may be repeated")
      .repeatable()
      .type_name("PATH");
  command
      .add_option("--limit", options->limit,
                  "examples of each task and sequences of each source at most; 0: all (default: "
                  "1000 and 256)")
      .range(0, 1000000000);
  command
      .add_option(
          "--seq-len", options->request.seq_len,
          "tokens of a sequence (default: of a run its data.seq_len, of a folder what its model allows, "
          "2048 at most)")
      .range(1, 1000000000);
  add_model_arguments(command, options->model);
  when_chosen(command, context, [options, &context] { return run(*options, context); });
}

}  // namespace trainctl::cmd
