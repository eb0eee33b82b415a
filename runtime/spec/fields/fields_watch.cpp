// Fields of what watches a run: its loss, and who hears of what happens.
#include "runtime/base/units.h"
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {
namespace {

void declare_loss_remedies(DeclareSection& monitor) {
  monitor
      .integer("lead_steps",
               "Steps before the first bad one that belong to the trouble: the run goes back to a checkpoint "
               "before them, and the remedy begins with them.")
      .to(IN_JOB(observability.loss_monitor.lead_steps))
      .from(0)
      .upto(1e9)
      .unit(Unit::steps)
      .fallback(int64_t{0})
      .left_out_as_default();
  monitor.number("rate_factor", "With `lower_rate`: the factor of the learning rate.")
      .to(IN_JOB(observability.loss_monitor.rate_factor))
      .above(0)
      .upto(1)
      .fallback(0.5)
      .left_out_as_default();
  monitor.integer("rate_steps", "With `lower_rate`: for how many steps.")
      .to(IN_JOB(observability.loss_monitor.rate_steps))
      .from(1)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{500})
      .left_out_as_default();
  monitor
      .integer("max_rollbacks",
               "How often the run may go back for its loss. Where that was not enough, it stops and names "
               "the cause.")
      .to(IN_JOB(observability.loss_monitor.max_rollbacks))
      .from(1)
      .upto(1 << 20)
      .fallback(int64_t{3})
      .left_out_as_default();
}

void declare_loss_monitor(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection monitor(table, sections, "observability.loss_monitor",
                         "What counts as a loss that leaves its level, and what is done about it.",
                         Change::free);
  monitor
      .choice("policy", words_of<LossPolicy>(),
              "What follows a spike or a divergence of the loss. `warn`: an event, a line, an alert. `skip`: "
              "the run goes back to the checkpoint before it and leaves out the samples of the bad steps in "
              "this pass over the data; all others are trained once. In a later pass they come again, with "
              "`data.shuffle` among other samples; `trainctl data spikes RUN` names their files. "
              "`lower_rate`: it goes back and has a lower learning rate from "
              "the first bad step on. What was decided is recorded with the run and in its checkpoints: the "
              "same decisions give the same bits.")
      .to(IN_JOB(observability.loss_monitor.policy))
      .fallback(std::string("warn"))
      .left_out_as_default()
      .also({"spike_policy", "rollback", "skip_data_on_spike"})
      .example("\"skip\"");
  monitor
      .integer("window",
               "The loss of a step is compared with the median of so many steps before it. Before there are "
               "so many, nothing counts as a spike.")
      .to(IN_JOB(observability.loss_monitor.window))
      .from(8)
      .upto(10000)
      .unit(Unit::steps)
      .fallback(int64_t{100})
      .left_out_as_default();
  monitor
      .number(
          "threshold",
          "A step is bad whose loss lies so many deviations above that median; a deviation is 1.48 times "
          "the median distance from it, and at least 0.5 % of the loss, or 0.005 where it is below 1. The "
          "same holds, with at least 0.05, for the logarithm of the gradient norm, and with at least 1 % for "
          "the "
          "loss of one source of several in `data.train`, as long as most others keep their level; both only "
          "warn.")
      .to(IN_JOB(observability.loss_monitor.threshold))
      .from(3)
      .upto(1e6)
      .fallback(10.0)
      .left_out_as_default();
  monitor
      .integer("diverged_steps",
               "So many bad steps in a row are no spike but a divergence; likewise steps in which half of "
               "the experts have no token.")
      .to(IN_JOB(observability.loss_monitor.diverged_steps))
      .from(2)
      .upto(10000)
      .unit(Unit::steps)
      .fallback(int64_t{20})
      .left_out_as_default();
  monitor
      .integer("plateau_steps",
               "A loss whose median over the second half of so many steps is less than a thousandth below "
               "that of the first half is reported as a plateau; 0: not looked for.")
      .to(IN_JOB(observability.loss_monitor.plateau_steps))
      .from(0)
      .upto(1 << 20)
      .unit(Unit::steps)
      .fallback(int64_t{0})
      .left_out_as_default();
  declare_loss_remedies(monitor);
}

void declare_alert_limits(DeclareSection& alerts) {
  alerts.number("loss_above", "Cause `loss`: the loss of a step is above this; 0: no such limit.")
      .to(IN_JOB(observability.alerts.loss_above))
      .from(0)
      .upto(1e6)
      .fallback(0.0)
      .left_out_as_default();
  alerts
      .number("tokens_per_s_below",
              "Cause `rate`: over 20 steps, with all that lies between them (saves, evaluations), the run "
              "trained fewer tokens a second than this; 0: no such limit.")
      .to(IN_JOB(observability.alerts.tokens_per_s_below))
      .from(0)
      .upto(1e15)
      .fallback(0.0)
      .left_out_as_default();
  alerts
      .number("goodput_below_percent",
              "Cause `goodput`: of the last hour less than this went into steps that count. The rest are "
              "starts, saves, evaluations, failures and steps that are trained again. 0: no such limit.")
      .to(IN_JOB(observability.alerts.goodput_below_percent))
      .from(0)
      .upto(100)
      .fallback(0.0)
      .left_out_as_default();
  alerts.number("silence_seconds", "Cause `silence`: no step has ended for this long.")
      .to(IN_JOB(observability.alerts.silence_seconds))
      .above(0)
      .upto(7 * kDayS)
      .unit(Unit::seconds)
      .fallback(900.0)
      .left_out_as_default()
      .example("\"15m\"");
  alerts
      .number("disk_free_percent",
              "Cause `disk`: less than this share is free where the run's records or checkpoints are.")
      .to(IN_JOB(observability.alerts.disk_free_percent))
      .from(0)
      .upto(100)
      .fallback(5.0)
      .left_out_as_default();
  alerts
      .number(
          "temperature_above_c",
          "Cause `temperature`: a GPU of the run is hotter than this, in degrees Celsius; 0: no such limit.")
      .to(IN_JOB(observability.alerts.temperature_above_c))
      .from(0)
      .upto(200)
      .fallback(0.0)
      .left_out_as_default();
  alerts
      .number("timeout_seconds",
              "How long one request or one run of the command may take. The run never waits for it, but for "
              "this long at its end.")
      .to(IN_JOB(observability.alerts.timeout_seconds))
      .above(0)
      .upto(600)
      .unit(Unit::seconds)
      .fallback(10.0)
      .left_out_as_default();
  alerts.integer("tries", "How often an alert is tried before the run gives it up.")
      .to(IN_JOB(observability.alerts.tries))
      .from(1)
      .upto(100)
      .fallback(int64_t{3})
      .left_out_as_default();
}

void declare_alerts(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection alerts(table, sections, "observability.alerts",
                        "Who hears of what happens in a run: once for each cause, also over restarts; of a "
                        "limit again once it was kept for an hour.",
                        Change::free);
  alerts
      .string("webhook",
              "URL that gets each alert as a POST with a JSON object (kind \"alert\"); empty: none.")
      .to(IN_JOB(observability.alerts.webhook))
      .fallback(std::string())
      .left_out_as_default()
      .also({"slack", "webhook_url"})
      .example("\"https://hooks.example.org/training\"");
  alerts
      .field(Type::text_list, "command",
             "Program and arguments, run for each alert on the machine of the supervisor, without a shell. "
             "Arguments stay as they are. "
             "The sentence of the alert is added as the last argument, and TRAINCTL_ALERT in its environment "
             "is the JSON object. Empty: none.")
      .to(IN_JOB(observability.alerts.command))
      .names(Names::command)
      .fallback(std::vector<std::string>{})
      .left_out_as_default()
      .also({"notify", "mail"})
      .example("[\"/usr/local/bin/page\", \"--team\", \"training\"]");
  alerts.field(Type::text_list, "on", "The causes that count.", words_of<AlertCause>())
      .to(IN_JOB(observability.alerts.on))
      .fallback(words_of<AlertCause>())
      .left_out_as_default()
      .example("[\"failure\", \"divergence\"]");
  declare_alert_limits(alerts);
}

}  // namespace

void declare_watch(std::vector<Field>& table, std::vector<Section>& sections) {
  declare_loss_monitor(table, sections);
  declare_alerts(table, sections);
}

}  // namespace trainctl::spec
