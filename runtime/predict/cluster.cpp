#include "runtime/predict/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/predict/known_clusters.h"

namespace trainctl::predict {
namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::kUsage, fmt::format("{}: {}", file, what));
}

/// A number of a cluster file: where it is, what it may be, and what its unit is in our own.
struct NumberRow {
  const char* section;
  const char* key;  // the unit is its end
  double least, most, unit;
  double& (*of)(ClusterModel&);
  bool is_optional = false;  // it may be missing, and is then what ClusterModel begins with
};

#define TRAINCTL_AT(member) [](ClusterModel& c) -> double& { return c.member; }
constexpr NumberRow kNumbers[] = {
    {"device", "peak_bf16_tflops", 0.001, 1e5, 1e12, TRAINCTL_AT(device.peak_bf16_flops_per_s)},
    {"device", "peak_f32_tflops", 0.001, 1e5, 1e12, TRAINCTL_AT(device.peak_f32_flops_per_s)},
    {"device", "product_share", 0.05, 1, 1, TRAINCTL_AT(device.product_share)},
    {"device", "depth_cost", 0, 4096, 1, TRAINCTL_AT(device.depth_cost)},
    {"device", "grouped_share", 0.05, 1, 1, TRAINCTL_AT(device.grouped_share)},
    {"device", "fp8_tflops", 0.001, 1e5, 1e12, TRAINCTL_AT(device.fp8_flops_per_s), true},
    {"device", "fp8_depth_cost", 0, 4096, 1, TRAINCTL_AT(device.fp8_depth_cost), true},
    {"device", "fp4_tflops", 0.001, 1e5, 1e12, TRAINCTL_AT(device.fp4_flops_per_s), true},
    {"device", "fp4_depth_cost", 0, 8192, 1, TRAINCTL_AT(device.fp4_depth_cost), true},
    {"device", "attention_half_length", 0, 65536, 1, TRAINCTL_AT(device.attention_half_length)},
    {"device", "memory_gb_per_s", 1, 1e5, 1e9, TRAINCTL_AT(device.memory_bytes_per_s)},
    {"device", "memory_share", 0.05, 1, 1, TRAINCTL_AT(device.memory_share)},
    {"device", "board_w", 1, 1e5, 1, TRAINCTL_AT(device.board_w), true},
    {"device", "op_us", 0, 1000, 1e-6, TRAINCTL_AT(device.op_s)},
    {"device", "launch_us", 0, 1000, 1e-6, TRAINCTL_AT(device.launch_s)},
    {"device", "spread", 0, 0.5, 1, TRAINCTL_AT(device.spread)},
    {"node", "link_gb_per_s", 0.01, 1e5, 1e9, TRAINCTL_AT(node.bytes_per_s)},
    {"node", "latency_us", 0, 1e5, 1e-6, TRAINCTL_AT(node.latency_s)},
    {"node", "overlap_slowdown", 0, 0.9, 1, TRAINCTL_AT(overlap_slowdown)},
    {"node", "disk_gb_per_s", 0.001, 1e5, 1e9, TRAINCTL_AT(disk_bytes_per_s), true},
    {"node", "host_share", 0, 10, 1, TRAINCTL_AT(host_share), true},
    {"node", "pue", 1, 10, 1, TRAINCTL_AT(pue), true},
    {"fabric", "device_gb_per_s", 0.001, 1e5, 1e9, TRAINCTL_AT(fabric.bytes_per_s)},
    {"fabric", "latency_us", 0, 1e6, 1e-6, TRAINCTL_AT(fabric.latency_s)},
};
#undef TRAINCTL_AT

/// Reads members of a file, and collects what is wrong with them.
class Reader {
 public:
  Reader(const Json& json, const std::string& file) : json_(json), file_(file) {}

  template <typename... Values>
  void wrong(fmt::format_string<Values...> what, Values&&... values) const {
    mistakes_.push_back(fmt::format("{}: {}", file_, fmt::format(what, std::forward<Values>(values)...)));
  }
  /// Throws all of them.
  void finish() const {
    if (!mistakes_.empty()) throw Error(ErrorCode::kUsage, fmt::format("{}", fmt::join(mistakes_, "\n")));
  }

  const Json* section(const char* name) const {
    const auto found = json_.find(name);
    if (found != json_.end() && found->is_object()) return &*found;
    wrong("\"{}\" is {}", name, found == json_.end() ? "missing" : "not an object");
    return nullptr;
  }
  /// `least` where it is wrong.
  double number(const Json& of, const std::string& path, const char* key, double least, double most) const {
    const auto found = of.find(key);
    if (found == of.end()) {
      wrong("{}.{} is missing", path, key);
    } else if (!found->is_number()) {
      wrong("{}.{} is not a number", path, key);
    } else if (const double value = found->template get<double>(); value >= least && value <= most) {
      return value;
    } else {
      wrong("{}.{} = {:g} is impossible in its unit; use {:g} to {:g}", path, key, value, least, most);
    }
    return least;
  }
  std::string text(const Json& of, const std::string& path, const char* key) const {
    const auto found = of.find(key);
    if (found != of.end() && found->is_string() && !found->text().empty()) return found->text();
    wrong("{}.{} is missing: say where the numbers are from", path, key);
    return "";
  }
  void known(const Json& of, const std::string& path, const std::vector<std::string>& keys) const {
    for (const auto& [key, value] : of.items()) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      const std::string name(key);
      const auto other_unit = std::find_if(keys.begin(), keys.end(), [&](const std::string& k) {
        return quantity_of(k) == quantity_of(name);
      });
      if (other_unit != keys.end())
        wrong("{}{}{} is not known: give it in the unit of {}", path, path.empty() ? "" : ".", name,
              *other_unit);
      else
        wrong("{}{}{} is not known; use {}", path, path.empty() ? "" : ".", name, fmt::join(keys, ", "));
    }
  }
  bool is_sound() const { return mistakes_.empty(); }

 private:
  /// "launch" of "launch_us", "link" of "link_gb_per_s", the whole name where no unit is known.
  static std::string_view quantity_of(std::string_view key) {
    constexpr std::string_view kUnits[] = {
        "_gbit_per_s", "_gb_per_s", "_tb_per_s", "_mb_per_s", "_gib_per_s", "_bytes_per_s",
        "_gbps",       "_tflops",   "_gflops",   "_pflops",   "_flops",     "_us",
        "_ms",         "_ns",       "_s",        "_kw",       "_mw",        "_w"};
    for (const std::string_view unit : kUnits)
      if (key.ends_with(unit)) return key.substr(0, key.size() - unit.size());
    return key;
  }

  const Json& json_;
  const std::string& file_;
  mutable std::vector<std::string> mistakes_;
};

void read_attention(const Reader& reader, const Json& device, DeviceSpeed& speed) {
  const auto rows = device.find("attention");
  if (rows == device.end() || !rows->is_array() || rows->empty())
    return reader.wrong("device.attention is missing: a list of rates by head_dim");
  for (size_t i = 0; i < rows->size(); ++i) {
    const Json& row = rows->at(i);
    const std::string path = fmt::format("device.attention[{}]", i);
    if (!row.is_object()) {
      reader.wrong("{} is not an object", path);
      continue;
    }
    reader.known(
        row, path,
        {"head_dim", "forward_tflops", "backward_tflops", "forward_f32_tflops", "backward_f32_tflops"});
    const auto f32 = [&](const char* key) {
      return row.find(key) == row.end() ? 0 : 1e12 * reader.number(row, path, key, 0.0001, 1e5);
    };
    speed.attention.push_back({int(reader.number(row, path, "head_dim", 1, 4096)),
                               1e12 * reader.number(row, path, "forward_tflops", 0.0001, 1e5),
                               1e12 * reader.number(row, path, "backward_tflops", 0.0001, 1e5),
                               f32("forward_f32_tflops"), f32("backward_f32_tflops")});
  }
}

/// A file need not have them.
void read_ops(const Reader& reader, const Json& device, DeviceSpeed& speed) {
  const auto rows = device.find("ops");
  if (rows == device.end()) return;
  if (!rows->is_array()) return reader.wrong("device.ops is not a list of rates by op");
  for (size_t i = 0; i < rows->size(); ++i) {
    const Json& row = rows->at(i);
    const std::string path = fmt::format("device.ops[{}]", i);
    if (!row.is_object()) {
      reader.wrong("{} is not an object", path);
      continue;
    }
    reader.known(row, path, {"op", "f32_gb_per_s", "bf16_gb_per_s", "call_us"});
    const auto name = row.find("op");
    if (name == row.end() || !name->is_string() || name->text().empty()) {
      reader.wrong("{}.op is missing", path);
      continue;
    }
    if (speed.rate_of(name->text())) reader.wrong("{}.op = {} is there twice", path, name->text());
    speed.ops.push_back({name->text(), 1e9 * reader.number(row, path, "f32_gb_per_s", 1e-4, 1e5),
                         1e9 * reader.number(row, path, "bf16_gb_per_s", 1e-4, 1e5),
                         1e-6 * reader.number(row, path, "call_us", 0, 1e6)});
  }
}

/// A share of a peak above 1, however it is written.
void check_rates(const Reader& reader, const ClusterModel& c) {
  const DeviceSpeed& d = c.device;
  for (const AttentionRate& rate : d.attention)
    if (std::max(rate.forward_flops_per_s, rate.backward_flops_per_s) > d.peak_bf16_flops_per_s)
      reader.wrong("device.attention of head_dim {} is faster than device.peak_bf16_tflops = {:g}",
                   rate.head_dim, d.peak_bf16_flops_per_s / 1e12);
  if (d.fp8_flops_per_s > 2 * d.peak_bf16_flops_per_s)
    reader.wrong("device.fp8_tflops = {:g} is above twice device.peak_bf16_tflops = {:g}",
                 d.fp8_flops_per_s / 1e12, d.peak_bf16_flops_per_s / 1e12);
  if (d.fp4_flops_per_s > 8 * d.peak_bf16_flops_per_s)
    reader.wrong("device.fp4_tflops = {:g} is above eight times device.peak_bf16_tflops = {:g}",
                 d.fp4_flops_per_s / 1e12, d.peak_bf16_flops_per_s / 1e12);
  if (d.peak_f32_flops_per_s > d.peak_bf16_flops_per_s)
    reader.wrong("device.peak_f32_tflops = {:g} is above device.peak_bf16_tflops = {:g}",
                 d.peak_f32_flops_per_s / 1e12, d.peak_bf16_flops_per_s / 1e12);
  if (c.fabric.bytes_per_s > 1.5 * c.node.bytes_per_s)
    reader.wrong(
        "fabric.device_gb_per_s = {:g} is above node.link_gb_per_s = {:g}: the unit of both "
        "is 10^9 bytes a second of one device",
        c.fabric.bytes_per_s / 1e9, c.node.bytes_per_s / 1e9);
}

std::string& source_of(ClusterModel& cluster, std::string_view section) {
  return section == "device" ? cluster.device_source
         : section == "node" ? cluster.node_source
                             : cluster.fabric_source;
}

/// Memory in GB of the GPUs that plan knows, without dashes, as their makers write it behind the name.
constexpr std::pair<std::string_view, int> kMemoryGb[] = {
    {"a10", 24},     {"l4", 24},       {"rtx4090", 24}, {"rtx5090", 32}, {"a10040", 40}, {"l40s", 48},
    {"h100", 80},    {"h100pcie", 80}, {"h800", 80},    {"a10080", 80},  {"a800", 80},   {"h100nvl", 94},
    {"h20", 96},     {"gh200", 96},    {"h200", 141},   {"b200", 186},   {"gb200", 189}, {"mi300x", 192},
    {"mi325x", 256}, {"b300", 288},    {"gb300", 288},  {"mi355x", 288}};

/// Whether a GPU is sold with so much memory, as far as makers and drivers agree on it (B200: 180 and 192 GB;
/// A10: 24 GB, of which the driver reports 22.5 GiB).
bool has_memory(std::string kind, int gb) {
  std::erase(kind, '-');
  if (kind == "gh200" && gb == 480) return true;  // its driver names the memory of the CPU
  for (const auto& [name, known_gb] : kMemoryGb)
    if (kind == name) return 12 * std::abs(gb - known_gb) <= known_gb;
  return false;
}

/// Six digits are more than a measurement has.
double rounded(double value) { return std::stod(fmt::format("{:.6g}", value)); }

}  // namespace

const AttentionRate& DeviceSpeed::attention_of(double head_dim) const {
  const auto far = [&](const AttentionRate& rate) { return std::abs(std::log(head_dim / rate.head_dim)); };
  return *std::min_element(attention.begin(), attention.end(),
                           [&](const auto& a, const auto& b) { return far(a) < far(b); });
}

const OpRate* DeviceSpeed::rate_of(std::string_view op) const {
  for (const OpRate& rate : ops)
    if (rate.op == op) return &rate;
  return nullptr;
}

void scale_device(DeviceSpeed& device, double times) {
  device.peak_bf16_flops_per_s *= times;
  device.peak_f32_flops_per_s *= times;
  device.fp8_flops_per_s *= times;
  device.fp4_flops_per_s *= times;
  device.memory_bytes_per_s *= times;
  for (AttentionRate& rate : device.attention) {
    rate.forward_flops_per_s *= times, rate.backward_flops_per_s *= times;
    rate.forward_f32_flops_per_s *= times, rate.backward_f32_flops_per_s *= times;
  }
  for (OpRate& rate : device.ops) rate.f32_bytes_per_s *= times, rate.bf16_bytes_per_s *= times;
}

ClusterModel parse_cluster(std::string_view text, const std::string& file) {
  Json json;
  try {
    json = Json::parse(text, Keys::unique);
  } catch (const std::runtime_error& error) {  // JsonError, DuplicateKey
    refuse(file, error.what());
  }
  if (!json.is_object()) refuse(file, "is not a cluster: an object with \"device\", \"node\" and \"fabric\"");
  const Reader reader(json, file);
  reader.known(json, "", {"version", "name", "nodes", "device", "node", "fabric"});
  reader.number(json, "cluster", "version", 1, 1);
  ClusterModel cluster;
  cluster.name = reader.text(json, "cluster", "name");
  for (const char* name : {"device", "node", "fabric"}) {
    const Json* const found = reader.section(name);
    if (!found) continue;
    const Json& section = *found;
    std::vector<std::string> keys{"source"};
    for (const NumberRow& row : kNumbers)
      if (std::string_view(row.section) == name) {
        if (!row.is_optional || section.contains(row.key))
          row.of(cluster) = row.unit * reader.number(section, name, row.key, row.least, row.most);
        keys.push_back(row.key);
      }
    if (std::string_view(name) == "device") {
      keys.insert(keys.end(), {"processors", "attention", "ops"});
      cluster.device.processors = int(reader.number(section, name, "processors", 1, 1e6));
      read_attention(reader, section, cluster.device);
      read_ops(reader, section, cluster.device);
    }
    if (std::string_view(name) == "node") {
      keys.push_back("devices");
      cluster.devices_of_node = int(reader.number(section, name, "devices", 1, 4096));
    }
    reader.known(section, name, keys);
    source_of(cluster, name) = reader.text(section, name, "source");
  }
  if (json.contains("nodes"))
    cluster.devices = cluster.devices_of_node * int(reader.number(json, "cluster", "nodes", 1, 1 << 17));
  if (reader.is_sound()) check_rates(reader, cluster);
  reader.finish();
  return cluster;
}

std::string cluster_text(const ClusterModel& of) {
  ClusterModel cluster = of;
  OrderedJson json{{"version", 1}, {"name", cluster.name}};
  for (const char* name : {"device", "node", "fabric"}) {
    OrderedJson section = OrderedJson::object();
    const std::string_view which = name;
    if (which == "node") section["devices"] = cluster.devices_of_node;
    for (const NumberRow& row : kNumbers) {
      ClusterModel fresh;
      if (which != row.section || (row.is_optional && row.of(cluster) == row.of(fresh))) continue;
      section[row.key] = rounded(row.of(cluster) / row.unit);
      if (std::string_view(row.key) == "product_share") section["processors"] = cluster.device.processors;
    }
    if (which == "device") {
      OrderedJson attention = OrderedJson::array(), ops = OrderedJson::array();
      for (const AttentionRate& rate : cluster.device.attention) {
        attention.push_back({{"head_dim", rate.head_dim},
                             {"forward_tflops", rounded(rate.forward_flops_per_s / 1e12)},
                             {"backward_tflops", rounded(rate.backward_flops_per_s / 1e12)}});
        OrderedJson& row = attention.back();
        if (rate.forward_f32_flops_per_s > 0)
          row["forward_f32_tflops"] = rounded(rate.forward_f32_flops_per_s / 1e12);
        if (rate.backward_f32_flops_per_s > 0)
          row["backward_f32_tflops"] = rounded(rate.backward_f32_flops_per_s / 1e12);
      }
      for (const OpRate& rate : cluster.device.ops)
        ops.push_back({{"op", rate.op},
                       {"f32_gb_per_s", rounded(rate.f32_bytes_per_s / 1e9)},
                       {"bf16_gb_per_s", rounded(rate.bf16_bytes_per_s / 1e9)},
                       {"call_us", rounded(rate.call_s * 1e6)}});
      section["attention"] = std::move(attention);
      if (!ops.empty()) section["ops"] = std::move(ops);
    }
    section["source"] = source_of(cluster, name);
    json[name] = std::move(section);
  }
  if (cluster.devices >= cluster.devices_of_node && cluster.devices % cluster.devices_of_node == 0)
    json["nodes"] = cluster.devices / cluster.devices_of_node;
  return dump_json(json, 2) + "\n";
}

double energy_kwh(const ClusterModel& cluster, double device_hours) {
  return device_hours * cluster.device.board_w / 1000 * (1 + cluster.host_share) * cluster.pue;
}

std::vector<std::string> cluster_names() {
  std::vector<std::string> names;
  for (const KnownCluster& cluster : known_clusters()) names.emplace_back(cluster.name);
  return names;
}

std::string_view known_cluster_text(std::string_view name) {
  for (const KnownCluster& cluster : known_clusters())
    if (cluster.name == name) return cluster.text;
  return {};
}

std::string short_gpu_name(std::string_view text) {
  std::string name;
  std::vector<std::string> sizes;  // "80gb"
  const auto is_count = [](std::string_view word) {
    return !word.empty() &&
           std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  const auto add = [&](std::string word) {
    // "8xH100", "8x H100", "8 x H100": the number of them.
    if (const size_t x = word.find('x'); name.empty() && x != word.npos && is_count(word.substr(0, x)))
      word.erase(0, x + 1);
    if (word == "x" && is_count(name)) return name.clear();
    constexpr std::string_view kSaysNothing[] = {"nvidia", "amd",  "instinct", "tesla", "geforce",
                                                 "dgx",    "hgx",  "gpu",      "oam",   "ac",
                                                 "tensor", "core", "class"};
    const auto is_any = [&](std::string_view of) { return word == of; };
    if (word.empty() || std::any_of(std::begin(kSaysNothing), std::end(kSaysNothing), is_any)) return;
    for (const std::string_view kind : {"sxm", "hbm"})  // "sxm5", "hbm3e"
      if (word.starts_with(kind)) return;
    if (word.starts_with("nvl") && word.size() > 3) return;  // the size of a domain, "nvl72"; "nvl" is a card
    for (const std::string_view unit : {"gib", "gb", "g"})
      if (word.ends_with(unit) && word.size() < 8 && is_count(word.substr(0, word.size() - unit.size())))
        return sizes.push_back(word);
    name += (name.empty() ? "" : "-") + word;
  };
  std::string word;
  for (const char c : text) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter)) {
      word += char(std::tolower(letter));
    } else {
      add(std::exchange(word, ""));
    }
  }
  add(word);
  if (name == "a100") name = !sizes.empty() && std::stoi(sizes[0]) == 40 ? "a100-40" : "a100-80";
  const std::string kind = name;
  for (const std::string& size : sizes)
    if (!has_memory(kind, std::stoi(size))) name += (name.empty() ? "" : "-") + size;
  return name;
}

std::optional<ClusterModel> sized_cluster(const std::string& text) {
  if (!known_cluster_text(text).empty()) return known_cluster(text);
  if (text.ends_with('-') || text.find('/') != std::string::npos) return std::nullopt;  // a path is no name
  if (const std::string name = short_gpu_name(text); !known_cluster_text(name).empty())
    return known_cluster(name);
  constexpr int kMostDevices = 1 << 20;
  const size_t dash = text.rfind('-');
  if (dash == std::string::npos || dash == 0 || text[dash - 1] == '-') return std::nullopt;
  const std::string kind = short_gpu_name(text.substr(0, dash));
  if (known_cluster_text(kind).empty()) return std::nullopt;
  int devices = 0;
  const char *begin = text.data() + dash + 1, *end = text.data() + text.size();
  const auto [at, error] = std::from_chars(begin, end, devices);
  if (error != std::errc{} || at != end || devices < 1 || devices > kMostDevices) return std::nullopt;
  ClusterModel cluster = known_cluster(kind);
  cluster.devices = devices;
  return cluster;
}

ClusterModel known_cluster(std::string_view name) {
  return parse_cluster(known_cluster_text(name), std::string(name));
}

}  // namespace trainctl::predict
