// The part of the field table about evaluation and checkpoints.
#include "runtime/base/units.h"
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {

namespace {

void declare_copies_in_memory(DeclareSection& checkpoint) {
  checkpoint
      .choice(
          "memory", {"auto", "on", "off", "one"},
          "Keep copies of the state in the memory of each node (/dev/shm), made while training continues: "
          "the failure of a rank then costs one step. `on`: two copies, which take twice the size of the "
          "state. `one`: one copy, overwritten in place. If a rank fails during the copy, or while a "
          "checkpoint is written from it, the run resumes from the last checkpoint. `auto`: two, one or "
          "none, as the memory allows.")
      .to(IN_JOB(checkpoint.memory))
      .fallback(std::string("auto"))
      .example("\"off\"");
  checkpoint
      .choice(
          "memory_every_steps", {"auto"},
          "Steps between two copies in memory; 0: copy only when a checkpoint is saved. `auto`: the number "
          "of steps that loses the least time to copies and repeated work (Young and Daly, from the "
          "measured wait of the training for a copy).")
      .from(0)
      .upto(1e12)
      .to_word_or_count(IN_JOB(checkpoint.memory_when), EverySteps::given,
                        IN_JOB(checkpoint.memory_every_steps))
      .fallback(int64_t{1})
      .example("10");
  checkpoint
      .choice("partner", {"auto", "off"},
              "Keep second copies in the memory of another node. After the loss of a node the run "
              "continues from memory. Doubles the memory used. `auto`: on if it fits.")
      .to(IN_JOB(checkpoint.partner))
      .fallback(std::string("auto"))
      .example("\"off\"");
  checkpoint
      .integer(
          "partner_every_steps",
          "Steps between two copies to the other node. 0: the number that loses the least time to copies "
          "and repeated work, from the measured slowdown of the steps, and uses the network at most a "
          "quarter of the time.")
      .to(IN_JOB(checkpoint.partner_every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{0})
      .example("10");
  checkpoint
      .number(
          "exit_timeout_seconds",
          "How long a stop may take, from the request to the end of the run: the step under way, "
          "unfinished saves, the last save, its check and its copy. What is unfinished then is abandoned. "
          "When a run ends by itself, its last save has no limit while it makes progress; the saves begun "
          "before it have this limit, and so have the check and the copy after it.")
      .to(IN_JOB(checkpoint.exit_timeout_seconds))
      .above(0)
      .upto(7 * kDayS)
      .unit(Unit::seconds)
      .fallback(600.0)
      .example("\"5m\"");
}

void declare_when_to_save(DeclareSection& checkpoint) {
  checkpoint
      .choice("interval", {"given", "auto"},
              "`given`: save by `every_steps` and `every_seconds`. `auto`: save after the number of steps "
              "that loses the least time to saves and repeated work (Young and Daly: the square root of 2 "
              "x cost of a save x time between failures, both measured); `trainctl status` shows it.")
      .to(IN_JOB(checkpoint.interval))
      .hint("a time goes into checkpoint.every_seconds, a number of steps into checkpoint.every_steps")
      .fallback(std::string("given"))
      .example("\"auto\"");
  checkpoint.integer("every_steps", "Steps between two saves; 0: no saves by steps.")
      .to(IN_JOB(checkpoint.every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{0})
      .also({"save_interval", "save_every"})
      .example("500");
  checkpoint
      .number("every_seconds",
              "Seconds between two saves: a save follows the first step that ends this long after the last "
              "save began. With `every_steps`, whichever comes first. With `interval` auto: the longest "
              "interval allowed (0: an hour). 0: no saves by time.")
      .to(IN_JOB(checkpoint.every_seconds))
      .from(0)
      .upto(30 * kDayS)
      .unit(Unit::seconds)
      .fallback(0.0)
      .also({"every_minutes", "save_minutes"})
      .example("\"10m\"");
  checkpoint
      .number("mtbf_seconds",
              "Mean time between failures of the whole run, for `interval` auto. 0: estimated from the "
              "run's own failures; initial estimate: the smaller of 7 days and 200 days / nodes.")
      .to(IN_JOB(checkpoint.mtbf_seconds))
      .from(0)
      .upto(3650 * kDayS)
      .unit(Unit::seconds)
      .fallback(0.0)
      .also({"mtbf", "mtbf_hours"})
      .example("\"5h\"");
}

/// What happens to a checkpoint after it was saved.
void declare_care(DeclareSection& checkpoint) {
  checkpoint
      .string("store",
              "Where copies of the checkpoints go, in a folder of the run's id: `s3://bucket/prefix` "
              "(AWS_ENDPOINT_URL and credentials from the environment or ~/.aws/credentials), or an "
              "absolute path on another disk. A resume takes a checkpoint from there if it is newer than "
              "those in `dir`. Empty: no copies.")
      .to(IN_JOB(checkpoint.store))
      .fallback(std::string())
      .also({"bucket", "s3", "upload"})
      .example("\"s3://bucket/prefix\"");
  checkpoint
      .choice("store_every_steps", {"auto"},
              "Least number of steps between two checkpoints that are copied to `store`; 0: every "
              "checkpoint is copied. The last one of the run always is. `auto`: copying takes at most a "
              "quarter of the time.")
      .from(0)
      .upto(1e12)
      .to_word_or_count(IN_JOB(checkpoint.store_when), EverySteps::given,
                        IN_JOB(checkpoint.store_every_steps))
      .fallback(int64_t{0})
      .example("5000");
  checkpoint
      .number("write_mib_per_s",
              "MiB per second that a rank writes of a checkpoint at most, while training continues, so "
              "that a save takes less of cores and disk at a time; 0: no limit. Saves that a stop waits "
              "for have no limit.")
      .to(IN_JOB(checkpoint.write_mib_per_s))
      .from(0)
      .upto(1e6)
      .fallback(0.0);
  checkpoint
      .number("scrub_mib_per_s",
              "MiB per second at most for the check of a new checkpoint, which reads it again once. It "
              "counts for `keep_last` if every byte is good.")
      .to(IN_JOB(checkpoint.scrub_mib_per_s))
      .above(0)
      .upto(1e6)
      .fallback(400.0);
}

void declare_evaluation(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection eval(table, sections, "eval", "Loss on the validation data, and tasks.", Change::free);
  eval.integer("every_steps",
               "Steps between two evaluations; 0: none. Else the last step of a run is evaluated, too.")
      .to(IN_JOB(eval.every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{0})
      .also({"eval_interval", "interval"})
      .example("500");
  eval.integer("max_tokens",
               "Limit of validation tokens in one evaluation, rounded up to whole sequences; 0: all of "
               "them.")
      .from(0)
      .upto(1e15)
      .unit(Unit::tokens)
      .fallback(int64_t{0})
      .example("\"8M\"");
  eval.field(
          Type::text_list, "tasks",
          "Files of multiple-choice tasks that are scored during the run: llm.c's .bin, or JSON lines with "
          "context, endings and label, for which `data.tokenizer` must be known. As `trainctl eval --tasks` "
          "does it. The last step of a run is scored, too.")
      .to(IN_JOB(eval.tasks))
      .names(Names::file)
      .fallback(std::vector<std::string>{})
      .left_out_as_default()
      .example("[\"hellaswag_val.bin\"]");
  eval.integer("tasks_every_steps", "Steps between two scores of the tasks; 0: as `every_steps`, and with both 0 after the last step alone.")
      .to(IN_JOB(eval.tasks_every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{0})
      .left_out_as_default();
  eval.integer("max_examples", "Of each task, the first so many examples are scored; 0: all of them.")
      .to(IN_JOB(eval.max_examples))
      .from(0)
      .upto(1e9)
      .fallback(int64_t{1000})
      .left_out_as_default();
}

}  // namespace

void declare_checkpoints(std::vector<Field>& table, std::vector<Section>& sections) {
  declare_evaluation(table, sections);
  DeclareSection checkpoint(table, sections, "checkpoint", "What is saved, when and how long it is kept.",
                            Change::free);
  checkpoint.string("dir", "Folder of the checkpoints; empty: `ckpt` in the run directory.")
      .to(IN_JOB(checkpoint.dir))
      .names(Names::file)
      .fallback(std::string())
      .also({"directory", "path", "save_dir"})
      .example("\"/ckpt/job\"");
  declare_when_to_save(checkpoint);
  checkpoint.boolean("on_exit", "Save at the end of training.").to(IN_JOB(checkpoint.on_exit)).fallback(true);
  checkpoint
      .integer("keep_last",
               "Number of newest checkpoints to keep; at least two are kept, in case one is damaged.")
      .to(IN_JOB(checkpoint.keep_last))
      .from(1)
      .upto(1 << 20)
      .fallback(int64_t{3})
      .also({"keep", "max_to_keep"});
  checkpoint
      .integer("keep_every_steps",
               "Milestones: also save after steps divisible by this number, and never delete those "
               "checkpoints; 0: none.")
      .to(IN_JOB(checkpoint.keep_every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{0})
      .also({"milestone_every_steps", "milestones"})
      .example("5000");
  checkpoint.number("chunk_mib", "Largest piece of a tensor that is written and hashed at once.")
      .to(IN_JOB(checkpoint.chunk_mib))
      .on_change(Change::numerics)
      .above(0)
      .upto(4096)
      .unit(Unit::mebibytes)
      .fallback(8.0);
  declare_copies_in_memory(checkpoint);
  declare_care(checkpoint);
}

}  // namespace trainctl::spec
