// The part of the field table about evaluation and checkpoints.
#include "runtime/base/units.h"
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {

namespace {

void declare_copies_in_memory(DeclareSection& checkpoint) {
  checkpoint
      .choice(
          "memory", {"auto", "on", "off", "one"},
          "Copies of the state in the memory of its node (/dev/shm), made while training goes on: a rank "
          "that fails costs one step. `on`: two copies, which take twice the state's size. `one`: a single "
          "copy, which takes the place of the one before: a rank that fails while it is made, or while "
          "a checkpoint is written from it, costs the steps since the last checkpoint. `auto`: two, one or "
          "none, as the memory allows.")
      .to(IN_JOB(checkpoint.memory))
      .fallback(std::string("auto"))
      .example("\"off\"");
  checkpoint
      .choice(
          "memory_every_steps", {"auto"},
          "Copy the state in memory after every so many steps; 0: only when it is saved to the folder. "
          "`auto`: after the number of steps with which copies and repeated work lose the least time (Young "
          "and Daly, from the time for which training was seen to wait for a copy).")
      .from(0)
      .upto(1e12)
      .to_word_or_count(IN_JOB(checkpoint.memory_when), EverySteps::given,
                        IN_JOB(checkpoint.memory_every_steps))
      .fallback(int64_t{1})
      .example("10");
  checkpoint
      .choice("partner", {"auto", "off"},
              "Second copies in the memory of another node, if the run has several: it goes on from memory "
              "also where it loses a node. They take as much memory again. `auto`: if the memory is there.")
      .to(IN_JOB(checkpoint.partner))
      .fallback(std::string("auto"))
      .example("\"off\"");
  checkpoint
      .integer(
          "partner_every_steps",
          "Send a copy to the other node after every so many steps; 0: after the number of steps with which "
          "these copies and repeated work lose the least time, from how much longer steps take meanwhile, "
          "and so that the network is training's alone for three quarters of the time.")
      .to(IN_JOB(checkpoint.partner_every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{0})
      .example("10");
  checkpoint
      .number(
          "exit_timeout_seconds",
          "How long a stop may take, from the request to the end of the run: for the step under way, saves "
          "that are being written, the last save, its check and its copy. What is not done by then is given "
          "up. A run that ends by itself waits as long for saves that were begun before its last one, and "
          "then for the check and the copy; its last save may take as long as it gets on.")
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
              "`given`: save as `every_steps` and `every_seconds` say. `auto`: after the number of steps "
              "with which saves and repeated work lose the least time (Young and Daly: the square root of "
              "2 x cost of a save x time between failures), as measured; `trainctl status` shows it.")
      .to(IN_JOB(checkpoint.interval))
      .fallback(std::string("given"))
      .example("\"auto\"");
  checkpoint.integer("every_steps", "Save after every so many steps; 0: not by steps.")
      .to(IN_JOB(checkpoint.every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{0})
      .also({"save_interval", "save_every"})
      .example("500");
  checkpoint
      .number("every_seconds",
              "Save after the first step that ends so long after the last save began; with `every_steps`, "
              "whichever comes first. With `interval` auto it is the longest interval (else an hour). 0: not "
              "by time.")
      .to(IN_JOB(checkpoint.every_seconds))
      .from(0)
      .upto(30 * kDayS)
      .unit(Unit::seconds)
      .fallback(0.0)
      .also({"every_minutes", "save_minutes"})
      .example("\"10m\"");
  checkpoint
      .number("mtbf_seconds",
              "Mean time between failures of the whole run, if it is known, for `interval` auto; 0: what the "
              "run observes, beginning with a week, or 200 days divided by its nodes.")
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
              "Copy a checkpoint to `store` after so many steps at least, and the last one of the run; "
              "0: each one. `auto`: so that copying takes a quarter of the time at most.")
      .from(0)
      .upto(1e12)
      .to_word_or_count(IN_JOB(checkpoint.store_when), EverySteps::given,
                        IN_JOB(checkpoint.store_every_steps))
      .fallback(int64_t{0})
      .example("5000");
  checkpoint
      .number("write_mib_per_s",
              "Behind the training each rank writes at most so many MiB a second of a checkpoint, so that a "
              "save takes less of cores and disk at a time; 0: no limit. What a stop waits for is not slowed "
              "down.")
      .to(IN_JOB(checkpoint.write_mib_per_s))
      .from(0)
      .upto(1e6)
      .fallback(0.0);
  checkpoint
      .number("scrub_mib_per_s",
              "A new checkpoint is read again once, at most so many MiB a second, and counts for `keep_last` "
              "when every byte is good.")
      .to(IN_JOB(checkpoint.scrub_mib_per_s))
      .above(0)
      .upto(1e6)
      .fallback(400.0);
}

}  // namespace

void declare_checkpoints(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection eval(table, sections, "eval", "Loss on the validation data.", Change::free);
  eval.integer("every_steps", "Evaluate after every so many steps; 0: never.")
      .to(IN_JOB(eval.every_steps))
      .from(0)
      .upto(1e12)
      .unit(Unit::steps)
      .fallback(int64_t{0})
      .also({"eval_interval", "interval"})
      .example("500");
  eval.integer("max_tokens",
               "Most validation tokens in one evaluation, rounded up to whole sequences; 0: all of them.")
      .from(0)
      .upto(1e15)
      .unit(Unit::tokens)
      .fallback(int64_t{0})
      .example("\"8M\"");

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
               "Newest checkpoints to keep. Two are always kept, so that a damaged one has a predecessor.")
      .to(IN_JOB(checkpoint.keep_last))
      .from(1)
      .upto(1 << 20)
      .fallback(int64_t{3})
      .also({"keep", "max_to_keep"});
  checkpoint
      .integer("keep_every_steps",
               "Milestones: save after steps divisible by this, too, and keep those checkpoints without a "
               "limit; 0: none.")
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
