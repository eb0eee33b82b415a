// trainctl data: converts text to tokens, shows a token set, and checks all of it.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/observe/data_report.h"

namespace trainctl::cmd {
namespace {

struct TokenizeArguments {
  data::TokenizeOptions options;
  std::string split, to = "megatron", tokenizer = "bytes", train_kind = "sentencepiece";
};

struct ReadArguments {
  data::SourceOptions source;
  std::string format = "auto", dtype, tokenizer;
  int64_t vocab_size = 0;
};

/// A progress line: rewritten on a terminal, one every ten seconds in a log, none for short work.
class Progress {
 public:
  explicit Progress(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO)) {}
  ~Progress() {
    if (shown_ && terminal_) fmt::print(stderr, "\r\x1b[K");
  }
  void operator()(const char* doing, uint64_t done, uint64_t total) {
    const double now = real_clock().monotonic_s();
    if (quiet_ || now < next_) return;
    const double rate = double(done) / 1e6 / std::max(now - start_, 1e-3);
    fmt::print(stderr, "{}{}: {:.0f} of {:.0f} MB, {:.1f} MB/s{}", terminal_ ? "\r" : "", doing, double(done) / 1e6,
               double(total) / 1e6, rate, terminal_ ? "\x1b[K" : "\n");
    shown_ = true;
    next_ = now + (terminal_ ? 0.5 : 10);
  }

 private:
  bool quiet_, terminal_, shown_ = false;
  double start_ = real_clock().monotonic_s(), next_ = start_ + 2;
};

int tokenize(TokenizeArguments arguments, const Context& context) {
  data::TokenizeOptions& options = arguments.options;
  options.tokenizer = data::TokenizerChoice::of(arguments.tokenizer);
  if (!arguments.split.empty()) parse_split(arguments.split, options.train_share, options.val_share);
  options.to = token_format(arguments.to);
  if (options.to != data::Format::megatron && options.to != data::Format::llmc)
    throw Error(ErrorCode::kUsage, fmt::format("tokens cannot be written as {}; use --to megatron or --to llmc", arguments.to));
  if (options.train_vocab < 0)
    throw Error(ErrorCode::kUsage, fmt::format("--train-vocab {} is negative; give the number of ids", options.train_vocab));
  options.train_kind =
      arguments.train_kind == "bpe" ? data::TrainedKind::bpe : data::TrainedKind::sentencepiece;
  data::TokenizeResult result;
  {
    Progress progress(context.quiet());
    options.progress = [&](const char* doing, uint64_t done, uint64_t total) { progress(doing, done, total); };
    result = data::tokenize(options);
  }
  if (options.train_vocab > result.vocab_size && !context.quiet())
    fmt::print(stderr, "note: the text gave a vocabulary of {}, not the {} asked for; more text gives more\n", result.vocab_size,
               options.train_vocab);
  if (context.json || !context.quiet())
    print_result("data-tokenize", render_tokenized(result, context.json), context);
  return kExitDone;
}

data::SourceOptions source_of(const ReadArguments& arguments) {
  data::SourceOptions source = arguments.source;
  source.format = token_format(arguments.format);
  if (!arguments.dtype.empty()) source.dtype = token_dtype(arguments.dtype);
  return source;
}

int inspect(const ReadArguments& arguments, const Context& context) {
  const auto source = source_of(arguments);
  const data::Inspection found = data::inspect(source, data::TokenizerChoice::of(arguments.tokenizer));
  print_result("data-inspect", render_inspection(found, source.path, context.json), context);
  return kExitDone;
}

int verify(const ReadArguments& arguments, const Context& context) {
  if (arguments.vocab_size < 0)
    throw Error(ErrorCode::kUsage, fmt::format("--vocab {} is negative; give the number of ids", arguments.vocab_size));
  const auto source = source_of(arguments);
  const std::string text = render_verification(data::verify(source, arguments.vocab_size), source.path, context.json);
  if (context.json || !context.quiet()) print_result("data-verify", text, context);
  return kExitDone;
}

void add_source(CommandLine command, ReadArguments& arguments) {
  command.add_option("PATH", arguments.source.path, "a token file, a prefix or a quoted glob").required().type_name("");
  command.add_option("--format", arguments.format, "auto, megatron, llmc or raw").type_name("FORMAT");
  command.add_option("--dtype", arguments.dtype, "uint16 or uint32, for raw files").type_name("DTYPE");
}

}  // namespace

void add_data(CommandLine& app, Context& context) {
  CommandLine group = app.add_subcommand("data", "tokenize text; inspect and verify token sets");
  group.require_subcommand();

  auto text = std::make_shared<TokenizeArguments>();
  data::TokenizeOptions& options = text->options;
  CommandLine command = group.add_subcommand("tokenize", "turn text or JSON lines into token files");
  command.add_option("FILES", options.inputs, "text, one document per file, or .jsonl, one per line").required().type_name("");
  command.add_option("-o,--out", options.out, "PREFIX of PREFIX.idx, PREFIX.bin and PREFIX.json").required().type_name("PREFIX");
  const Option tokenizer =
      command
          .add_option("--tokenizer", text->tokenizer,
                      "bytes (257 ids), tokenizer.json, a tiktoken file or a SentencePiece .model file")
          .show_default()
          .type_name("NAME|FILE");
  Option train =
      command.add_option("--train-vocab", options.train_vocab, "train a tokenizer of N ids on FILES first")
          .type_name("N");
  train.excludes(tokenizer);
  command
      .add_option("--train-kind", text->train_kind,
                  "what to train: a SentencePiece model, or byte-level BPE as a Hugging Face tokenizer.json")
      .one_of({"sentencepiece", "bpe"})
      .show_default()
      .needs(train);
  command
      .add_option(
          "--tokenizer-out", options.tokenizer_out,
          "folder or file (.model, of bpe .json) for the trained tokenizer (default: the folder of PREFIX)")
      .needs(train)
      .type_name("PATH");
  command.add_option("--threads", options.threads, "threads that encode; 0: one for each core")
      .range(0, 1024)
      .show_default()
      .type_name("N");
  command
      .add_option("--split", text->split,
                  "99:1 puts one part in a hundred into PREFIX-val: every 100th line of .jsonl, the last hundredth of a text file")
      .type_name("TRAIN:VAL");
  command.add_option("--to", text->to, "megatron (PREFIX.idx + .bin) or llmc (PREFIX.bin)").type_name("FORMAT");
  command.add_flag("--force", options.force, "replace token sets and a trained tokenizer that exist under these names");
  command.add_option("--text-key", options.text_key, "where a JSON line has its text (default: text)").type_name("KEY");
  when_chosen(command, context, [text, &context] { return tokenize(*text, context); });

  auto seen = std::make_shared<ReadArguments>();
  command = group.add_subcommand("inspect", "format, tokens, documents and first texts of a token set");
  add_source(command, *seen);
  command.add_option("--tokenizer", seen->tokenizer, "to show texts (default: the one of the sidecar)").type_name("NAME|FILE");
  when_chosen(command, context, [seen, &context] { return inspect(*seen, context); });

  auto checked = std::make_shared<ReadArguments>();
  command = group.add_subcommand("verify", "read every byte of a token set; exit status 6 if something is wrong");
  add_source(command, *checked);
  command.add_option("--vocab", checked->vocab_size, "number of ids allowed (default: the sidecar's)").type_name("N");
  when_chosen(command, context, [checked, &context] { return verify(*checked, context); });
}

}  // namespace trainctl::cmd
