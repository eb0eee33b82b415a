// trainctl data mix: how often a run reads each of its sources.
#include <cmath>
#include <memory>

#include "cmd/data.h"
#include "cmd/output.h"
#include "runtime/base/digits.h"
#include "runtime/base/error.h"
#include "runtime/observe/clean_report.h"
#include "runtime/supervise/preflight/job_mix.h"

namespace trainctl::cmd {
namespace {

struct MixArguments {
  JobArguments job;
  std::vector<std::string> sources;
  std::string tokens;
  uint64_t seq_len = 2048;
};

/// "300B", "1.5M" or "4096": k, M, B (or G) and T are powers of a thousand.
std::optional<uint64_t> count_of_word(std::string_view word) {
  double factor = 1;
  if (!word.empty()) {
    const size_t power = std::string_view("kMBT").find(word.back() == 'G' ? 'B' : word.back());
    if (power != std::string_view::npos) {
      factor = std::pow(1000.0, double(power + 1));
      word.remove_suffix(1);
    }
  }
  const auto value = decimal_number(word);
  if (!value || *value * factor < 1 || *value * factor > 1e18) return std::nullopt;
  return uint64_t(std::llround(*value * factor));
}

/// NAME:TOKENS:WEIGHT; the name may have colons.
data::MixSource source_of_word(const std::string& word) {
  const size_t second = word.rfind(':');
  const size_t first = second == word.npos || second == 0 ? word.npos : word.rfind(':', second - 1);
  if (first != word.npos && first > 0) {
    const std::string_view text = word;
    const auto tokens = count_of_word(text.substr(first + 1, second - first - 1));
    const auto weight = decimal_number(text.substr(second + 1));
    if (tokens && weight) return {.name = word.substr(0, first), .tokens = *tokens, .weight = *weight};
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("--source {} is not NAME:TOKENS:WEIGHT, such as web:300B:0.8", word));
}

int mix(const MixArguments& arguments, const Context& context) {
  std::optional<uint64_t> tokens;
  if (!arguments.tokens.empty()) {
    tokens = count_of_word(arguments.tokens);
    if (!tokens)
      throw Error(ErrorCode::kUsage,
                  fmt::format("--tokens {} is no number of tokens; write 300B or 1500000", arguments.tokens));
  }
  data::Mix result;
  if (arguments.job.path.empty()) {
    if (arguments.sources.empty())
      throw Error(ErrorCode::kUsage,
                  "what is mixed? give a JOB, or --source NAME:TOKENS:WEIGHT for each source");
    if (!tokens) throw Error(ErrorCode::kUsage, "sources without a JOB need a budget: --tokens 300B");
    std::vector<data::MixSource> sources;
    for (const std::string& word : arguments.sources) sources.push_back(source_of_word(word));
    const uint64_t samples = (*tokens + arguments.seq_len - 1) / arguments.seq_len;
    result = data::mix_of(sources, arguments.seq_len, samples);
  } else {
    const std::optional<ParsedJob> job = load_job(arguments.job, context);
    if (!job) return exit_status(ErrorCode::kSpec);
    if (!files_exist(*job, arguments.job, context)) return exit_status(ErrorCode::kData);
    result = mix_of_job(job->job, tokens);
  }
  print_result("data-mix", render_mix(result, context.json), context);
  return kExitDone;
}

}  // namespace

void add_data_mix(CommandLine& group, Context& context) {
  auto arguments = std::make_shared<MixArguments>();
  CommandLine command = group.add_subcommand("mix", "epochs of each source for a budget of tokens");
  add_job_arguments(command, arguments->job);
  command.get_option("JOB").required(false);
  command
      .add_option("--source", arguments->sources,
                  "a source, in place of a JOB: web:300B:0.8; k, M, B and T count tokens")
      .repeatable()
      .type_name("NAME:TOKENS:WEIGHT")
      .excludes(command.get_option("JOB"));
  command.add_option("--tokens", arguments->tokens, "the budget (default: all steps of the JOB)")
      .type_name("N");
  command.add_option("--seq-len", arguments->seq_len, "tokens in a sample, for --source")
      .range(1, 1e9)
      .show_default()
      .excludes(command.get_option("JOB"))
      .type_name("N");
  when_chosen(command, context, [arguments, &context] { return mix(*arguments, context); });
}

}  // namespace trainctl::cmd
