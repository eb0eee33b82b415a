// UntakenMessages keeps what an agent has sent to its supervisor and the supervisor may not have taken: a
// supervisor that dies takes it with it, and the next one gets it again. Pure.
//
//   ends    how ranks have ended; kept for the whole epoch
//   saves   what ranks have handed in for saves; kept until the answer to that save, of the newest
//           kMostUnpublishedSaves saves
//   answers the newest answers to saves that the ranks here have got: another node may have missed one
//   others  kept until the supervisor has handled them; limited, output goes first
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "runtime/run/wire/node_wire.h"
#include "runtime/run/wire/save_answers.h"

namespace trainctl {

class UntakenMessages {
 public:
  /// What is kept of the others for a supervisor that is away.
  struct Limits {
    size_t messages = 100000;
    size_t payload_bytes = 64u << 20;
  };
  UntakenMessages() : UntakenMessages(Limits{}) {}
  explicit UntakenMessages(const Limits& limits) : limits_(limits) {}

  /// Gives `message` the next number, from 1, and keeps it. Beyond the limits the oldest output goes, then
  /// the oldest message.
  void keep(wire::Message& message);
  /// The supervisor has handled all messages up to that number.
  void taken(uint64_t sequence);
  /// `line` is on its way from the supervisor to `rank`, -1: all ranks here. It may be the answer to a save.
  void answered(const std::string& line, int rank = -1);
  /// Another epoch begins, or nothing of this one is of use. Numbers go on.
  void clear();

  const std::deque<wire::Message>& ends() const { return ends_; }
  struct Save {
    int64_t number;
    wire::Message message;
  };
  const std::deque<Save>& saves() const { return saves_; }
  const std::deque<wire::Message>& others() const { return others_; }
  /// What a supervisor must hear that has handled all up to number `handled`, of another one 0: the answers, of
  /// this epoch, before what waits for one, and the rest in the order of the numbers: the connection may break
  /// in between. Answers have no number, so they come each time.
  std::vector<wire::Message> again(uint64_t epoch, uint64_t handled = 0) const;
  /// All of these with a number above `sequence`, in their order.
  std::vector<wire::Message> after(uint64_t sequence) const;
  const SaveAnswers& answers() const { return answers_; }

 private:
  void drop_oldest_save();
  void drop_beyond_limits();

  Limits limits_;
  uint64_t sequence_ = 0;
  std::deque<wire::Message> ends_;
  std::deque<Save> saves_;
  SaveAnswers answers_;
  std::deque<wire::Message> others_;
  size_t others_bytes_ = 0;  ///< of their payloads
};

}  // namespace trainctl
