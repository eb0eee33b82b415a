// Goal: the manifest of a run is a JobSet that Kubernetes takes: known fields of the right types, none
//       missing, names that fit together, the agent as the nodes' entry point; and its YAML says the same
//       as its JSON.
// Method: a structural check against the table of fields below, written down by hand from the JobSet API
//         v1alpha2 and from batch/v1 and v1 of Kubernetes: it holds the fields used here, and is no full
//         schema; no server was asked. YAML through a reader of the block form in this file; random values,
//         the seed printed.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <map>
#include <random>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/supervise/jobset/yaml.h"
#include "runtime/supervise/jobset/jobset.h"
#include "test/support/seed.h"

using namespace trainctl;

namespace {

/// Type of an object: its fields as "name:type", with ! where the API demands it. Types: string, int, bool,
/// texts (any keys, text values), or an object named here; [type] is a list.
const std::map<std::string, std::string> kTypes = {
    {"JobSet", "apiVersion:string! kind:string! metadata:ObjectMeta! spec:JobSetSpec!"},
    {"ObjectMeta", "name:string namespace:string labels:texts annotations:texts"},
    {"JobSetSpec",
     "replicatedJobs:[ReplicatedJob] network:Network successPolicy:SuccessPolicy failurePolicy:FailurePolicy "
     "suspend:bool "
     "ttlSecondsAfterFinished:int"},
    {"Network", "enableDNSHostnames:bool publishNotReadyAddresses:bool subdomain:string"},
    {"SuccessPolicy", "operator:string! targetReplicatedJobs:[string]"},
    {"FailurePolicy", "maxRestarts:int"},
    {"ReplicatedJob", "name:string! replicas:int template:JobTemplateSpec!"},
    {"JobTemplateSpec", "metadata:ObjectMeta spec:JobSpec"},
    {"JobSpec",
     "activeDeadlineSeconds:int backoffLimit:int completionMode:string completions:int parallelism:int "
     "podFailurePolicy:PodFailurePolicy template:PodTemplateSpec!"},
    {"PodFailurePolicy", "rules:[PodFailurePolicyRule]!"},
    {"PodFailurePolicyRule", "action:string! onExitCodes:OnExitCodes onPodConditions:[PodCondition]"},
    {"OnExitCodes", "containerName:string operator:string! values:[int]!"},
    {"PodCondition", "type:string! status:string!"},
    {"PodTemplateSpec", "metadata:ObjectMeta spec:PodSpec"},
    {"PodSpec",
     "affinity:Affinity containers:[Container]! enableServiceLinks:bool nodeSelector:texts "
     "priorityClassName:string "
     "restartPolicy:string terminationGracePeriodSeconds:int tolerations:[Toleration] volumes:[Volume]"},
    {"Affinity", "nodeAffinity:NodeAffinity podAntiAffinity:PodAntiAffinity"},
    {"NodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution:NodeSelector"},
    {"NodeSelector", "nodeSelectorTerms:[NodeSelectorTerm]!"},
    {"NodeSelectorTerm", "matchExpressions:[NodeSelectorRequirement]"},
    {"NodeSelectorRequirement", "key:string! operator:string! values:[string]"},
    {"PodAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution:[PodAffinityTerm]"},
    {"PodAffinityTerm", "labelSelector:LabelSelector topologyKey:string!"},
    {"LabelSelector", "matchLabels:texts"},
    {"Container",
     "command:[string] env:[EnvVar] image:string name:string! ports:[ContainerPort] "
     "resources:ResourceRequirements "
     "volumeMounts:[VolumeMount]"},
    {"EnvVar", "name:string! value:string valueFrom:EnvVarSource"},
    {"EnvVarSource", "fieldRef:ObjectFieldSelector"},
    {"ObjectFieldSelector", "fieldPath:string!"},
    {"ContainerPort", "containerPort:int! name:string"},
    {"ResourceRequirements", "limits:texts requests:texts"},
    {"VolumeMount", "mountPath:string! name:string!"},
    {"Volume", "name:string! emptyDir:EmptyDir persistentVolumeClaim:ClaimSource"},
    {"EmptyDir", "medium:string sizeLimit:string"},
    {"ClaimSource", "claimName:string! readOnly:bool"},
    {"Toleration", "effect:string key:string operator:string value:string"},
};

/// What of `value` is not of `type`, a line each.
std::string violations(const OrderedJson& value, const std::string& type, const std::string& at) {
  if (type[0] == '[') {
    if (!value.is_array()) return at + ": no list\n";
    std::string found;
    for (size_t i = 0; i < value.size(); ++i)
      found += violations(value[i], type.substr(1, type.size() - 2), fmt::format("{}[{}]", at, i));
    return found;
  }
  if (type == "string") return value.is_string() ? "" : at + ": no text\n";
  if (type == "int") return value.is_number_integer() ? "" : at + ": no whole number\n";
  if (type == "bool") return value.is_boolean() ? "" : at + ": not true or false\n";
  if (!value.is_object()) return at + ": no object\n";
  std::string found;
  if (type == "texts") {
    for (const auto& [key, item] : value.items())
      if (!item.is_string())
        found += at + "." + key + ": no text\n";
    return found;
  }
  std::map<std::string, std::string> fields;
  std::istringstream table(kTypes.at(type));
  for (std::string field; table >> field;) {
    const size_t colon = field.find(':');
    const std::string name = field.substr(0, colon);
    const bool demanded = field.back() == '!';
    fields[name] = field.substr(colon + 1, field.size() - colon - 1 - (demanded ? 1 : 0));
    if (demanded && !value.contains(name)) found += at + "." + name + ": missing\n";
  }
  for (const auto& [key, item] : value.items())
    found +=
        fields.count(key) ? violations(item, fields[key], at + "." + key) : at + "." + key + ": unknown\n";
  return found;
}

/// Reads YAML's block form: what to_yaml writes and no more.
class BlockReader {
 public:
  explicit BlockReader(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) lines_.push_back(line);
  }
  OrderedJson read() { return value(0); }

 private:
  static OrderedJson scalar(const std::string& text) {
    OrderedJson parsed = OrderedJson::try_parse(text);
    return parsed.is_discarded() ? OrderedJson(text) : parsed;
  }
  static size_t indent_of(const std::string& line) { return line.find_first_not_of(' '); }
  OrderedJson value(size_t column) {
    const std::string first = lines_.at(at_).substr(column);
    if (first.rfind("- ", 0) == 0) {
      OrderedJson list = OrderedJson::array();
      while (at_ < lines_.size() && indent_of(lines_[at_]) == column) {
        lines_[at_][column] = ' ';  // what follows the dash is a value two columns further
        list.push_back(value(column + 2));
      }
      return list;
    }
    const size_t colon = first[0] == '"' ? first.find("\":") + 1 : first.find(':');
    if (colon == std::string::npos || first[0] == '{' || (first[0] == '"' && colon == 0))
      return ++at_, scalar(first);
    OrderedJson object = OrderedJson::object();
    while (at_ < lines_.size() && indent_of(lines_[at_]) == column) {
      const std::string line = lines_[at_].substr(column);
      const size_t end = line[0] == '"' ? line.find("\":") + 1 : line.find(':');
      const std::string key = scalar(line.substr(0, end)).get<std::string>();
      if (end + 1 < line.size()) {
        object[key] = scalar(line.substr(end + 2));
        ++at_;
      } else {
        ++at_;
        object[key] = value(column + 2);
      }
    }
    return object;
  }
  std::vector<std::string> lines_;
  size_t at_ = 0;
};

const SlurmRequest kFull = {.job_name = "tiny-A60S",
                            .partition = "train",
                            .qos = "high",
                            .time_limit = "12:00:00",
                            .nodes = 8,
                            .spares = 1,
                            .gpus_per_node = 8,
                            .gpu_type = "NVIDIA-H100-80GB-HBM3",
                            .cpus_per_node = 96,
                            .exclude = {"gpu01", "gpu07"},
                            .signal_s = 600};
const PodRequest kPods = {.image = "registry.example/trainctl:1",
                          .name_space = "research",
                          .claim = "runs",
                          .mount = "/runs",
                          .memory = "512Gi",
                          .supervisor_options = {"--set", "x=$(y)"}};

}  // namespace

TEST_CASE("the manifest has the fields of the API", "[jobset]") {
  for (const bool full : {true, false}) {
    const SlurmRequest request = full ? kFull : SlurmRequest{.job_name = "a"};
    const PodRequest pods = full ? kPods : PodRequest{.image = "i", .claim = "c", .mount = "/runs"};
    const OrderedJson set = jobset(request, pods, "/bin/trainctl", "/runs/tiny-A60S");
    INFO(dump_json(set, 2));
    CHECK(violations(set, "JobSet", "") == "");
    CHECK(BlockReader(to_yaml(set)).read() == set);
  }
  OrderedJson wrong = jobset(kFull, kPods, "/bin/trainctl", "/runs/a");
  wrong["spec"]["network"]["dns"] = true;
  wrong["spec"]["replicatedJobs"][0]["replicas"] = "1";
  wrong["spec"]["replicatedJobs"][1].erase("template");
  CHECK(violations(wrong, "JobSet", "") ==
        ".spec.network.dns: unknown\n.spec.replicatedJobs[0].replicas: no whole number\n"
        ".spec.replicatedJobs[1].template: missing\n");
}

TEST_CASE("supervisor and nodes of the manifest fit together", "[jobset]") {
  const OrderedJson set = jobset(kFull, kPods, "/bin/trainctl", "/runs/it's $HOME");
  CHECK(set["metadata"]["name"] == "tiny-a60s");
  const OrderedJson& jobs = set["spec"]["replicatedJobs"];
  CHECK(set["spec"]["successPolicy"]["targetReplicatedJobs"] == OrderedJson::array({jobs[0]["name"]}));
  const OrderedJson& supervisor = jobs[0]["template"]["spec"];
  CHECK(supervisor["activeDeadlineSeconds"] == 43200);
  const OrderedJson& first = supervisor["template"]["spec"]["containers"][0];
  CHECK(first["command"] ==
        OrderedJson({"/bin/trainctl", "resume", "/runs/it's $$HOME", "--set", "x=$$(y)"}));
  const OrderedJson& node = jobs[1]["template"]["spec"];
  CHECK(node["completions"] == 9);
  CHECK(node["parallelism"] == 9);
  const OrderedJson& agent = node["template"]["spec"]["containers"][0];
  CHECK(agent["command"] ==
        OrderedJson({"/bin/trainctl", "node", "/runs/it's $$HOME", "--connect",
              "tiny-a60s-supervisor-0-0.tiny-a60s:7077", "--name", "node-$(TRAINCTL_NODE_INDEX)"}));
  CHECK(agent["env"][0]["name"] == "TRAINCTL_NODE_INDEX");
  CHECK(jobset_nodes(kFull).front() == "node-0");
  CHECK(int(jobset_nodes(kFull).size()) == node["completions"].get<int>());
  CHECK(agent["resources"]["limits"]["nvidia.com/gpu"] == "8");
  const OrderedJson& alone = node["template"]["spec"]["affinity"]["podAntiAffinity"]
                          ["requiredDuringSchedulingIgnoredDuringExecution"][0];
  CHECK(alone["labelSelector"]["matchLabels"]["jobset.sigs.k8s.io/jobset-name"] == set["metadata"]["name"]);
  CHECK(alone["labelSelector"]["matchLabels"]["jobset.sigs.k8s.io/replicatedjob-name"] == jobs[1]["name"]);
  for (const OrderedJson& job : jobs) {
    const OrderedJson& pod = job["template"]["spec"]["template"]["spec"];
    CHECK(pod["terminationGracePeriodSeconds"] == 600);
    std::vector<std::string> volumes;
    for (const OrderedJson& volume : pod["volumes"]) volumes.push_back(volume["name"]);
    for (const OrderedJson& mount : pod["containers"][0]["volumeMounts"])
      CHECK(std::find(volumes.begin(), volumes.end(), mount["name"].get<std::string>()) != volumes.end());
  }
}

TEST_CASE("a small manifest in full", "[jobset]") {
  CHECK(jobset_manifest({.job_name = "tiny", .nodes = 2}, {.image = "i:1", .claim = "runs", .mount = "/runs"},
                        "/bin/trainctl", "/runs/tiny") == R"yaml(apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: tiny
spec:
  network:
    enableDNSHostnames: true
    publishNotReadyAddresses: true
  successPolicy:
    operator: All
    targetReplicatedJobs:
      - supervisor
  replicatedJobs:
    - name: supervisor
      replicas: 1
      template:
        spec:
          backoffLimit: 6
          completions: 1
          parallelism: 1
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes:
                  operator: In
                  values:
                    - 2
                    - 3
                    - 4
                    - 6
                    - 7
                    - 8
              - action: Ignore
                onPodConditions:
                  - type: DisruptionTarget
                    status: "True"
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: 300
              enableServiceLinks: false
              containers:
                - name: supervisor
                  image: "i:1"
                  command:
                    - "/bin/trainctl"
                    - resume
                    - "/runs/tiny"
                  volumeMounts:
                    - name: runs
                      mountPath: "/runs"
                  ports:
                    - name: agents
                      containerPort: 7077
              volumes:
                - name: runs
                  persistentVolumeClaim:
                    claimName: runs
    - name: node
      replicas: 1
      template:
        spec:
          backoffLimit: 1000
          completionMode: Indexed
          completions: 2
          parallelism: 2
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: 300
              enableServiceLinks: false
              containers:
                - name: node
                  image: "i:1"
                  command:
                    - "/bin/trainctl"
                    - node
                    - "/runs/tiny"
                    - "--connect"
                    - "tiny-supervisor-0-0.tiny:7077"
                    - "--name"
                    - "node-$(TRAINCTL_NODE_INDEX)"
                  volumeMounts:
                    - name: runs
                      mountPath: "/runs"
                    - name: shm
                      mountPath: "/dev/shm"
                  env:
                    - name: TRAINCTL_NODE_INDEX
                      valueFrom:
                        fieldRef:
                          fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"
              volumes:
                - name: runs
                  persistentVolumeClaim:
                    claimName: runs
                - name: shm
                  emptyDir:
                    medium: Memory
                    sizeLimit: "16Gi"
              affinity:
                podAntiAffinity:
                  requiredDuringSchedulingIgnoredDuringExecution:
                    - labelSelector:
                        matchLabels:
                          jobset.sigs.k8s.io/jobset-name: tiny
                          jobset.sigs.k8s.io/replicatedjob-name: node
                      topologyKey: kubernetes.io/hostname
)yaml");
}

TEST_CASE("what Kubernetes cannot take is refused with all problems", "[jobset]") {
  std::string words;
  try {
    jobset({.job_name = "--",
            .account = "a",
            .reservation = "r",
            .constraint = "c",
            .nodes = 0,
            .chain = 2,
            .extra = {"--x"},
            .setup = {"y"}},
           {.mount = "/runs", .port = 0}, "trainctl", "/other/a");
  } catch (const Error& error) {
    words = error.what();
  }
  for (const char* part :
       {"nodes = 0", "account means", "reservation means", "constraint means", "extra means", "setup means",
        "chain means", "job_name = '--'", "no container image", "/other/a is not below",
        "'trainctl' is no absolute", "port = 0"}) {
    INFO(part);
    CHECK(words.find(part) != std::string::npos);
  }
}

TEST_CASE("names for Kubernetes", "[jobset]") {
  CHECK(kubernetes_name("tiny-A60S") == "tiny-a60s");
  CHECK(kubernetes_name("_a  b__c_") == "a-b-c");
  CHECK(kubernetes_name("7b") == "r7b");
  CHECK(kubernetes_name(std::string(50, 'a')).size() == 40);
  CHECK(kubernetes_name(std::string(39, 'a') + "-b") == std::string(39, 'a'));
  CHECK(kubernetes_name("---").empty());
}

TEST_CASE("YAML reads back as the same value", "[jobset]") {
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  const std::vector<OrderedJson> leaves = {1,
                                           -2.5,
                                           true,
                                           false,
                                           nullptr,
                                           "plain",
                                           "yes",
                                           "No",
                                           "null",
                                           "1",
                                           "1e3",
                                           "a b",
                                           "a:b",
                                           "a: b",
                                           "",
                                           "- a",
                                           "#c",
                                           "it's",
                                           "\"q\"",
                                           "a\nb",
                                           "$(X)",
                                           "~",
                                           "y",
                                           "16Gi",
                                           "0x1f",
                                           "k8s/a",
                                           "\xc3\xa4",
                                           "{}",
                                           "[",
                                           OrderedJson::array(),
                                           OrderedJson::object()};
  std::function<OrderedJson(int)> make = [&](int depth) -> OrderedJson {
    if (depth == 0 || below(4) == 0) return leaves[size_t(below(int(leaves.size())))];
    OrderedJson value = below(2) ? OrderedJson::array() : OrderedJson::object();
    for (int i = below(4) + 1; i > 0; --i) {
      if (value.is_array())
        value.push_back(make(depth - 1));
      else
        value[below(6) ? fmt::format("k{}", below(9)) : (below(2) ? "a: b" : "8x")] = make(depth - 1);
    }
    return value;
  };
  for (int round = 0; round < 500; ++round) {
    OrderedJson value = OrderedJson::object();
    value["root"] = make(4);
    const std::string text = to_yaml(value);
    INFO(text);
    CHECK(BlockReader(text).read() == value);
  }
}
