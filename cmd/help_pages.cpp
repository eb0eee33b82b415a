#include "cmd/help_pages.h"

namespace trainctl::cmd {
namespace {

constexpr const char* kJobPage = R"(a job

A job is one JSON file; `//` comments are allowed. `trainctl init` writes one, `trainctl validate` checks it,
`trainctl explain FIELD` describes a field, `trainctl explain` lists the sections.

  values    from the weakest to the strongest: the defaults, `model.preset`, the files in `extends`, the job,
            the environment (TRAINCTL_SET__schedule__lr=1e-4), the command line (-s schedule.lr=1e-4).
            `trainctl config JOB --show-origin` prints each value and its origin, of a run, too;
            `trainctl config JOB --diff OTHER` prints the fields that differ.
  paths     A path in a job is relative to the folder of the file that names it. A path given with -s is
            relative to the current folder.
  data      `trainctl data tokenize` makes token files. `trainctl validate` and `trainctl plan` report
            missing files with the command that makes them (exit status 6). With --no-data they do not look
            for files, e.g. on a login node, or for a study of a model.
  size      `trainctl plan JOB` reports memory, traffic and time, and whether the job fits (exit status 4:
            no). --device h100 plans for a GPU that is not here. --timeline draws the pipeline of a step,
            --schedules compares all pipeline schedules for it, --savings what saves memory. --alternatives N
            searches all meshes for the fastest; --cluster h100-2048 --gpus auto also for the number of GPUs.
  time      is predicted from a cluster file. `trainctl doctor --measure -o FILE` makes one of this machine,
            `trainctl plan JOB --cluster FILE` uses it, `trainctl plan --against RUN -o FILE` compares it with
            a run and corrects it.
  machine   `trainctl doctor` reports what this machine has. `trainctl doctor --deep` puts it to work for some
            seconds and names cores, GPUs and memory that are wrong or slow; --quarantine keeps runs off them.

What a resume may change (`trainctl explain FIELD` gives the class of a field):

  free              the mesh except `parallelism.tensor`, checkpoints, evaluation, logging, timeouts,
                    launching: the bits of the training stay the same
  changes numerics  length and future of the schedule, clipping, lanes, device, `parallelism.tensor`: allowed,
                    reported and recorded
  needs a branch    learning rate, optimizer, batch, data, precision, seed: start a new run from a checkpoint,
                    `trainctl launch JOB --from RUN@STEP`
  needs a new run   the shape of the model
)";

constexpr const char* kRunPage = R"(a run

A command takes a run by its id, by an unambiguous beginning of its id, by its path, or as `latest`.
Runs are in ./runs, or in --run-dir, $TRAINCTL_RUN_DIR or `observability.run_dir`.

  runs/<id>/job.json                the resolved spec
            metrics.jsonl           one line per step: numbers, time, attempt
            metrics.ranks.jsonl     the numbers of each rank
            metrics.experts.jsonl   how many tokens each expert got, where the model has experts
            events.jsonl            what happened, and when
            logs/rank-N.log         the output of a rank; logs/node-NAME.log that of an agent
            ckpt/step-N/            a checkpoint; one rename publishes it, so it is complete
            checkpoints.json        checkpoints whose every byte was read again; only they replace older ones
            failures/<n>/           crash records, logs and rings of a failure; merged.json: who was missing
            events.out.tfevents.*   the curves: tensorboard --logdir runs
            trainctl.prom           the state of the run for Prometheus, rewritten each second
            report.html             written by `trainctl report`
            trace/                  written by `trainctl trace`

  watch     `trainctl top`, `trainctl status --watch`, `trainctl status --serve` (a web page), `trainctl logs
            --follow`, `trainctl list`
  stop      Ctrl-C, SIGTERM, `trainctl stop` or the warning of a scheduler: the run finishes its step, saves,
            and exits with status 75. This takes at most `checkpoint.exit_timeout_seconds`; then the program
            reports what it abandoned. A file system that hangs cannot delay the exit. A second Ctrl-C or
            SIGQUIT ends the run at once.
  resume    `trainctl resume RUN` continues from the newest state: the copy that each node keeps in memory
            (`checkpoint.memory`), a second copy on another node (`checkpoint.partner`), the newest checkpoint
            in ckpt/, or the one in `checkpoint.store`. A run that saved some, but none can be found, is
            refused; --from-scratch begins again where the run began.
  save      While training continues, checkpoints are written from the copy in memory. If a save is due while
            the previous one is still being written, it is skipped and the event save_left_out is logged. A
            write is abandoned if nothing moves for `fault_tolerance.save_timeout_seconds`, not because it is
            slow.
  repair    `trainctl inspect-ckpt RUN --verify` reads every byte. --repair --from BACKUP takes damaged parts
            from good copies. --copy-to copies a checkpoint to a folder or to s3://bucket/prefix, and back.
  compare   `trainctl compare RUN OTHER...` finds the first step whose bits differ (exit status 20).
  verify    `trainctl verify RUN` computes the steps before the newest checkpoint again, from the checkpoint
            before it, and compares them with what was recorded, bit for bit; `resume --verify` does it before
            the run goes on.
  use       `trainctl sample RUN` writes text. `trainctl eval RUN` measures loss, bits per byte and, with --tasks,
            the accuracy on multiple-choice files. `trainctl export RUN --out DIR` writes a folder for Hugging
            Face's transformers; `trainctl import` makes a checkpoint of such a folder.
)";

constexpr HelpPage kHelpPages[] = {{"job", kJobPage}, {"runs", kRunPage}};

}  // namespace

std::span<const HelpPage> help_pages() { return kHelpPages; }

}  // namespace trainctl::cmd
