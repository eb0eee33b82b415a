// trainctl data dedup and data filter: keep the records of a corpus that are worth training on.
#include <algorithm>
#include <memory>

#include "cmd/data.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/units.h"
#include "runtime/observe/clean_report.h"

namespace trainctl::cmd {
namespace {

struct CleaningArguments {
  data::CleaningOptions options;
  std::string separator;
  uint64_t longest_document_mb = 64;
};

void add_cleaning_options(CommandLine command, CleaningArguments& arguments) {
  data::CleaningOptions& options = arguments.options;
  command
      .add_option(
          "FILES", options.corpus.files,
          "text (one document a file), .jsonl (one a line) or .parquet (one a row); text and .jsonl also "
          "as .zst or .gz")
      .required()
      .type_name("");
  command.add_option("-o,--out", options.out, "folder to make: one .jsonl for each file, and removed.jsonl")
      .required()
      .type_name("DIR");
  command.add_flag("--zstd", options.zstd, "compress the files of kept records: .jsonl.zst");
  command.add_option("--threads", options.threads, "threads that examine records; 0: one for each core")
      .range(0, 1024)
      .show_default()
      .type_name("N");
  command
      .add_option("--text-key", options.corpus.text_key,
                  "key of the text in a JSON line, or column of a .parquet")
      .show_default()
      .type_name("KEY");
  command
      .add_option("--separator", arguments.separator,
                  "separates the documents of a text file and belongs to none: anywhere if it contains a "
                  "newline (\\n\\n), else as a whole line")
      .type_name("TEXT");
  command.add_flag("--skip-bad", options.corpus.skip_bad,
                   "skip unreadable records; count them and show the first");
  command
      .add_option("--longest-document", arguments.longest_document_mb,
                  "limit in MB of a line, a row, or a document; longer ones are refused")
      .range(1, 2000)
      .show_default()
      .type_name("MB");
}

/// Runs `clean` with a line of progress and prints its result as `kind`.
int run_cleaning(const char* kind, CleaningArguments& arguments, const Context& context,
                 const std::function<data::CleaningResult()>& clean) {
  data::CleaningOptions& options = arguments.options;
  options.corpus.separator = unescaped(arguments.separator);
  options.corpus.longest_document = arguments.longest_document_mb * 1'000'000;
  data::CleaningResult result;
  {
    DataProgress progress(context.quiet());
    options.progress = [&](const data::CorpusProgress& at) { progress(at); };
    result = clean();
  }
  if (context.json || !context.quiet()) print_result(kind, render_cleaning(result, context.json), context);
  return kExitDone;
}

std::string text_of_file(const std::string& path) {
  try {
    return real_file_system().read_text(path);
  } catch (const Error& e) {
    throw Error(ErrorCode::kUsage, fmt::format("the rule file cannot be read: {}", e.what()));
  }
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace

void add_data_dedup(CommandLine& group, Context& context) {
  struct Arguments {
    CleaningArguments cleaning;
    data::DedupOptions options;
    std::string memory = "1GiB";
  };
  auto given = std::make_shared<Arguments>();
  CommandLine command = group.add_subcommand("dedup", "keep the first of equal, or nearly equal, documents");
  add_cleaning_options(command, given->cleaning);
  const Option near =
      command.add_flag("--near", given->options.near,
                       "also remove near duplicates of earlier documents (MinHash and LSH)");
  command
      .add_option("--threshold", given->options.threshold,
                  "Jaccard similarity of word sequences from which on documents are near duplicates")
      .range(0.3, 1)
      .show_default()
      .needs(near)
      .type_name("S");
  command.add_option("--shingle", given->options.shingle_words, "words in each compared sequence")
      .range(1, 100)
      .show_default()
      .needs(near)
      .type_name("N");
  command
      .add_option("--memory", given->memory,
                  "limit of memory: 38 bytes for each kept document, with --near about 400")
      .show_default()
      .type_name("SIZE");
  when_chosen(command, context, [given, &context] {
    const auto memory = bytes_of(given->memory);
    if (!memory)
      throw Error(ErrorCode::kUsage,
                  fmt::format("--memory {} is no size; write 1GiB or 500MB", given->memory));
    given->options.memory = *memory;
    return run_cleaning("data-dedup", given->cleaning, context, [&] {
      given->options.cleaning = given->cleaning.options;
      return data::dedup(given->options);
    });
  });
}

void add_data_filter(CommandLine& group, Context& context) {
  struct Arguments {
    CleaningArguments cleaning;
    data::FilterOptions options;
    std::vector<std::string> sets, rules;
    std::string languages, labels;
  };
  auto given = std::make_shared<Arguments>();
  CommandLine command = group.add_subcommand("filter", "keep the documents that rules accept");
  add_cleaning_options(command, given->cleaning);
  command
      .add_option(
          "--rules", given->sets,
          "gopher (Rae et al. 2021), its halves gopher-quality and gopher-repetition, or a .json file: "
          "{\"sets\": [\"gopher\"], \"min_words\": 20}")
      .repeatable()
      .type_name("SET|FILE");
  command
      .add_option("--rule", given->rules,
                  "set the limit of one rule, after --rules: min_words=20, max_hashes_per_word=off")
      .repeatable()
      .type_name("NAME=LIMIT");
  command
      .add_option(
          "--language", given->languages,
          "codes of languages to keep, such as en,de (CLD2); at least half of the text must be in them "
          "(--rule min_language_share)")
      .type_name("CODES");
  const Option model = command
                           .add_option("--fasttext", given->options.fasttext,
                                       "supervised fastText model (.bin) that predicts the label of a text")
                           .type_name("MODEL");
  command
      .add_option(
          "--label", given->labels,
          "labels of that model to keep, such as en,de; their probability must be at least 0.5 (--rule "
          "min_label_probability)")
      .needs(model)
      .type_name("LABELS");
  command
      .add_option("--blocklist", given->options.blocklist,
                  "file with one word or phrase per line; documents with any of them are removed (--rule "
                  "max_blocked_words=N allows N)")
      .type_name("FILE");
  when_chosen(command, context, [given, &context] {
    data::FilterOptions& options = given->options;
    for (const std::string& set : given->sets) {
      if (set.ends_with(".json"))
        options.limits.add_file(text_of_file(set), set);
      else
        options.limits.add_set(set);
    }
    for (const std::string& rule : given->rules) options.limits.set(rule);
    options.languages = split_at_commas(given->languages);
    options.labels = split_at_commas(given->labels);
    return run_cleaning("data-filter", given->cleaning, context, [&] {
      options.cleaning = given->cleaning.options;
      return data::filter(options);
    });
  });
}

}  // namespace trainctl::cmd
