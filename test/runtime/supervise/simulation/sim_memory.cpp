// The memory of the nodes of the simulated cluster: the pieces of the newest two states of each rank.
#include <fmt/format.h>

#include "test/runtime/supervise/simulation/sim_world.h"

namespace trainctl::test {

using namespace sim;

/// The place in the group whose pieces the node at `place` holds second copies of; -1: none.
int SimCluster::World::partner_of(const Group& g, size_t place) {
  return g.nodes.size() < 2 ? -1 : int((place + g.nodes.size() - 1) % g.nodes.size());
}

void SimCluster::World::keep_piece(int n, const Piece& piece) {
  std::vector<Piece>& pieces = node[size_t(n)].pieces;
  const auto same_file = [&](const Piece& p) { return p.index == piece.index && p.width == piece.width; };
  if (std::count_if(pieces.begin(), pieces.end(), same_file) == 2)
    pieces.erase(std::find_if(pieces.begin(), pieces.end(), same_file));
  pieces.push_back(piece);
}

/// After a step of the group each node keeps it, unless its ranks end before the copy is sealed, and some
/// send it to their partners.
void SimCluster::World::keep_step(const Group& g, uint32_t epoch) {
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    if (chance(0.05)) continue;
    Piece piece{.step = g.step,
                .epoch = epoch,
                .index = int(i),
                .width = g.width,
                .bits = g.bits,
                .damaged = chance(0.02)};
    keep_piece(g.nodes[i], piece);
    const int partner = g.nodes[(i + 1) % g.nodes.size()];
    if (g.nodes.size() < 2 || chance(0.2) || !node[size_t(partner)].agent || !reachable(g.nodes[i], partner))
      continue;
    piece.damaged |= chance(0.01);
    // What its own agent has learned of a newer epoch refuses the copy.
    if (node[size_t(partner)].newest_epoch == epoch) keep_piece(partner, piece);
  }
}

/// What an agent does before it starts the ranks of an epoch.
void SimCluster::World::clear_pieces(int n, const Group& g) {
  const auto place = size_t(std::find(g.nodes.begin(), g.nodes.end(), n) - g.nodes.begin());
  std::erase_if(node[size_t(n)].pieces, [&](const Piece& p) {
    const bool is_loaded = g.from_memory && p.width == g.from_memory->ranks / kSlots;
    const bool belongs_here =
        p.width == g.width && (p.index == int(place) || p.index == partner_of(g, place));
    return p.step > std::max<int64_t>(g.from_step, 0) || !(is_loaded || belongs_here);
  });
}

/// The state that the group reads from the nodes that hold it; false: it cannot.
bool SimCluster::World::load_pieces(Group& g) {
  const Source& from = *g.from_memory;
  for (int index = 0; index < from.ranks / kSlots; ++index) {
    const auto holder = size_t(from.nodes[size_t(index * kSlots)][1] - '0');
    const bool is_there = node[holder].agent && std::all_of(g.nodes.begin(), g.nodes.end(),
                                                            [&](int n) { return reachable(n, int(holder)); });
    const std::vector<Piece>& pieces = node[holder].pieces;
    const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& p) {
      return p.index == index && p.width == from.ranks / kSlots && p.step == from.state.step &&
             p.epoch == from.state.epoch;
    });
    if (!is_there || piece == pieces.end() || (piece->damaged && rules.pieces_are_verified_when_read))
      return false;
    g.step = piece->step;
    g.bits = piece->bits ^ (piece->damaged ? 1 : 0);
  }
  ++result.memory_loads;
  if (from.ranks / kSlots != g.width) ++result.memory_loads_of_other_widths;
  return true;
}

void SimCluster::World::look_for_state(int id, const FindCheckpoint& find) {
  Supervisor& s = supervisors[size_t(id)];
  int skipped = 0;
  // The last step must become a checkpoint: it is computed again.
  const int64_t newest = std::min<int64_t>(disk.metrics_step, kTotalSteps - 1);
  SourceQuestion question{.run_id = "run",
                          .beginnings = disk.beginnings,
                          .at_most = std::min(find.at_most.value_or(newest), newest),
                          .refused = find.refused,
                          .memory = {},
                          .directory_step = {}};
  for (auto it = disk.checkpoints.rbegin(); it != disk.checkpoints.rend() && !question.directory_step; ++it) {
    if (find.at_most && it->step > *find.at_most) continue;
    if (it->unopenable)
      ++skipped;
    else
      question.directory_step = it->step;
  }
  for (int n = 0; n < nodes; ++n) {
    if (s.connection[size_t(n)] < 0 || !reachable(s.host, n)) continue;
    NodePieces held{name_of_node(n), {}};
    for (const Piece& p : node[size_t(n)].pieces)
      for (int slot = 0; slot < kSlots; ++slot)
        held.pieces.push_back({.step = p.step,
                               .epoch = p.epoch,
                               .rank = p.index * kSlots + slot,
                               .ranks = p.width * kSlots,
                               .run_id = "run",
                               .bytes = 1,
                               .problem = ""});
    question.memory.push_back(std::move(held));
  }
  const SourceChoice choice = choose_source(question);
  s.from_memory.reset();
  if (!choice.source) return s.recovery->no_checkpoint(skipped);
  if (choice.source->tier == Tier::directory) return s.recovery->checkpoint_found(choice.source->state.step);
  s.from_memory = choice.source;
  s.recovery->checkpoint_found(choice.source->state.step, choice.source->state);
}

/// Whether every node that holds a part of the state is connected.
bool SimCluster::World::reaches_memory(const Supervisor& s, const StartAttempt& start) const {
  if (!start.in_memory) return true;
  return s.from_memory &&
         std::all_of(s.from_memory->nodes.begin(), s.from_memory->nodes.end(),
                     [&](const std::string& name) { return s.connection[size_t(name[1] - '0')] >= 0; });
}

}  // namespace trainctl::test
