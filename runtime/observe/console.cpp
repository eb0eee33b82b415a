#include "runtime/observe/console.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "runtime/base/text.h"

namespace trainctl {
namespace {

constexpr int kRowsPerHeader = 20;
/// Steps may come faster than anyone can read.
constexpr double kRedrawS = 0.1;

}  // namespace

TerminalConsole::TerminalConsole(Options options)
    : options_(std::move(options)), goodput_(options_.begun_unix_s) {
  if (options_.write) return;
  errors_ = std::make_unique<FileWorker>();
  options_.write = [this](const std::string& text) {
    errors_->ask([text] {
      std::fwrite(text.data(), 1, text.size(), stderr);
      std::fflush(stderr);
    });
  };
}

TerminalConsole::~TerminalConsole() { clear(); }

void TerminalConsole::clear() {
  if (!progress_shown_) return;
  options_.write("\r\033[K");
  progress_shown_ = false;
}

void TerminalConsole::line(const std::string& text) {
  clear();
  options_.write(text + "\n");
  if (options_.terminal && !progress_.empty()) draw_progress();
}

void TerminalConsole::say(const std::string& text) {
  progress_.clear();
  line(text);
}

void TerminalConsole::note(const std::string& text) {
  if (!options_.quiet) line(text);
}

void TerminalConsole::draw_progress() {
  if (errors_ && errors_->hangs()) return;
  options_.write("\r" + progress_ + "\033[K");
  progress_shown_ = true;
}

namespace {

std::string key_value_line(const StepLine& v, double unix_s) {
  std::string text = fmt::format("t={} step={}", utc_text(unix_s), v.step);
  const auto add = [&](const char* key, double value, const char* format) {
    if (!std::isnan(value)) text += fmt::format(" {}={}", key, fmt::format(fmt::runtime(format), value));
  };
  add("loss", v.loss, "{:.4f}");
  add("grad_norm", v.grad_norm, "{:.3g}");
  add("lr", v.lr, "{:.3g}");
  add("loss_scale", v.loss_scale, "{:.0f}");
  add("tok_s", v.tokens_per_s, "{:.0f}");
  add("mfu", v.mfu, "{:.3f}");
  add("step_s", v.step_s, "{:.3g}");
  add("val_loss", v.val_loss.value_or(NAN), "{:.4f}");
  for (const TaskScore& task : v.tasks) add(("acc." + task.name).c_str(), task.accuracy, "{:.4f}");
  if (const Spread<double>* compute = v.compute()) {
    add("compute_min_s", compute->min, "{:.3g}");
    add("compute_median_s", compute->median, "{:.3g}");
    add("compute_max_s", compute->max, "{:.3g}");
    text += fmt::format(" compute_max_rank={}", compute->max_rank);
    if (!compute->max_node.empty()) text += " compute_max_node=" + compute->max_node;
  }
  return text;
}

/// The columns of the table that fit; the header when `view` is null.
std::string table_row(const StepLine* v, double left_s, int columns) {
  struct Cell {
    const char* name;
    int width;
    std::string text;
  };
  const auto number = [&](double value, const char* format) {
    return std::isnan(value) ? std::string("-") : fmt::format(fmt::runtime(format), value);
  };
  const StepLine& view = v ? *v : StepLine{};
  const Cell cells[] = {{"step", 8, std::to_string(view.step)},
                        {"loss", 9, number(view.loss, "{:.4f}")},
                        {"gnorm", 9, number(view.grad_norm, "{:.3g}")},
                        {"lr", 10, number(view.lr, "{:.2e}")},
                        {"tok/s", 10, short_number(view.tokens_per_s)},
                        {"mfu", 8, number(view.mfu * 100, "{:.1f}%")},
                        {"step_s", 9, number(view.step_s, "{:.3g}")},
                        {"data", 8, number(view.data_wait() * 100, "{:.1f}%")},
                        {"eta", 10, short_duration(left_s)},
                        {"skew", 9, number(view.skew() * 100, "{:.0f}%")}};
  std::string row;
  int used = 0;
  for (const Cell& cell : cells) {
    used += cell.width;
    if (columns > 0 && used >= columns) break;
    row += fmt::format("{:>{}}", v ? cell.text : cell.name, cell.width);
  }
  return row;
}

}  // namespace

void TerminalConsole::step(const StepLine& v, bool log, double unix_s) {
  if (v.skipped && !v.overflow)  // an overflow is part of how a loss scale is found
    note(
        fmt::format(" ! step {} is skipped: its loss or gradient norm is not finite, or it has no target; "
                    "parameters are unchanged ({} so far)",
                    v.step, count_of(v.skipped_steps, "step")));
  if (options_.quiet) return;
  pace_.step(v.attempt, std::isnan(v.unix_s) ? unix_s : v.unix_s);
  goodput_.step(v, unix_s);
  if (!std::isnan(v.tokens_per_s)) tokens_per_s_ = v.tokens_per_s, mfu_ = v.mfu;
  const int64_t total = options_.total_steps;
  const double left_s = total > 0 ? double(total - v.step) * pace_.mean_s() : NAN;
  if (!options_.terminal) {
    if (!log && !v.val_loss && v.tasks.empty()) return;
    return line(key_value_line(v, unix_s));
  }
  const int columns = options_.columns ? options_.columns() : 0;
  if (log) {
    if (rows_++ % kRowsPerHeader == 0) line(table_row(nullptr, 0, columns));
    line(table_row(&v, left_s, columns));
  }
  if (v.val_loss) line(fmt::format(" ▸ validation step {} · loss {:.4f}", v.step, *v.val_loss));
  if (!v.tasks.empty()) line(fmt::format(" ▸ tasks step {} · {}", v.step, scores_text(v.tasks)));
  progress_ = progress_line({.step = v.step,
                             .total = total,
                             .loss = v.loss,
                             .tokens_per_s = tokens_per_s_,
                             .mfu = mfu_,
                             .goodput = goodput_.value(),
                             .left_s = left_s},
                            columns, options_.color);
  if (unix_s - drawn_unix_s_ < kRedrawS && progress_shown_) return;
  drawn_unix_s_ = unix_s;
  draw_progress();
}

}  // namespace trainctl
