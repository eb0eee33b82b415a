// ClusterModel: what limits the speed of a device, of a node and of the network between nodes. A cluster file
// (scripts/clusters/NAME.json) gives it; the known ones are part of the program.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::predict {

/// FLOP/s that attention reaches for one head dimension with long sequences, in FLOPs as kernels/ops.h
/// counts them (the backward pass as 2 forward passes).
struct AttentionRate {
  int head_dim = 0;
  double forward_flops_per_s = 0, backward_flops_per_s = 0;
  /// Of attention in f32; 0: slower by what products are.
  double forward_f32_flops_per_s = 0, backward_f32_flops_per_s = 0;
};

/// What one op that is no product reaches, where all of them at one rate would be wrong: on a CPU, whose
/// cores also compute what they move.
struct OpRate {
  std::string op;                                    ///< its name in kernels/ops.h
  double f32_bytes_per_s = 0, bf16_bytes_per_s = 0;  ///< by the precision of the step
  double call_s = 0;                                 ///< of a call, besides its bytes
};

struct DeviceSpeed {
  double peak_bf16_flops_per_s = 0, peak_f32_flops_per_s = 0;  ///< by the data sheet, dense
  double product_share = 1;              ///< of the peak, that large products reach over minutes
  int processors = 1;                    ///< that compute tiles of a product at one time
  double depth_cost = 0;                 ///< what a tile costs besides its products, as depth (k) of one
  double grouped_share = 1;              ///< of the speed of one product, that products of many experts reach
  /// Of 8-bit numbers: what large products reach over minutes, and their depth_cost; 0: not known.
  double fp8_flops_per_s = 0, fp8_depth_cost = 0;
  double fp4_flops_per_s = 0, fp4_depth_cost = 0;  ///< of 4-bit numbers
  std::vector<AttentionRate> attention;  ///< by head dimension
  double attention_half_length = 0;      ///< sequence length at which attention reaches half of its rate
  double memory_bytes_per_s = 0;         ///< by the data sheet
  double memory_share = 1;               ///< of it, that an elementwise op reaches
  double board_w = 0;                    ///< power limit of the device with its board; 0: not known
  std::vector<OpRate> ops;               ///< of single ops
  double op_s = 0;                       ///< least time of an op on the device
  double launch_s = 0;                   ///< time in which the host enqueues an op
  /// Ops in the place of each elementwise one of a micro-batch: times its bytes, its op_s, and what
  /// products move apart, not its launches; 1: as ops count them. Not in a file: for software that fuses
  /// less.
  double passes = 1;
  /// Whether jobs with precision.fp8 multiply in 8 bits. Not in a file: for other software; this program
  /// rounds to FP8 and multiplies in bf16.
  bool multiplies_fp8 = false;
  double spread = 0;  ///< standard deviation of the speed of equal devices, as a share

  double peak_flops_per_s(bool f32) const { return f32 ? peak_f32_flops_per_s : peak_bf16_flops_per_s; }
  /// Of the head dimension that is nearest.
  const AttentionRate& attention_of(double head_dim) const;
  /// Null: it has no rate of its own.
  const OpRate* rate_of(std::string_view op) const;
};

/// A device that is `times` as fast in everything that a core does; what an op costs besides is the same.
void scale_device(DeviceSpeed& device, double times);

/// One way between two members of a group. The rate is of all bytes that a rank sends.
struct LinkSpeed {
  double bytes_per_s = 1;
  double latency_s = 0;
};

/// Power of all of a node but its devices' boards, as a share of their limits, where a cluster file does not
/// say: nodes of 8 H100 of 700 W draw 7.8 kW while they train (arXiv:2506.14551).
inline constexpr double kHostShare = 0.4;
/// Power of a data center over that of its nodes, where a cluster file does not say. An assumption: large new
/// halls have 1.1, the mean of all 1.56 (Uptime Institute, 2024; recalled).
inline constexpr double kPowerUsageEffectiveness = 1.2;

struct ClusterModel {
  std::string name;
  std::string device_source, node_source, fabric_source;  ///< where the numbers of each section are from
  DeviceSpeed device;
  int devices_of_node = 1;
  int devices = 0;              ///< of all nodes; 0: not known
  LinkSpeed node;               ///< between two devices of a node, as collectives reach it
  LinkSpeed fabric;             ///< of one device to another node: its share of the node's network cards
  /// Whether collectives are rings of NCCL, which have a latency for each of their ranks. Not in a file:
  /// for other software.
  bool in_rings = false;
  double disk_bytes_per_s = 0;  ///< of a node's own disks, read and written at the same time; 0: not known
  double host_share = kHostShare, pue = kPowerUsageEffectiveness;
  double overlap_slowdown = 0;  ///< share of their speed that computations lose while messages are under way
};

/// Drawn by so many hours of one device, with its share of a node and of the data center, at the limits of
/// boards; 0: these are not known.
double energy_kwh(const ClusterModel& cluster, double device_hours);

/// Names of the known clusters.
std::vector<std::string> cluster_names();
/// The text of a known cluster's file; "" for another name.
std::string_view known_cluster_text(std::string_view name);
/// A known cluster.
ClusterModel known_cluster(std::string_view name);

/// The short name of a kind of GPU, whatever a table or a driver calls it: "h100" for "NVIDIA H100-SXM5-80GB
/// HBM3", "DGX H100" or "8xH100", "a100-80" for "A100 80GB", "gb200" for "GB200 NVL72". Other texts become
/// words with dashes. An amount of memory that the kind does not have stays: "h100-64gb".
std::string short_gpu_name(std::string_view text);

/// A known cluster, by what tables and drivers call its GPU, too, or one with its number of devices, as
/// "h100-2048"; nullopt: another text, among them each with a '/' in it.
std::optional<ClusterModel> sized_cluster(const std::string& text);

/// Reads a cluster file. Error(kUsage) with a line for each mistake, which names the file and the place in
/// it: a number that is missing, impossible or of another unit, a key that is not known.
ClusterModel parse_cluster(std::string_view text, const std::string& file);
/// The file of a cluster, with as many digits as parse_cluster needs to read the same numbers.
std::string cluster_text(const ClusterModel& cluster);

}  // namespace trainctl::predict
