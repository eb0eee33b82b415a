// Fourth part of the field table: what a run asks Slurm for.
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {
namespace {

void declare_choices(DeclareSection& slurm) {
  const auto text = [&](const char* name, const char* words, std::string SlurmSpec::*member,
      const char* example) {
    slurm.string(name, words)
        .to([member](JobSpec& job) -> std::string& { return job.launcher.slurm.*member; })
        .fallback(std::string())
        .example(example);
  };
  text("partition", "Partition to run in; empty: the site's default.", &SlurmSpec::partition, "\"gpu\"");
  text("account", "Account that pays.", &SlurmSpec::account, "\"lab7\"");
  text("qos", "Quality of service.", &SlurmSpec::qos, "\"long\"");
  text("reservation", "Reservation to run in.", &SlurmSpec::reservation, "\"training\"");
  text("constraint", "Features that the nodes must have.", &SlurmSpec::constraint, "\"ib&a100\"");
  text("time", "Time limit as sbatch takes it: minutes, HH:MM:SS or D-HH:MM:SS; empty: the partition's.",
       &SlurmSpec::time, "\"1-12:00:00\"");
  text("gpu_type", "Kind of GPU; empty: any.", &SlurmSpec::gpu_type, "\"h100\"");
}

void declare_size(DeclareSection& slurm) {
  const auto count = [&](const char* name, const char* words, int SlurmSpec::*member, double most) {
    return slurm.integer(name, words)
        .to([member](JobSpec& job) -> int& { return job.launcher.slurm.*member; })
        .from(0)
        .upto(most)
        .fallback(int64_t{0});
  };
  count("nodes",
        "Nodes over which the mesh is spread. 0: what it needs by `gpus_per_node`, else by "
        "`cpus_per_node`, else by `launcher.slots`; one node if none of them is given.",
        &SlurmSpec::nodes, 1e6);
  count("spares", "Nodes to ask for beyond those: each takes the place of a lost one at once.",
      &SlurmSpec::spares, 1e6);
  count("gpus_per_node", "GPUs of each node; 0: none are asked for.", &SlurmSpec::gpus_per_node, 1024);
  count("cpus_per_node", "CPUs of each node; 0: whole nodes, which no other job shares.",
      &SlurmSpec::cpus_per_node,
        65536);
  count("signal_seconds",
        "Seconds before its time limit at which Slurm warns the run; 0: 300. The run also asks Slurm for "
        "the limit itself; this is for sites where that fails.",
        &SlurmSpec::signal_seconds, 65535)
      .unit(Unit::seconds);
}

}  // namespace

void declare_slurm(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection slurm(table, sections, "launcher.slurm", "What `launch --submit` asks Slurm for.",
      Change::free);
  declare_choices(slurm);
  declare_size(slurm);
  slurm
      .boolean("requeue",
               "Slurm may start the job again after preemption or the loss of its first node, and the run "
               "gives its job back to the queue when the time is over.")
      .to(IN_JOB(launcher.slurm.requeue))
      .fallback(true);
  slurm.field(Type::text_list, "arguments", "More arguments of sbatch, each as one text.")
      .to(IN_JOB(launcher.slurm.arguments))
      .fallback(std::vector<std::string>{})
      .also({"extra", "options"})
      .example("[\"--mem=0\", \"--mail-type=END\"]");
  slurm.field(Type::text_list, "setup", "Lines of shell that run on the first node before the program "
      "starts.")
      .to(IN_JOB(launcher.slurm.setup))
      .fallback(std::vector<std::string>{})
      .example("[\"module load openmpi\"]");
}

}  // namespace trainctl::spec
