#include "runtime/supervise/slurm/jobset.h"

#include <fmt/format.h>

#include <cctype>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/supervise/slurm/yaml.h"
#include "runtime/supervise/slurm/slurm_nodes.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

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

Json words(std::initializer_list<std::string> fixed, const std::vector<std::string>& options) {
  Json list = Json::array();
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

Json affinity(const SlurmRequest& r, const std::string& name) {
  const Json alone = {
      {"labelSelector",
       {{"matchLabels",
         {{"jobset.sigs.k8s.io/jobset-name", name}, {"jobset.sigs.k8s.io/replicatedjob-name", "node"}}}}},
      {"topologyKey", "kubernetes.io/hostname"}};
  Json result = {
      {"podAntiAffinity", {{"requiredDuringSchedulingIgnoredDuringExecution", Json::array({alone})}}}};
  if (!r.exclude.empty()) {
    const Json elsewhere = {{"key", "kubernetes.io/hostname"}, {"operator", "NotIn"}, {"values", r.exclude}};
    const Json term = {{"matchExpressions", Json::array({elsewhere})}};
    result["nodeAffinity"] = {
        {"requiredDuringSchedulingIgnoredDuringExecution", {{"nodeSelectorTerms", Json::array({term})}}}};
  }
  return result;
}

Json container(const PodRequest& pods, const char* name, Json command) {
  return {{"name", name},
          {"image", pods.image},
          {"command", std::move(command)},
          {"volumeMounts", Json::array({{{"name", "runs"}, {"mountPath", pods.mount}}})}};
}

Json pod_spec(const SlurmRequest& r, const PodRequest& pods, Json main) {
  Json spec = {
      {"restartPolicy", "Never"},
      {"terminationGracePeriodSeconds", r.signal_s},
      {"enableServiceLinks", false},
      {"containers", Json::array({std::move(main)})},
      {"volumes", Json::array({{{"name", "runs"}, {"persistentVolumeClaim", {{"claimName", pods.claim}}}}})}};
  if (!r.qos.empty()) spec["priorityClassName"] = r.qos;
  return spec;
}

Json supervisor_job(const SlurmRequest& r, const PodRequest& pods, const std::string& program,
                    const std::string& run) {
  Json main = container(
      pods, "supervisor",
      words({literal(program), "resume", literal(run)}, pods.supervisor_options));
  main["ports"] = Json::array({{{"name", "agents"}, {"containerPort", pods.port}}});
  const Json hopeless = {{"action", "FailJob"}, {"onExitCodes", {{"operator", "In"}, {"values", kHopeless}}}};
  const Json disrupted = {
      {"action", "Ignore"},
      {"onPodConditions", Json::array({{{"type", "DisruptionTarget"}, {"status", "True"}}})}};
  Json job = {{"backoffLimit", r.requeue ? kSupervisorRetries : 0},
              {"completions", 1},
              {"parallelism", 1},
              {"podFailurePolicy", {{"rules", Json::array({hopeless, disrupted})}}},
              {"template", {{"spec", pod_spec(r, pods, std::move(main))}}}};
  if (const auto limit_s = parse_time_limit(r.time_limit)) job["activeDeadlineSeconds"] = int64_t(*limit_s);
  return job;
}

Json node_job(const SlurmRequest& r, const PodRequest& pods, const std::string& name,
              const std::string& program, const std::string& run) {
  const std::string address = fmt::format("{0}-supervisor-0-0.{0}:{1}", name, pods.port);
  Json main =
      container(pods, "node",
                words({literal(program), "node", literal(run), "--connect", address, "--name",
                       fmt::format("{}$({})", kPodPrefix, kIndex)},
                      pods.agent_options));
  main["env"] =
      Json::array({{{"name", kIndex}, {"valueFrom", {{"fieldRef", {{"fieldPath", kIndexField}}}}}}});
  main["volumeMounts"].push_back({{"name", "shm"}, {"mountPath", "/dev/shm"}});
  Json resources = Json::object();
  if (r.gpus_per_node > 0) resources["limits"]["nvidia.com/gpu"] = std::to_string(r.gpus_per_node);
  if (r.cpus_per_node > 0) resources["requests"]["cpu"] = std::to_string(r.cpus_per_node);
  if (!pods.memory.empty()) resources["requests"]["memory"] = pods.memory;
  if (!resources.empty()) main["resources"] = resources;
  Json spec = pod_spec(r, pods, std::move(main));
  spec["volumes"].push_back(
      {{"name", "shm"}, {"emptyDir", {{"medium", "Memory"}, {"sizeLimit", pods.shared_memory}}}});
  spec["affinity"] = affinity(r, name);
  if (!r.gpu_type.empty()) spec["nodeSelector"]["nvidia.com/gpu.product"] = r.gpu_type;
  if (r.gpus_per_node > 0)
    spec["tolerations"] =
        Json::array({{{"key", "nvidia.com/gpu"}, {"operator", "Exists"}, {"effect", "NoSchedule"}}});
  const int count = r.nodes + r.spares;
  return {{"backoffLimit", kAgentRetries},
          {"completionMode", "Indexed"},
          {"completions", count},
          {"parallelism", count},
          {"template", {{"spec", std::move(spec)}}}};
}

Json replicated(const char* name, Json job) {
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

nlohmann::ordered_json jobset(const SlurmRequest& request, const PodRequest& pods, const std::string& program,
                              const std::string& run) {
  const std::vector<std::string> found = problems(request, pods, program, run);
  if (!found.empty())
    throw Error(ErrorCode::kUsage, fmt::format("no manifest can be written: {}", fmt::join(found, "; ")));
  const std::string name = kubernetes_name(request.job_name);
  Json metadata = {{"name", name}};
  if (!pods.name_space.empty()) metadata["namespace"] = pods.name_space;
  if (!request.partition.empty()) metadata["labels"]["kueue.x-k8s.io/queue-name"] = request.partition;
  return {
      {"apiVersion", "jobset.x-k8s.io/v1alpha2"},
      {"kind", "JobSet"},
      {"metadata", std::move(metadata)},
      {"spec",
       {{"network", {{"enableDNSHostnames", true}, {"publishNotReadyAddresses", true}}},
        {"successPolicy", {{"operator", "All"}, {"targetReplicatedJobs", Json::array({"supervisor"})}}},
        {"replicatedJobs", Json::array({replicated("supervisor", supervisor_job(request, pods, program, run)),
                                        replicated("node", node_job(request, pods, name, program, run))})}}}};
}

std::string jobset_manifest(const SlurmRequest& request, const PodRequest& pods, const std::string& program,
                            const std::string& run) {
  return to_yaml(jobset(request, pods, program, run));
}

}  // namespace trainctl
