// trainctl data: converts text to tokens, shows a token set, and checks all of it. What cleans text is in
// cmd/data_clean.cpp.
#include <cstdio>
#include <memory>

#include "cmd/data.h"
#include "cmd/interrupt_note.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/units.h"
#include "runtime/observe/data_report.h"
#include "runtime/sources/text_sources.h"

namespace trainctl::cmd {
namespace {

struct TokenizeArguments {
  data::TokenizeOptions options;
  std::string split, to = "megatron", tokenizer = "bytes", train_kind = "sentencepiece", separator,
                     records = "auto";
  uint64_t longest_document_mb = 64;
  std::string cache, cache_folder;
};

struct ReadArguments {
  data::SourceOptions source;
  std::string format = "auto", dtype, tokenizer;
  int64_t vocab_size = 0;
};

/// Where the cache of objects is, and how large it may get.
CacheOptions cache_of(const TokenizeArguments& arguments) {
  CacheOptions cache;
  if (!arguments.cache.empty()) {
    const auto bytes = bytes_of(arguments.cache);
    if (!bytes || *bytes < kLeastCache)
      throw Error(
          ErrorCode::kUsage,
          fmt::format("--cache {} is no size of at least 1MiB; write it as 4GiB or 500MB", arguments.cache));
    cache.bytes = *bytes;
  }
  cache.folder = arguments.cache_folder;
  if (!cache.folder.empty() && !real_file_system().is_directory(cache.folder))
    throw Error(ErrorCode::kUsage, fmt::format("--cache-dir {} is no folder; make it first", cache.folder));
  const std::string& out = arguments.options.out;
  const size_t slash = out.rfind('/');
  if (cache.folder.empty()) cache.folder = slash == out.npos ? "." : out.substr(0, slash + 1);
  return cache;
}

/// The objects among the inputs, which then name each of them; null if there are none.
std::unique_ptr<TextSources> object_sources(const TokenizeArguments& arguments,
                                            data::TokenizeOptions& options) {
  if (std::none_of(options.inputs.begin(), options.inputs.end(), is_object_url)) {
    if (!arguments.cache.empty() || !arguments.cache_folder.empty())
      throw Error(ErrorCode::kUsage,
                  "--cache and --cache-dir are for inputs that begin with s3://, and there are none");
    return nullptr;
  }
  const CacheOptions cache = cache_of(arguments);
  FileSystem& fs = real_file_system();
  const ObjectAccess access = s3_access(fs, real_clock());
  auto sources = std::make_unique<TextSources>(fs, access, options.inputs, cache);
  options.inputs = sources->paths();
  options.input_versions = sources->versions();
  options.input_files = &sources->files();
  return sources;
}

int tokenize(TokenizeArguments arguments, const Context& context) {
  data::TokenizeOptions& options = arguments.options;
  options.tokenizer = data::TokenizerChoice::of(arguments.tokenizer);
  if (!arguments.split.empty()) parse_split(arguments.split, options.train_share, options.val_share);
  options.to = token_format(arguments.to);
  if (options.to != data::Format::megatron && options.to != data::Format::llmc)
    throw Error(ErrorCode::kUsage, fmt::format("tokens cannot be written as {}; use --to megatron or --to llmc", arguments.to));
  if (options.train_vocab < 0)
    throw Error(ErrorCode::kUsage, fmt::format("--train-vocab {} is negative; give the number of ids", options.train_vocab));
  options.records = arguments.records == "answers" ? data::Records::answers
                    : arguments.records == "texts" ? data::Records::texts
                                                   : data::Records::automatic;
  options.separator = unescaped(arguments.separator);
  options.longest_document = arguments.longest_document_mb * 1'000'000;
  options.train_kind =
      arguments.train_kind == "bpe" ? data::TrainedKind::bpe : data::TrainedKind::sentencepiece;
  data::TokenizeResult result;
  {
    DataProgress progress(context.quiet());
    InterruptNote stopped;
    if (options.train_vocab > 0)
      stopped.set("stopped before the vocabulary was made: the same command begins again");
    options.progress = [&](const data::CorpusProgress& at) {
      progress(at);
      if (std::string_view(at.doing) == data::kTokenizing)
        stopped.set(fmt::format(
            "stopped; what is done is kept in {}.partial: the same command goes on from there", options.out));
    };
    options.note = [&](const std::string& text) { progress.note(text); };
    const auto sources = object_sources(arguments, options);
    if (sources && !sources->left_out_text().empty()) options.note(sources->left_out_text());
    result = data::tokenize(options);
  }
  if (options.train_vocab > result.vocab_size && !context.quiet())
    fmt::print(stderr, "note: the text gave a vocabulary of {}, not the {} asked for; more text gives more\n", result.vocab_size,
               options.train_vocab);
  if (context.json || !context.quiet())
    print_result("data-tokenize", render_tokenized(result, context.json), context);
  return kExitDone;
}

data::SourceOptions source_of_arguments(const ReadArguments& arguments) {
  data::SourceOptions source = arguments.source;
  source.format = token_format(arguments.format);
  if (!arguments.dtype.empty()) source.dtype = token_dtype(arguments.dtype);
  return source;
}

int inspect(const ReadArguments& arguments, const Context& context) {
  const auto source = source_of_arguments(arguments);
  const data::Inspection found = data::inspect(source, data::TokenizerChoice::of(arguments.tokenizer));
  print_result("data-inspect", render_inspection(found, source.path, context.json), context);
  return kExitDone;
}

int verify(const ReadArguments& arguments, const Context& context) {
  if (arguments.vocab_size < 0)
    throw Error(ErrorCode::kUsage, fmt::format("--vocab {} is negative; give the number of ids", arguments.vocab_size));
  const auto source = source_of_arguments(arguments);
  const std::string text = render_verification(data::verify(source, arguments.vocab_size), source.path, context.json);
  if (context.json || !context.quiet()) print_result("data-verify", text, context);
  return kExitDone;
}

void add_source(CommandLine command, ReadArguments& arguments) {
  command.add_option("PATH", arguments.source.path, "a token file, a prefix or a quoted glob").required().type_name("");
  command.add_option("--format", arguments.format, "auto, megatron, llmc or raw").type_name("FORMAT");
  command.add_option("--dtype", arguments.dtype, "uint16 or uint32, for raw files").type_name("DTYPE");
}

/// What a record is, and which of it is the text.
void add_record_options(CommandLine& command, TokenizeArguments& text) {
  data::TokenizeOptions& options = text.options;
  command.add_option("--text-key", options.text_key, "key of the text in JSON, or column of a .parquet")
      .show_default()
      .type_name("KEY");
  command
      .add_option(
          "--records", text.records,
          "texts, or answers: conversations (messages) or prompt and completion in JSON lines, with a "
          "loss on the answers alone (default: what the first record is)")
      .one_of({"auto", "texts", "answers"})
      .type_name("KIND");
  command
      .add_option("--chat-template", options.chat_template,
                  "how conversations become text, instead of the template at the tokenizer: " +
                      data::chat_template_names())
      .type_name("NAME");
  command
      .add_option("--separator", text.separator,
                  "separates the documents of a text file and belongs to none: anywhere if it contains a "
                  "newline (\\n\\n), else as a whole line (<|endoftext|>)")
      .type_name("TEXT");
}

void add_tokenize(CommandLine group, Context& context) {
  auto text = std::make_shared<TokenizeArguments>();
  data::TokenizeOptions& options = text->options;
  CommandLine command = group.add_subcommand("tokenize", "turn text, JSON lines or Parquet into token files");
  command
      .add_option("FILES", options.inputs,
                  "text (one document a file), .jsonl (one a line) or .parquet (one a row); text and .jsonl also "
                  "as .zst or .gz; or objects: s3://bucket/key, s3://bucket/prefix/ for all below it")
      .required()
      .type_name("");
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
                  "kind to train: a SentencePiece model, or byte-level BPE as a Hugging Face tokenizer.json")
      .one_of({"sentencepiece", "bpe"})
      .show_default()
      .needs(train);
  command
      .add_option(
          "--tokenizer-out", options.tokenizer_out,
          "folder or file of the trained tokenizer (.model, for bpe .json; default: the folder of PREFIX)")
      .needs(train)
      .type_name("PATH");
  command.add_option("--threads", options.threads, "threads that encode; 0: one for each core")
      .range(0, 1024)
      .show_default()
      .type_name("N");
  command
      .add_option("--split", text->split,
                  "99:1 puts every 100th document (a text file is one) into PREFIX-val; of fewer files "
                  "than 200, the last hundredth of each text file")
      .type_name("TRAIN:VAL");
  command.add_option("--to", text->to, "megatron (PREFIX.idx + .bin) or llmc (PREFIX.bin)").type_name("FORMAT");
  command.add_flag(
      "--force", options.force,
      "replace existing token sets and tokenizers of these names, and unfinished work with other settings");
  add_record_options(command, *text);
  command
      .add_option("--cache", text->cache,
                  "limit of the local copies of s3:// inputs (default: 4GiB); removed at the end")
      .type_name("SIZE");
  command
      .add_option("--cache-dir", text->cache_folder, "folder of the cache (default: the folder of PREFIX)")
      .type_name("DIR");
  command.add_flag("--skip-bad", options.skip_bad, "skip unreadable records; count them and show the first");
  command
      .add_option("--longest-document", text->longest_document_mb,
                  "limit in MB of a line, a row, or a document that the tokenizer cannot divide; else refused")
      .range(1, 2000)
      .show_default()
      .type_name("MB");
  when_chosen(command, context, [text, &context] { return tokenize(*text, context); });
}

}  // namespace

void add_data(CommandLine& app, Context& context) {
  CommandLine group = app.add_subcommand("data", "clean and tokenize text; inspect and verify token sets");
  group.require_subcommand();

  add_data_dedup(group, context);
  add_data_filter(group, context);
  add_tokenize(group, context);
  add_data_mix(group, context);
  add_data_spikes(group, context);

  auto seen = std::make_shared<ReadArguments>();
  CommandLine command = group.add_subcommand("inspect", "format, tokens, documents and first texts of a token set");
  add_source(command, *seen);
  command.add_option("--tokenizer", seen->tokenizer,
      "tokenizer to show texts with (default: the one in the sidecar)").type_name("NAME|FILE");
  when_chosen(command, context, [seen, &context] { return inspect(*seen, context); });

  auto checked = std::make_shared<ReadArguments>();
  command = group.add_subcommand("verify", "read every byte of a token set; exit status 6 if something is wrong");
  add_source(command, *checked);
  command.add_option("--vocab", checked->vocab_size,
      "number of ids allowed (default: the one in the sidecar)").type_name("N");
  when_chosen(command, context, [checked, &context] { return verify(*checked, context); });
}

}  // namespace trainctl::cmd
