// The memory of the nodes of the simulated cluster: the pieces of the newest two states of each rank.
#include <fmt/format.h>

#include "test/support/sim_world.h"

namespace trainctl::test {

using namespace sim;

/// After a step of the group each node keeps it, unless its ranks end before the copy is sealed.
void SimCluster::World::keep_step(const Group& g, uint32_t epoch) {
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    if (chance(0.05)) continue;
    const Piece piece{.step = g.step,
                      .epoch = epoch,
                      .index = int(i),
                      .width = g.width,
                      .bits = g.bits,
                      .damaged = chance(0.02)};
    std::vector<Piece>& pieces = node[size_t(g.nodes[i])].pieces;
    const auto same_file = [&](const Piece& p) { return p.index == piece.index && p.width == piece.width; };
    if (std::count_if(pieces.begin(), pieces.end(), same_file) == 2)
      pieces.erase(std::find_if(pieces.begin(), pieces.end(), same_file));
    pieces.push_back(piece);
  }
}

/// What an agent does before it starts the ranks of an epoch.
void SimCluster::World::clear_pieces(int n, const Group& g) {
  std::erase_if(node[size_t(n)].pieces, [&](const Piece& p) {
    const bool of_mesh = p.width == g.width || (g.from_memory && p.width == g.from_memory->ranks / kSlots);
    return p.step > std::max<int64_t>(g.from_step, 0) || !of_mesh;
  });
}

/// The state that a node of the group reads from its own memory; false: it cannot.
bool SimCluster::World::load_pieces(Group& g) {
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const std::vector<Piece>& pieces = node[size_t(g.nodes[i])].pieces;
    const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& p) {
      return p.index == int(i) && p.width == g.width && p.step == g.from_memory->state.step &&
             p.epoch == g.from_memory->state.epoch;
    });
    if (piece == pieces.end() || (piece->damaged && rules.pieces_are_verified_when_read)) return false;
    g.step = piece->step;
    g.bits = piece->bits ^ (piece->damaged ? 1 : 0);
  }
  ++result.memory_loads;
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

/// Whether each rank of the attempt finds its piece on its own node.
bool SimCluster::World::reaches_memory(const Supervisor& s, const StartAttempt& start) const {
  if (!start.in_memory) return true;
  if (!s.from_memory || s.from_memory->ranks != int(start.nodes.size()) * kSlots) return false;
  for (int rank = 0; rank < s.from_memory->ranks; ++rank)
    if (s.from_memory->nodes[size_t(rank)] != start.nodes[size_t(rank / kSlots)]) return false;
  return true;
}

}  // namespace trainctl::test
