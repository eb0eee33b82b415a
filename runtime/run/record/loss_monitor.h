// LossMonitor finds trouble in the sequence of a run's steps: spikes and divergence of the loss, of the
// losses of modules of multi-token prediction and of the gradient norm, a plateau, values that are not
// finite soon after a state was loaded, experts that have collapsed. Where the data have several sources,
// also of the loss of each, as long as most of the others keep their level.
//
// It sees only numbers that are the same bits on every mesh, and its state depends on the lines alone. So
// what it finds is the same on every mesh and, after the lines were given again, after every restart. Pure;
// one thread.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/record_fields.h"
#include "runtime/base/words.h"
#include "runtime/spec/fields/job.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl {

enum class LossTrouble { spike, divergence, plateau, not_finite, experts };
template <>
struct Words<LossTrouble> {
  static constexpr std::string_view list[] = {"spike", "divergence", "plateau", "not_finite", "experts"};
};

/// What the monitor found in steps [first, last].
struct LossIncident {
  LossTrouble kind = LossTrouble::spike;
  /// The number: "loss", "loss of source web", "mtp loss 1", "grad norm", "idle experts".
  std::string of = "loss";
  std::string source = {};  ///< of the data, whose loss it is; "": of all
  int64_t first = 0, last = 0;
  double first_value = 0;    ///< of step `first`
  double worst = 0;          ///< the largest of these steps
  double usual = 0;          ///< the median of the window before
  double score = 0;          ///< the first value's distance from it, in robust deviations; 0: it has none
  int64_t lead_sample = -1;  ///< that of lead_steps before, or of the first step; -1: not known
  int64_t sample = -1;       ///< the first sample of step `first` in the order of the data; -1: not known
  int64_t sample_end = -1;   ///< the one behind the last sample of step `last`
  std::string text() const;  ///< one sentence, without a full stop
  /// Of the loss itself: worth a rollback. One source alone is not: its next file may be as unusual.
  bool decides() const {
    return (kind == LossTrouble::spike || kind == LossTrouble::divergence) && of != "grad norm" &&
           source.empty();
  }
  /// The same trouble, seen again: the same numbers of the same samples.
  bool same_as(const LossIncident& other) const {
    return kind == other.kind && of == other.of && first == other.first && first_value == other.first_value &&
           sample == other.sample;
  }
  static void fields(auto& f, auto& r) {
    f("trouble", r.kind);
    f("of", r.of);
    f.when(!r.source.empty(), "source", r.source);
    f("first", r.first);
    f("last", r.last);
    f("first_value", r.first_value);
    f("worst", r.worst);
    f("usual", r.usual);
    f("score", r.score);
    f("sample", r.sample);
    f.later("lead_sample", r.lead_sample);
    f("sample_end", r.sample_end);
  }
};

class LossMonitor {
 public:
  /// `global_sequences`: samples of a step.
  LossMonitor(const LossMonitorSpec& spec, int64_t global_sequences);

  /// The steps from now on follow a state of `step` that was loaded.
  void loaded(int64_t step) { loaded_ = step; }
  /// Takes the next step and returns what is found with it. A spike is found with the first good step behind
  /// it, a divergence with its last bad one. Then nothing counts until the window is full of the new level.
  std::vector<LossIncident> step(const StepLine& line);

  /// A loss that is not finite counts up to so many steps after a load. Overflows of a loss scale do not:
  /// they say nothing about the state.
  static constexpr int64_t kAfterLoad = 10;

 private:
  /// One number of each step.
  struct Series {
    std::string name;
    std::function<double(const StepLine&)> value;  ///< what is compared; NaN: the step has none
    std::string source = {};                       ///< as of LossIncident
    double least_deviation = 0;                    ///< of small spread: so much counts as a deviation
    bool relative = true;                          ///< that is a share of the median
    std::deque<double> usual = {};                 ///< of good steps: at most the window
    std::optional<LossIncident> open = {};
  };
  /// How a number lies to those before it.
  struct Judged {
    double value = StepLine::kAbsent, usual = 0, score = 0;
    bool is_bad = false;
  };
  Judged judge(const Series& series, const StepLine& line) const;
  /// opens: a bad number may begin an incident.
  std::optional<LossIncident> take(Series& series, const Judged& judged, const StepLine& line,
                                   bool opens) const;
  void add_modules(size_t count);
  void add_sources(const std::vector<SourceLoss>& sources);
  std::vector<LossIncident> take_sources(const StepLine& line);
  std::optional<LossIncident> plateau(const StepLine& line);
  std::optional<LossIncident> experts(const StepLine& line);

  LossMonitorSpec spec_;
  int64_t global_sequences_;
  std::vector<Series> series_;
  std::vector<Series> sources_;
  std::deque<int64_t> samples_;     ///< the first ones of the last lead_steps + 1 steps
  std::deque<double> long_losses_;  ///< plateau_steps
  bool noticed_plateau_ = false, noticed_experts_ = false;
  int64_t idle_steps_ = 0;
  std::optional<int64_t> loaded_;
};

}  // namespace trainctl
