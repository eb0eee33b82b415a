#include "runtime/train/mesh_communicators.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>

#include "runtime/base/error.h"

namespace trainctl {

using parallel::Communicator;

void MeshCommunicators::set_deadline(double seconds) const {
  for_each([seconds](Communicator& c) { c.set_deadline(seconds); });
}

void MeshCommunicators::check() const {
  for_each([](Communicator& c) { c.check(); });
}

void MeshCommunicators::sum_parts(std::span<float> parts) const {
  std::vector<float> scratch(parts.size());
  const auto add = [](void* own, const void* other, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof(float); ++i)
      static_cast<float*>(own)[i] += static_cast<const float*>(other)[i];
  };
  for_each_axis([&](Communicator& axis) {
    parallel::all_combine(axis, parts.data(), scratch.data(), parts.size_bytes(), add, 0, "sum");
  });
}

parallel::AxisGroups MeshCommunicators::shared() const {
  parallel::AxisGroups groups(axes, tied.get());
  if (expert_data) groups.add(parallel::axes::expert_data, *expert_data, true);
  if (gathers) groups.add_gathers(parallel::axes::data, *gathers);
  if (expert_gathers) groups.add_gathers(parallel::axes::expert_data, *expert_gathers);
  return groups;
}

StagePeers MeshCommunicators::peers(const bool& rehearses) const {
  return {axes[parallel::Axis::cp].get(), experts.get(), [this] { check(); }, &rehearses};
}

double MeshCommunicators::waited_s() const {
  double seconds = 0;
  for_each([&](const Communicator& c) { seconds += c.waited_s(); });
  return seconds;
}

double MeshCommunicators::waited_in_pipeline_s() const {
  double seconds = 0;
  edges.for_each([&](const Communicator& edge) { seconds += edge.waited_s(); });
  return seconds;
}

namespace {

/// The numbers of a rank's groups (Subgroup::number): of the axes from 1 on, then of others.
constexpr int kTiedEmbedding = int(std::size(parallel::kAxes)) + 1, kFirstEdge = kTiedEmbedding + 1,
              kExperts = kFirstEdge + kEdgeNumbers, kExpertData = kExperts + 1, kGathers = kExpertData + 1,
              kExpertGathers = kGathers + 1;

/// "stage 1, dp 0": where a group along `of`, or from the first axis on, is on the other axes.
std::string place_of(const RankGroups& groups, std::optional<parallel::Axis> of, bool from_first = false) {
  std::string place;
  for (size_t i = std::size(parallel::kAxes); i-- > 0;) {
    const parallel::AxisRow& row = parallel::kAxes[i];
    const int within =
        i > 0 && parallel::kAxes[i - 1].is_within_next ? groups.axes[parallel::kAxes[i - 1].axis].size : 1;
    const bool is_member = row.axis == of || (from_first && row.axis < *of) ||
                           (row.is_within_next && parallel::kAxes[i + 1].axis == of);
    if (is_member || (row.is_within_next && groups.axes[row.axis].size == 1)) continue;
    place += fmt::format("{}{} {}", place.empty() ? "" : ", ", row.coordinate,
                         groups.axes[row.axis].rank / within);
  }
  return place;
}

}  // namespace

MeshCommunicators make_mesh_communicators(const RankGroups& groups, Communicator& world) {
  MeshCommunicators c;
  // Exchanges of one group are made in one order, so a gather would wait for all reductions before it. On the
  // host each goes on by itself.
  const bool gathers_apart = groups.gathers_apart && world.waits_on_device();
  for (const parallel::AxisRow& row : parallel::kAxes) {
    const parallel::MeshGroup& group = groups.axes[row.axis];
    if (row.is_within_next && group.size == 1) continue;  // an axis that most jobs do not have
    parallel::Subgroup subgroup{.members = group.members(),
                                .number = int(row.axis) + 1,
                                .name = fmt::format("{} group of {}", row.word, place_of(groups, row.axis))};
    // Without tensors: for numbers on the host, and for the edges that are made from it.
    if (row.moves_tensors)
      subgroup.connects_later = true;
    else
      subgroup.traffic = parallel::Traffic::none;
    c.axes[row.axis] = world.subgroup(subgroup);
    if (!row.has_lanes || !gathers_apart || group.size == 1) continue;
    subgroup.number = kGathers, subgroup.name = "gathers of the " + subgroup.name;
    subgroup.traffic = parallel::Traffic::gathers;
    c.gathers = world.subgroup(subgroup);
  }
  if (groups.experts.size > 1) {
    const bool of_tensor_ranks = groups.experts.stride < groups.axes[parallel::Axis::dp].stride;
    const auto part = [&](const parallel::MeshGroup& group, int number, const char* word,
                          parallel::Traffic traffic = parallel::Traffic::bulk) {
      return world.subgroup({.members = group.members(),
                             .number = number,
                             .name = fmt::format("{} group {} of {}", word, group.first,
                                                 place_of(groups, parallel::Axis::dp, of_tensor_ranks)),
                             .traffic = traffic,
                             .connects_later = true});
    };
    c.experts = part(groups.experts, kExperts, "expert");
    c.expert_data = part(groups.expert_data, kExpertData, "expert data");
    if (gathers_apart && groups.expert_data.size > 1)
      c.expert_gathers =
          part(groups.expert_data, kExpertGathers, "gathers of the expert data", parallel::Traffic::gathers);
  }
  const parallel::MeshGroup& stages = groups.axes[parallel::Axis::pp];
  if (groups.tied_peer)
    c.tied =
        world.subgroup({.members = {stages.members().front(), stages.members().back()},
                        .number = kTiedEmbedding,
                        .name = fmt::format("tied embedding of {}", place_of(groups, parallel::Axis::pp)),
                        .connects_later = true});
  c.edges = make_edges(*c.axes[parallel::Axis::pp], groups.stages, kFirstEdge);
  return c;
}

}  // namespace trainctl
