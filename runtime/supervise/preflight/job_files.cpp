#include "runtime/supervise/preflight/job_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"
#include "data/file_source.h"
#include "data/loss_file.h"
#include "data/sidecar.h"
#include "runtime/base/error.h"
#include "runtime/base/paths.h"
#include "runtime/train/trainer.h"

namespace trainctl {
namespace {

bool is_file(FileSystem& fs, const std::string& path) { return fs.exists(path) && !fs.is_directory(path); }

/// As a person would type it: relative to the current folder where it is below that.
std::string typed(const std::string& path) {
  const std::string relative = std::filesystem::path(path).lexically_relative(current_folder()).string();
  return relative.empty() || relative.starts_with("..") ? path : relative;
}

std::string without_extension(const std::string& path) {
  return path.ends_with(".idx") || path.ends_with(".bin") ? path.substr(0, path.size() - 4) : path;
}

/// Whether `data tokenize` could have made the source: one prefix, in a format that it writes.
bool can_be_tokenized(const DataSource& source) {
  return source.format != TokenFormat::raw && source.path.find_first_of("*?[") == std::string::npos;
}

/// Once each, however many files of the job have the same mistake.
void look_at_sidecar(const ParsedJob& job, FileSystem& fs, const std::string& path,
                     std::vector<Diagnostic>& found) {
  const auto sidecar = data::read_sidecar(path);
  if (!sidecar) return;
  const auto add = [&](const char* field, const char* code, const Problem& problem) {
    const bool is_known =
        std::any_of(found.begin(), found.end(), [&](const auto& d) { return d.code == code; });
    if (problem.exists() && !is_known) found.push_back(diagnostic_at(job, field, code, problem.text()));
  };
  add("model.vocab_size", "E0508", data::larger_vocabulary(*sidecar, path, job.job.model.vocab_size));
  add("data.tokenizer", "E0509", data::other_tokenizer(fs, *sidecar, path, job.job.data.tokenizer));
}

void look_at_sources(const ParsedJob& job, FileSystem& fs, bool validation, std::vector<Diagnostic>& found) {
  const std::vector<data::SourceOptions> sources =
      dataset_options(job.job.data, job.job.model.vocab_size, validation).sources;
  for (size_t i = 0; i < sources.size(); ++i) {
    try {
      const data::ResolvedSource source = data::resolve(sources[i]);
      for (const std::string& path : source.paths) look_at_sidecar(job, fs, path, found);
      if (job.job.data.masks_documents() && !data::has_documents(source.format))
        found.push_back(
            diagnostic_at(job, fmt::format("data.{}.{}.path", validation ? "val" : "train", i), "E0511",
                          data::lacks_documents(sources[i].name.empty() ? sources[i].path : sources[i].name,
                                                source.format, job.job.data.packing == PackingKind::best_fit)
                              .text()));
    } catch (const Error& error) {
      found.push_back(diagnostic_at(job, fmt::format("data.{}.{}.path", validation ? "val" : "train", i),
                                    "E0504", error.what()));
    }
  }
}

void look_at_loss(const ParsedJob& job, FileSystem& fs, bool validation, std::vector<Diagnostic>& found) {
  bool any = false;
  const auto sources = dataset_options(job.job.data, job.job.model.vocab_size, validation).sources;
  for (size_t i = 0; i < sources.size(); ++i) {
    data::ResolvedSource source;
    try {
      source = data::resolve(sources[i]);
    } catch (const Error&) {
      return;  // reported
    }
    for (const std::string& path : source.paths) {
      try {
        any |= data::read_loss_header(fs, path).has_value();
      } catch (const Error& error) {
        found.push_back(diagnostic_at(job, fmt::format("data.{}.{}.path", validation ? "val" : "train", i),
                                      "E0513", error.what()));
        return;
      }
    }
  }
  if (!any && !validation && job.job.data.reads_loss())
    found.push_back(
        diagnostic_at(job, "data.loss", "E0514",
                      fmt::format("data.loss is \"{}\", but no source of data.train has a loss file ({})",
                                  word_of(job.job.data.loss), data::loss_path(sources.front().path))));
}

void look_at_tokenizer(const ParsedJob& job, FileSystem& fs, std::vector<Diagnostic>& found) {
  const data::TokenizerChoice& tokenizer = job.job.data.tokenizer;
  if (!tokenizer.is_file() || is_file(fs, tokenizer.path())) return;
  found.push_back(diagnostic_at(job, "data.tokenizer", "E0506",
                                fmt::format("there is no tokenizer {}", tokenizer.path())));
}

void look_at_weights(const ParsedJob& job, FileSystem& fs, std::vector<Diagnostic>& found) {
  if (job.job.model.init.from.empty()) return;
  try {
    ckpt::TensorFolder::open(fs, job.job.model.init.from);
  } catch (const Error& error) {
    found.push_back(diagnostic_at(job, "model.init.from", "E0507", fmt::format("the initial weights cannot be read: {}", error.what())));
  }
}

/// Not one that is there and does not fit.
bool is_missing(const Diagnostic& diagnostic) {
  return diagnostic.code != "E0508" && diagnostic.code != "E0509" && diagnostic.code != "E0513" &&
         diagnostic.code != "E0514";
}

}  // namespace

std::string tokenize_command(const DataSpec& data, int64_t vocab_size, FileSystem& fs) {
  const std::string prefix = without_extension(data.train.front().path);
  const data::TokenizerChoice& tokenizer = data.tokenizer;
  std::string line = "trainctl data tokenize FILES --out " + typed(prefix);
  if (tokenizer.is_bytes() || (tokenizer.is_file() && is_file(fs, tokenizer.path()))) {
    line += " --tokenizer " + typed(tokenizer.text());
  } else if (tokenizer.is_file()) {
    line += fmt::format(" --train-vocab {}", vocab_size);
    const std::filesystem::path path = tokenizer.path();
    const bool is_json = path.extension() == ".json";
    if (is_json) line += " --train-kind bpe";
    if (path != std::filesystem::path(prefix).parent_path() / (is_json ? "tokenizer.json" : "tokenizer.model"))
      line += " --tokenizer-out " + typed(tokenizer.path());
  }
  if (!data.val.empty() && without_extension(data.val.front().path) == prefix + "-val")
    line += " --split 98:2";
  return line;
}

bool sources_have_documents(const DataSpec& data) {
  for (const bool validation : {false, true})
    for (const data::SourceOptions& source : dataset_options(data, 1, validation).sources) {
      try {
        if (!data::has_documents(data::resolve(source).format)) return false;
      } catch (const Error&) {
        return false;  // reported where the data are opened
      }
    }
  return true;
}

Problem mixed_documents(const DataSpec& data) {
  std::string with, without;
  for (const bool validation : {false, true})
    for (const data::SourceOptions& source : dataset_options(data, 1, validation).sources) {
      try {
        (data::has_documents(data::resolve(source).format) ? with : without) = source.path;
      } catch (const Error&) {  // reported where the data are opened
      }
    }
  if (with.empty() || without.empty()) return Problem::none();
  return Problem(fmt::format(
      "{} says where documents begin and {} does not: tokens see what is before their document, as "
      "data.documents = \"ignore\" says; tokenize the second as a Megatron set (`trainctl data tokenize`)",
      with, without));
}

TargetLoss loss_of_sources(const DataSpec& data, FileSystem& fs) {
  TargetLoss loss = TargetLoss::all;
  for (const data::SourceOptions& source : dataset_options(data, 1, false).sources) {
    try {
      for (const std::string& path : data::resolve(source).paths)
        if (const auto header = data::read_loss_header(fs, path))
          loss = std::max(loss, header->largest > 1 ? TargetLoss::weights : TargetLoss::mask);
    } catch (const Error&) {
      // A missing source is reported where the data are opened, and a loss file only if it is to be read.
      if (loss == TargetLoss::all) loss = TargetLoss::mask;
    }
  }
  return loss;
}

std::vector<Diagnostic> missing_files(const ParsedJob& job, FileSystem& fs, bool weights) {
  std::vector<Diagnostic> found;
  look_at_sources(job, fs, false, found);
  look_at_sources(job, fs, true, found);
  if (job.job.data.loss != TargetLoss::all)
    for (const bool validation : {false, true}) look_at_loss(job, fs, validation, found);
  look_at_tokenizer(job, fs, found);
  const bool of_data =
      std::any_of(found.begin(), found.end(), [](const Diagnostic& d) { return is_missing(d); });
  if (weights) look_at_weights(job, fs, found);
  std::stable_sort(found.begin(), found.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::tie(a.file, a.line, a.column) < std::tie(b.file, b.line, b.column);
  });
  if (found.empty()) return found;
  // Once, below the last: what makes them, and where paths start.
  std::vector<std::string>& help = found.back().help;
  if (of_data && can_be_tokenized(job.job.data.train.front()))
    help.push_back("make the token files: " + tokenize_command(job.job.data, job.job.model.vocab_size, fs));
  if (std::any_of(found.begin(), found.end(), [](const Diagnostic& d) { return is_missing(d); }))
    help.push_back(
        "a path in a spec is relative to the folder of its file, one given with --set to the current folder");
  return found;
}

}  // namespace trainctl
