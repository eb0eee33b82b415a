#include "runtime/observe/terminal/top_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/observe/run_table.h"
#include "runtime/observe/sparkline.h"
#include "runtime/observe/status.h"
#include "runtime/observe/text_table.h"
#include "runtime/run/record/uneven_experts.h"

namespace trainctl::terminal {
namespace {

constexpr int kLabel = 9;
constexpr int kMostCells = 64;

std::string number(double value, const char* format) {
  return std::isnan(value) ? std::string("-") : fmt::format(fmt::runtime(format), value);
}

/// Lines of a fixed width, in parts that may be coloured.
class Lines {
 public:
  explicit Lines(const TopView& view) : view_(view) {}
  void add(const char* label, const std::string& text, const char* color = "") {
    const std::string line = cut_to(padded_to(label, kLabel) + text, view_.width);
    push(view_.color && *color ? color + line + kPlainColor : line);
  }
  /// Text with colours in it, which fits.
  void push(std::string line) { lines_.push_back(std::move(line)); }
  int left() const { return view_.height == 0 ? 1 << 20 : view_.height - int(lines_.size()); }
  std::string text() const {
    std::string all;
    for (size_t i = 0; i < lines_.size() && (view_.height == 0 || int(i) < view_.height); ++i)
      all += lines_[i] + "\n";
    return all;
  }

 private:
  const TopView& view_;
  std::vector<std::string> lines_;
};

// ---- the numbers of the run ------------------------------------------------------------------------------

std::string state_text(const TopFrame& f) {
  if (f.status.started_unix_s == 0 && f.status.updated_unix_s == 0) return "not started";
  std::string text(word_of(f.status.state));
  if (!f.supervised && !f.status.ended() && f.status.state != RunState::submitted)
    text += " when its supervisor died";
  return text;
}

void add_header(const TopFrame& f, const TopView& view, Lines& lines) {
  const RunStatus& s = f.status;
  const double share = s.total_steps > 0 ? double(s.step) / double(s.total_steps) : 0;
  const bool bad = s.state == RunState::failed || (!f.supervised && !s.ended());
  lines.add(
      "run",
      fmt::format("{} · {} · attempt {} · {}", f.id, state_text(f), s.epoch, count_of(s.restarts, "restart")),
      bad ? "\033[1;31m" : "\033[1m");
  const std::string left = std::isnan(f.left_s) ? "" : " · eta " + short_duration(f.left_s);
  const std::string numbers = fmt::format("{}/{} {:.1f} %{}", s.step, s.total_steps, share * 100, left);
  const int room = std::min(40, view.width - kLabel - columns_of(numbers) - 3);
  lines.add("step", room >= 8 ? fmt::format("[{}] {}", bar(share, room), numbers) : numbers);
  std::string loss = number(f.last.loss, "{:.4f}");
  const std::string rest =
      fmt::format("{} · grad norm {} · lr {}",
                  f.val_step > 0 ? fmt::format(" · val {:.4f} (step {})", f.val_loss, f.val_step) : "",
                  number(f.last.grad_norm, "{:.3g}"), number(f.last.lr, "{:.2e}"));
  const int curve = std::clamp(view.width - kLabel - columns_of(loss + rest) - 1, 0, 40);
  if (curve >= 8) {
    const std::vector<double> values = shortened(f.losses, size_t(curve));
    const auto [low, high] = range_of(values);
    loss += " " + sparkline(values, low, high);
  }
  lines.add("loss", loss + rest);
  lines.add("speed", fmt::format("{} tokens/s · mfu {} · goodput {} · {} s a step",
                                 short_number(f.last.tokens_per_s), number(f.last.mfu * 100, "{:.1f} %"),
                                 number(f.goodput * 100, "{:.1f} %"), number(f.step_s, "{:.3g}")));
  if (f.last.experts) {
    const ExpertSummary& e = *f.last.experts;
    const bool bad = e.most > UnevenExperts::most_allowed(e) || e.idle_steps >= UnevenExperts::kSteps;
    lines.add("experts", experts_text(e), bad ? "\033[33m" : "");
  }
  for (const std::string& note : f.notes) lines.add("note", note, "\033[33m");
}

/// A bar of the parts of a step, and their shares below it.
void add_phases(const TopFrame& f, const TopView& view, Lines& lines) {
  double all = 0;
  for (const auto& [name, seconds] : f.phases) all += seconds;
  if (!(all > 0)) return;
  static const char* const kColors[] = {"\033[32m", "\033[36m", "\033[33m", "\033[35m",
                                        "\033[34m", "\033[37m", "\033[92m", "\033[91m"};
  const int width = std::max(8, std::min(view.width, 100) - kLabel);
  std::string drawn, legend;
  double sum = 0;
  int used = 0;
  for (size_t i = 0; i < f.phases.size(); ++i) {
    const auto& [name, seconds] = f.phases[i];
    sum += seconds;
    const int until = int(std::lround(sum / all * width));
    const char letter = char(std::toupper(name[0]));
    std::string cells;
    for (; used < until; ++used) cells += view.color ? "█" : std::string(1, letter);
    drawn += view.color && !cells.empty() ? kColors[i % 8] + cells + kPlainColor : cells;
    if (seconds / all >= 0.005)
      legend += fmt::format("{}{} {:.0f} %", legend.empty() ? "" : " · ", name, seconds / all * 100);
  }
  lines.push(padded_to("phases", kLabel) + drawn);
  lines.add("", legend);
}

// ---- the ranks -------------------------------------------------------------------------------------------

int rank_count(const TopFrame& f) { return int(std::max(f.status.ranks.size(), f.ranks.compute_s.size())); }

double compute_of(const TopFrame& f, int rank) {
  return size_t(rank) < f.ranks.compute_s.size() ? f.ranks.compute_s[size_t(rank)] : TopFrame::kUnknown;
}

/// The time of a rank as a share of its stage's median; NaN: not known.
double pace_of(const TopFrame& f, const std::vector<double>& medians, int rank) {
  const size_t each = f.ranks.compute_s.size() / medians.size();
  return each == 0 || std::isnan(compute_of(f, rank)) ? TopFrame::kUnknown
                                                      : compute_of(f, rank) / medians[size_t(rank) / each];
}

struct Cell {
  const char *glyph, *color;
  int urgency;  ///< of several ranks in one cell the most urgent is drawn
};

Cell cell_of(const TopFrame& f, const std::vector<double>& medians, int rank) {
  if (f.supervised && size_t(rank) < f.status.ranks.size()) {
    const RankStatus& r = f.status.ranks[size_t(rank)];
    if (r.phase == RankPhase::lost) return {"x", "\033[1;31m", 9};
    if (r.stopped) return {"s", "\033[1;31m", 8};
    if (r.phase == RankPhase::absent) return {"?", "\033[2m", 7};
  }
  const double pace = pace_of(f, medians, rank);
  if (std::isnan(pace)) return {"·", "\033[2m", 0};
  if (pace <= 1.05) return {"░", "\033[32m", 1};
  if (pace <= 1.15) return {"▒", "\033[33m", 2};
  if (pace <= 1.3) return {"▓", "\033[31m", 3};
  return {"█", "\033[1;31m", 4};
}

std::string place_of(const TopFrame& f, int rank) {
  const bool named = size_t(rank) < f.status.ranks.size() && !f.status.nodes.empty();
  return named ? " on " + f.status.ranks[size_t(rank)].host : "";
}

/// "0.051 .. 0.0555 (median) .. 0.0619 s (rank 7 on node1)"
std::string spread_text(const TopFrame& f) {
  std::vector<double> times;
  int slowest = -1;
  for (int r = 0; r < int(f.ranks.compute_s.size()); ++r) {
    if (std::isnan(compute_of(f, r))) continue;
    times.push_back(compute_of(f, r));
    if (slowest < 0 || compute_of(f, r) > compute_of(f, slowest)) slowest = r;
  }
  if (times.empty()) return "no times yet";
  std::sort(times.begin(), times.end());
  return fmt::format("computed {:.3g} .. {:.3g} (median) .. {:.3g} s (rank {}{})", times.front(),
                     times[times.size() / 2], times.back(), slowest, place_of(f, slowest));
}

void add_grid(const TopFrame& f, const TopView& view, int most_rows, Lines& lines) {
  const int ranks = rank_count(f);
  if (ranks == 0) return;
  lines.add("ranks", fmt::format("{} · {}{}", ranks, spread_text(f),
                                 f.ranks.step > 0 ? fmt::format(" · step {}", f.ranks.step) : ""));
  const std::vector<double> medians = report::stage_medians(f.ranks.compute_s, size_t(std::max(1, f.stages)));
  const std::vector<int> order = grid_order(f, view.slowest_first);
  const int columns = grid_columns(view.width);
  const int cells_that_fit = columns * std::max(1, most_rows);
  const int each = (ranks + cells_that_fit - 1) / cells_that_fit;
  const int cells = (ranks + each - 1) / each;
  for (int row = 0; row * columns < cells; ++row) {
    const int first = row * columns * each;
    const std::string label =
        view.slowest_first ? (row == 0 ? "slowest" : "") : std::to_string(order[size_t(first)]);
    std::string line = fmt::format("{:>{}} ", label, kLabel - 1);
    for (int c = row * columns; c < std::min(cells, (row + 1) * columns); ++c) {
      Cell shown{" ", "", -1};
      bool selected = false;
      for (int i = c * each; i < std::min(ranks, (c + 1) * each); ++i) {
        const Cell cell = cell_of(f, medians, order[size_t(i)]);
        if (cell.urgency > shown.urgency) shown = cell;
        selected |= order[size_t(i)] == view.selected;
      }
      line += view.color
                  ? fmt::format("{}{}{}{}", shown.color, selected ? "\033[7m" : "", shown.glyph, kPlainColor)
                  : std::string(selected ? "@" : shown.glyph);
    }
    lines.push(line);
  }
  lines.add(
      "", fmt::format(
              "{}░ usual ▒ 5 % slower ▓ 15 % █ 30 %{}", view.color || view.selected < 0 ? "" : "@ selected ",
              each > 1 ? fmt::format(" · {} a cell, the slowest is drawn", count_of(each, "rank")) : ""));
}

void add_selected(const TopFrame& f, const TopView& view, Lines& lines) {
  const int rank = view.selected;
  if (rank < 0 || rank >= rank_count(f)) return;
  std::string who = fmt::format("{}{}", rank, place_of(f, rank));
  std::string doing = "nothing is known of it";
  if (size_t(rank) < f.status.ranks.size()) {
    const RankStatus& r = f.status.ranks[size_t(rank)];
    who += fmt::format(" · pid {} · {}{}", r.pid, word_of(r.phase), r.stopped ? ", stopped" : "");
    if (r.heard_unix_s > 0)
      who += fmt::format(" · heard {} ago", short_duration(std::max(0.0, f.now_unix_s - r.heard_unix_s)));
    doing = r.activity ? render(*r.activity) : "no word yet";
  }
  lines.add("rank", who, "\033[1m");
  const std::vector<double> medians = report::stage_medians(f.ranks.compute_s, size_t(std::max(1, f.stages)));
  const auto at = [&](const std::vector<double>& values) {
    return size_t(rank) < values.size() ? values[size_t(rank)] : TopFrame::kUnknown;
  };
  const double pace = pace_of(f, medians, rank);
  lines.add(
      "", fmt::format(
              "computed {} s{} · waited {} s · peak memory {}", number(compute_of(f, rank), "{:.3g}"),
              std::isnan(pace) ? "" : fmt::format(" ({:+.1f} % of its stage's median)", (pace - 1) * 100),
              number(at(f.ranks.wait_s), "{:.3g}"),
              std::isnan(at(f.ranks.peak_memory_bytes)) ? "-" : memory_text(at(f.ranks.peak_memory_bytes))));
  lines.add("", doing);
}

// ---- the machines ----------------------------------------------------------------------------------------

template <typename Number>
std::string spread_of(const std::optional<Spread<Number>>& s, std::string (*text)(double)) {
  if (!s) return "";
  return fmt::format("{} .. {} .. {} (rank {})", text(double(s->min)), text(double(s->median)),
                     text(double(s->max)), s->max_rank);
}

void add_devices(const TopFrame& f, Lines& lines) {
  if (!f.numerics.empty()) lines.add("device", f.numerics);
  if (f.last.gpus) {
    const GpuSpread& g = *f.last.gpus;
    std::string text;
    const auto add = [&](const std::string& part) {
      if (!part.empty()) text += (text.empty() ? "" : " · ") + part;
    };
    add(spread_of(g.temperature_c, [](double v) { return fmt::format("{:.0f} °C", v); }));
    add(spread_of(g.power_w, [](double v) { return fmt::format("{:.0f} W", v); }));
    add(spread_of(g.sm_clock_mhz, [](double v) { return fmt::format("{:.0f} MHz", v); }));
    if (!text.empty()) lines.add("gpus", text);
  }
  if (f.last.ranks && f.last.ranks->peak_memory_bytes)
    lines.add("memory", spread_of(f.last.ranks->peak_memory_bytes, memory_text) + " a rank at most");
}

void add_nodes(const TopFrame& f, const TopView& view, int most, Lines& lines) {
  if (!f.supervised || f.status.nodes.empty() || most < 3) return;
  const auto table = node_table(
      f.status, f.now_unix_s, {.columns = view.width - kLabel, .most_nodes = most - 2, .color = view.color});
  for (size_t i = 0; i < table.size(); ++i) lines.push(padded_to(i ? "" : "nodes", kLabel) + table[i]);
}

void add_checkpoints(const TopFrame& f, Lines& lines) {
  const RunStatus& s = f.status;
  std::string text = s.saved_step >= 0 ? fmt::format("step {}", s.saved_step) : "none yet";
  if (s.verified_step >= 0) text += fmt::format(" · {} verified", s.verified_step);
  if (s.staged_step >= 0) text += fmt::format(" · {} in memory", s.staged_step);
  if (!s.store.empty())
    text += fmt::format(" · {} copied to {}", std::max<int64_t>(s.uploaded_step, 0), s.store);
  lines.add("saved", text);
}

}  // namespace

int grid_columns(int width) { return std::clamp(width - kLabel, 1, kMostCells); }

std::vector<int> grid_order(const TopFrame& frame, bool slowest_first) {
  std::vector<int> order(size_t(rank_count(frame)));
  std::iota(order.begin(), order.end(), 0);
  if (!slowest_first) return order;
  const std::vector<double> medians =
      report::stage_medians(frame.ranks.compute_s, size_t(std::max(1, frame.stages)));
  const auto key = [&](int rank) {
    const Cell cell = cell_of(frame, medians, rank);
    const double pace = pace_of(frame, medians, rank);
    return std::pair(cell.urgency >= 7 ? cell.urgency : 0, std::isnan(pace) ? -1.0 : pace);
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) > key(b); });
  return order;
}

std::string render_top(const TopFrame& frame, const TopView& view) {
  Lines lines(view);
  add_header(frame, view, lines);
  add_phases(frame, view, lines);
  add_checkpoints(frame, lines);
  add_devices(frame, lines);
  // The grid takes what others leave.
  const bool short_of_rows = view.height > 0;
  constexpr int kMostEvents = 12, kLeastEvents = 3, kWithoutLimit = 64;
  const int nodes = frame.supervised ? int(frame.status.nodes.size()) : 0;
  const int events_there = int(event_lines(frame.events, kLeastEvents).size());
  const int kept = 3 + (view.selected < 0 ? 0 : 3) + events_there +
                   (nodes > 0 ? std::min(nodes + 1, lines.left() / 3) : 0);
  const int rows = short_of_rows ? std::max(1, lines.left() - kept) : kWithoutLimit;
  add_grid(frame, view, rows, lines);
  add_selected(frame, view, lines);
  add_nodes(frame, view,
            short_of_rows ? std::min(lines.left() - 1 - events_there, nodes + 2) : kWithoutLimit + 2, lines);
  const int for_events = short_of_rows ? std::max(0, lines.left() - 1) : kMostEvents;
  const auto events = event_lines(frame.events, size_t(std::min(for_events, kMostEvents)));
  for (size_t i = 0; i < events.size(); ++i) lines.add(i ? "" : "events", events[i]);
  std::string text = lines.text();
  if (!short_of_rows) return text;
  const int used = int(std::count(text.begin(), text.end(), '\n'));
  if (used >= view.height) {  // the keys are always there
    for (int drop = used - view.height + 1; drop > 0; --drop)
      text.erase(text.rfind('\n', text.size() - 2) + 1);
  }
  const std::string keys = cut_to(
      fmt::format("s {} · r {} · arrows select · q quit", view.slowest_first ? "by rank" : "slowest first",
                  view.selected < 0 ? "a rank" : "no rank"),
      view.width);
  return text + (view.color ? "\033[2m" + keys + kPlainColor : keys) + "\n";
}

void take_key(char key, const TopFrame& frame, TopView& view) {
  const std::vector<int> order = grid_order(frame, view.slowest_first);
  if (key == 's') view.slowest_first = !view.slowest_first;
  if (order.empty()) return;
  // The slowest rank is what a person looks for first.
  if (key == 'r') view.selected = view.selected < 0 ? grid_order(frame, true).front() : -1;
  constexpr std::string_view kMoves = "hjkl";
  const size_t move = kMoves.find(key);
  if (move == std::string_view::npos) return;
  const auto here = std::find(order.begin(), order.end(), view.selected);
  if (here == order.end()) {
    view.selected = order.front();
    return;
  }
  const int columns = grid_columns(view.width), steps[] = {-1, columns, -columns, 1};
  const auto to = (here - order.begin()) + steps[move];
  if (to >= 0 && to < ptrdiff_t(order.size())) view.selected = order[size_t(to)];
}

}  // namespace trainctl::terminal
