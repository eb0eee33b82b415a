// What the subcommands of `trainctl data` share.
#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "cmd/commands.h"
#include "runtime/observe/data_report.h"

namespace trainctl::cmd {

/// A progress line: rewritten on a terminal, one every ten seconds in a log, none for short work.
class DataProgress {
 public:
  explicit DataProgress(bool quiet);
  ~DataProgress();
  void operator()(const data::CorpusProgress& at);
  /// Prints a sentence of its own.
  void note(const std::string& text);

 private:
  void clear();
  void tick(std::stop_token stop);

  bool quiet_, terminal_, shown_ = false;
  std::optional<data::CorpusProgress> first_;  // of this activity
  std::string doing_, text_;
  double start_, next_, said_s_;
  std::mutex mutex_;
  std::condition_variable_any stopping_;
  std::jthread ticking_;  ///< in a terminal: shows that time passes where nothing is reported
};

/// What a separator on the command line means: \n, \r, \t, \f and \\ stand for themselves there.
std::string unescaped(const std::string& word);

void add_data_dedup(CommandLine& group, Context& context);
void add_data_filter(CommandLine& group, Context& context);
void add_data_spikes(CommandLine& group, Context& context);
void add_data_mix(CommandLine& group, Context& context);

}  // namespace trainctl::cmd
