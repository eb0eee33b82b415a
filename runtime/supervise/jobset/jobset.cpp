#include "runtime/supervise/jobset/jobset.h"

#include <fmt/format.h>

#include <cctype>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/supervise/jobset/yaml.h"
#include "runtime/supervise/slurm/slurm_nodes.h"

namespace trainctl {
namespace {

constexpr const char* kIndex = "TRAINCTL_NODE_INDEX";
/// Of an Indexed Job, kept when a pod is made again (https://kubernetes.io/docs/concepts/workloads/controllers/job).
constexpr const char* kIndexField = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
/// Exit statuses after which a new start would fail in the same way: usage, spec, plan, data, checkpoint,
/// diverged.
constexpr int kHopeless[] = {2, 3, 4, 6, 7, 8};
constexpr const char* kPodPrefix = "node-";
constexpr int kSupervisorRetries = 6, kAgentRetries = 1000;

/// Kubernetes replaces $(NAME) in commands; "$$" is a dollar sign.
std::string literal(const std::string& word) {
  std::string result;
  for (const char c : word) result += c == '$' ? std::string("$$") : std::string(1, c);
  return result;
}

OrderedJson words(std::initializer_list<std::string> fixed, const std::vector<std::string>& options) {
  OrderedJson list = OrderedJson::array();
  for (const std::string& word : fixed) list.push_back(word);
  for (const std::string& word : options) list.push_back(literal(word));
  return list;
}

std::vector<std::string> problems(const SlurmRequest& r, const PodRequest& pods, const std::string& program,
                                  const std::string& run) {
  std::vector<std::string> found = problems_of(r);
  const auto meaningless = [&](const char* field, bool set) {
    if (set) found.push_back(fmt::format("{} means nothing on Kubernetes", field));
  };
  meaningless("account", !r.account.empty());
  meaningless("reservation", !r.reservation.empty());
  meaningless("constraint", !r.constraint.empty());
  meaningless("extra", !r.extra.empty());
  meaningless("setup", !r.setup.empty());
  meaningless("chain", r.chain != 1);
  if (kubernetes_name(r.job_name).empty())
    found.push_back(fmt::format("job_name = '{}' holds no letter or digit for a name", r.job_name));
  if (pods.image.empty()) found.push_back("there is no container image");
  if (pods.claim.empty() || !pods.mount.starts_with('/') || !(run + "/").starts_with(pods.mount + "/"))
    found.push_back(
        fmt::format("the run {0} is not below the mount '{1}' of the volume claim '{2}'; mount the volume "
                    "here at the same path and "
                    "launch with --run-dir {1}/runs",
                    run, pods.mount, pods.claim));
  if (!program.starts_with('/'))
    found.push_back(fmt::format("the program '{}' is no absolute path in the image", program));
  if (pods.port < 1 || pods.port > 65535) found.push_back(fmt::format("port = {} is no port", pods.port));
  return found;
}

OrderedJson affinity(const SlurmRequest& r, const std::string& name) {
  const OrderedJson alone = {
      {"labelSelector",
       {{"matchLabels",
         {{"jobset.sigs.k8s.io/jobset-name", name}, {"jobset.sigs.k8s.io/replicatedjob-name", "node"}}}}},
      {"topologyKey", "kubernetes.io/hostname"}};
  OrderedJson result = {
      {"podAntiAffinity", {{"requiredDuringSchedulingIgnoredDuringExecution", OrderedJson::array({alone})}}}};
  if (!r.exclude.empty()) {
    const OrderedJson elsewhere = {
        {"key", "kubernetes.io/hostname"}, {"operator", "NotIn"}, {"values", r.exclude}};
    const OrderedJson term = {{"matchExpressions", OrderedJson::array({elsewhere})}};
    result["nodeAffinity"] = {{"requiredDuringSchedulingIgnoredDuringExecution",
                               {{"nodeSelectorTerms", OrderedJson::array({term})}}}};
  }
  return result;
}

OrderedJson container(const PodRequest& pods, const char* name, OrderedJson command) {
  return {{"name", name},
          {"image", pods.image},
          {"command", std::move(command)},
          {"volumeMounts", OrderedJson::array({{{"name", "runs"}, {"mountPath", pods.mount}}})}};
}

OrderedJson pod_spec(const SlurmRequest& r, const PodRequest& pods, OrderedJson main) {
  OrderedJson spec = {
      {"restartPolicy", "Never"},
      {"terminationGracePeriodSeconds", r.signal_s},
      {"enableServiceLinks", false},
      {"containers", OrderedJson::array({std::move(main)})},
      {"volumes",
       OrderedJson::array({{{"name", "runs"}, {"persistentVolumeClaim", {{"claimName", pods.claim}}}}})}};
  if (!r.qos.empty()) spec["priorityClassName"] = r.qos;
  return spec;
}

OrderedJson supervisor_job(const SlurmRequest& r, const PodRequest& pods, const std::string& program,
                    const std::string& run) {
  OrderedJson main = container(
      pods, "supervisor",
      words({literal(program), "resume", literal(run)}, pods.supervisor_options));
  main["ports"] = OrderedJson::array({{{"name", "agents"}, {"containerPort", pods.port}}});
  const OrderedJson hopeless = {{"action", "FailJob"},
                                {"onExitCodes", {{"operator", "In"}, {"values", kHopeless}}}};
  const OrderedJson disrupted = {
      {"action", "Ignore"},
      {"onPodConditions", OrderedJson::array({{{"type", "DisruptionTarget"}, {"status", "True"}}})}};
  OrderedJson job = {{"backoffLimit", r.requeue ? kSupervisorRetries : 0},
              {"completions", 1},
              {"parallelism", 1},
              {"podFailurePolicy", {{"rules", OrderedJson::array({hopeless, disrupted})}}},
              {"template", {{"spec", pod_spec(r, pods, std::move(main))}}}};
  if (const auto limit_s = parse_time_limit(r.time_limit)) job["activeDeadlineSeconds"] = int64_t(*limit_s);
  return job;
}

OrderedJson node_job(const SlurmRequest& r, const PodRequest& pods, const std::string& name,
              const std::string& program, const std::string& run) {
  const std::string address = fmt::format("{0}-supervisor-0-0.{0}:{1}", name, pods.port);
  OrderedJson main =
      container(pods, "node",
                words({literal(program), "node", literal(run), "--connect", address, "--name",
                       fmt::format("{}$({})", kPodPrefix, kIndex)},
                      pods.agent_options));
  main["env"] =
      OrderedJson::array({{{"name", kIndex}, {"valueFrom", {{"fieldRef", {{"fieldPath", kIndexField}}}}}}});
  main["volumeMounts"].push_back({{"name", "shm"}, {"mountPath", "/dev/shm"}});
  OrderedJson resources = OrderedJson::object();
  if (r.gpus_per_node > 0) resources["limits"]["nvidia.com/gpu"] = std::to_string(r.gpus_per_node);
  if (r.cpus_per_node > 0) resources["requests"]["cpu"] = std::to_string(r.cpus_per_node);
  if (!pods.memory.empty()) resources["requests"]["memory"] = pods.memory;
  if (!resources.empty()) main["resources"] = resources;
  OrderedJson spec = pod_spec(r, pods, std::move(main));
  spec["volumes"].push_back(
      {{"name", "shm"}, {"emptyDir", {{"medium", "Memory"}, {"sizeLimit", pods.shared_memory}}}});
  spec["affinity"] = affinity(r, name);
  if (!r.gpu_type.empty()) spec["nodeSelector"]["nvidia.com/gpu.product"] = r.gpu_type;
  if (r.gpus_per_node > 0)
    spec["tolerations"] =
        OrderedJson::array({{{"key", "nvidia.com/gpu"}, {"operator", "Exists"}, {"effect", "NoSchedule"}}});
  const int count = r.nodes + r.spares;
  return {{"backoffLimit", kAgentRetries},
          {"completionMode", "Indexed"},
          {"completions", count},
          {"parallelism", count},
          {"template", {{"spec", std::move(spec)}}}};
}

OrderedJson replicated(const char* name, OrderedJson job) {
  return {{"name", name}, {"replicas", 1}, {"template", {{"spec", std::move(job)}}}};
}

}  // namespace

std::vector<std::string> jobset_nodes(const SlurmRequest& request) {
  std::vector<std::string> names;
  for (int i = 0; i < request.nodes + request.spares; ++i) names.push_back(fmt::format("{}{}", kPodPrefix, i));
  return names;
}

std::string kubernetes_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      name += char(std::tolower(static_cast<unsigned char>(c)));
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  // It must begin with a letter: it becomes the name of a service, too.
  if (!name.empty() && std::isdigit(static_cast<unsigned char>(name[0]))) name = "r" + name;
  name.resize(std::min<size_t>(name.size(), 40));
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name;
}

OrderedJson jobset(const SlurmRequest& request, const PodRequest& pods, const std::string& program,
                              const std::string& run) {
  const std::vector<std::string> found = problems(request, pods, program, run);
  if (!found.empty())
    throw Error(ErrorCode::kUsage, fmt::format("no manifest can be written: {}", fmt::join(found, "; ")));
  const std::string name = kubernetes_name(request.job_name);
  OrderedJson metadata = {{"name", name}};
  if (!pods.name_space.empty()) metadata["namespace"] = pods.name_space;
  if (!request.partition.empty()) metadata["labels"]["kueue.x-k8s.io/queue-name"] = request.partition;
  return {{"apiVersion", "jobset.x-k8s.io/v1alpha2"},
          {"kind", "JobSet"},
          {"metadata", std::move(metadata)},
          {"spec",
           {{"network", {{"enableDNSHostnames", true}, {"publishNotReadyAddresses", true}}},
            {"successPolicy",
             {{"operator", "All"}, {"targetReplicatedJobs", OrderedJson::array({"supervisor"})}}},
            {"replicatedJobs",
             OrderedJson::array({replicated("supervisor", supervisor_job(request, pods, program, run)),
                                 replicated("node", node_job(request, pods, name, program, run))})}}}};
}

std::string jobset_manifest(const SlurmRequest& request, const PodRequest& pods, const std::string& program,
                            const std::string& run) {
  return to_yaml(jobset(request, pods, program, run));
}

}  // namespace trainctl
