// trainctl export and trainctl import: Hugging Face folders, both ways.
#include <cstdio>
#include <memory>
#include <thread>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/exchange/export.h"
#include "runtime/exchange/import.h"

namespace trainctl::cmd {
namespace {

struct ExportOptions {
  RunArguments run;
  ExportRequest request;
  std::string dtype = "bf16", shard_size = "5GB", tokenizer;
};

int run_export(ExportOptions options, const Context& context) {
  ExportRequest& request = options.request;
  request.dtype = options.dtype == "f32" ? DType::f32 : DType::bf16;
  const auto bytes = bytes_of(options.shard_size);
  if (!bytes)
    throw Error(ErrorCode::kUsage,
                fmt::format("--shard-size {} is not a size; write it as 5GB or 512MiB", options.shard_size));
  request.shard_bytes = *bytes;
  request.checkpoint = find_checkpoint(options.run);
  request.tokenizer = data::TokenizerChoice::of(options.tokenizer);
  request.threads = int(std::max(1u, std::thread::hardware_concurrency()));
  const ExportReport report = export_checkpoint(real_file_system(), request);
  print_result("export", context.json ? report.to_json() : report.text(), context);
  return kExitDone;
}

int run_import(const ImportRequest& request, const Context& context) {
  const ImportReport report = import_folder(real_file_system(), request);
  print_result("import", context.json ? report.to_json() : report.text(), context);
  if (!context.json && !context.quiet())
    fmt::print(stderr,
               "next: trainctl init --from {0} -o job.json, then trainctl launch job.json --from {0}\n",
               report.out);
  return kExitDone;
}

}  // namespace

void add_export(CommandLine& app, Context& context) {
  auto options = std::make_shared<ExportOptions>();
  CommandLine command =
      app.add_subcommand("export", "write the weights of a checkpoint as a Hugging Face folder");
  add_run_arguments(command, options->run, true);
  command.add_option("--out", options->request.out, "folder to make; it appears complete or not at all")
      .required()
      .type_name("DIR");
  command.add_option("--dtype", options->dtype, "number format of the weights: f32 is exact")
      .one_of({"bf16", "f32"})
      .show_default();
  command.add_option("--shard-size", options->shard_size, "limit of the bytes of tensors in one file")
      .type_name("SIZE")
      .show_default();
  command.add_flag("--ema", options->request.averages,
                   "write the averages of the weights (optimizer.ema) instead of them");
  command
      .add_option("--check-forward", options->request.check_tokens,
                  "compute the logits of N tokens from the folder and from the checkpoint; exit status 7 if "
                  "they differ")
      .range(1, 100000)
      .type_name("N");
  command.add_option("--tokenizer", options->tokenizer, "tokenizer file or `bytes`, if the run does not "
                                                        "name one");
  when_chosen(command, context, [options, &context] { return run_export(*options, context); });
}

void add_import(CommandLine& app, Context& context) {
  auto request = std::make_shared<ImportRequest>();
  auto without = std::make_shared<bool>(false);
  CommandLine command = app.add_subcommand("import", "make a checkpoint of step 0 of a Hugging Face folder");
  command.add_option("DIR", request->from, "folder with config.json and safetensors")
      .required()
      .type_name("");
  command.add_option("--out", request->out, "checkpoint to make; it appears complete or not at all")
      .required()
      .type_name("CKPT");
  command.add_flag("--no-tokenizer", *without, "take the weights only, not the folder's tokenizer");
  when_chosen(command, context, [request, without, &context] {
    request->takes_tokenizer = !*without;
    return run_import(*request, context);
  });
}

}  // namespace trainctl::cmd
