// AxisGroups: this rank's end of the group of ranks along each axis.
#pragma once
#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/group_key.h"

namespace trainctl::parallel {

class AxisGroups {
 public:
  AxisGroups() = default;
  /// Those of data and tensor parallelism. uses: null where no other stage has a use of the same parameter;
  /// otherwise the stages in order. All must outlive this object.
  AxisGroups(Communicator& data, Communicator& tensor, Communicator* uses) {
    add(axes::data, data, true);
    add(axes::tensor, tensor);
    if (uses) add(axes::uses, *uses);
  }
  /// Those of the axes along which parameters are shared. uses: as above.
  AxisGroups(const PerAxis<std::unique_ptr<Communicator>>& axes, Communicator* uses) {
    for (const AxisRow& row : kAxes)
      if (row.shared && axes[row.axis]) add(row.shared, *axes[row.axis], row.has_lanes);
    if (uses) add(axes::uses, *uses);
  }
  void add(AxisSet axis, Communicator& group, bool has_lanes = false) {
    groups_.push_back({axis, &group, has_lanes});
  }
  /// The same members again, for gathers of weights that must not queue behind what `group` of the axis does.
  void add_gathers(AxisSet axis, Communicator& group) { gathers_.push_back({axis, &group}); }
  /// Null: no other rank is along that axis.
  Communicator* find(AxisSet axis) const {
    for (const Group& group : groups_)
      if (group.axis == axis) return group.comm;
    return nullptr;
  }
  /// The group through which weights are gathered along the axis.
  Communicator* find_gathers(AxisSet axis) const {
    for (const Group& group : gathers_)
      if (group.axis == axis) return group.comm;
    return find(axis);
  }
  AxisLines lines() const {
    AxisLines lines;
    for (const Group& group : groups_)
      lines.push_back({group.axis, group.comm->size(), group.comm->rank(), group.has_lanes});
    return lines;
  }

 private:
  struct Group {
    AxisSet axis = 0;
    Communicator* comm = nullptr;
    bool has_lanes = false;
  };
  std::vector<Group> groups_, gathers_;
};

}  // namespace trainctl::parallel
