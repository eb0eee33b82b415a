// SaveAnswers are the answers of supervisors to the saves of one epoch, by the save's number. A supervisor
// repeats them to ranks, an agent to the next supervisor, and a rank waits for one. A number is answered once:
// another answer to it is a broken invariant. Pure. Not thread-safe.
#pragma once
#include <cstdint>
#include <map>

#include "runtime/run/wire/protocol.h"

namespace trainctl {

class SaveAnswers {
 public:
  /// The newest answers that are kept, to be repeated. Only the last save of a run waits for its answer.
  static constexpr size_t kMost = 16;

  /// Keeps an answer (Down::saved); the same one may come again. Beyond kMost the smallest number is
  /// forgotten, and is not kept again.
  void add(const protocol::Down& answer);
  /// Null: the save has none, or it is forgotten.
  const protocol::Down* find(int64_t number) const;
  bool has_forgotten(int64_t number) const { return number < oldest_known_; }
  /// Whether the save of `answer` is known to have another one.
  bool contradicts(const protocol::Down& answer) const;
  const std::map<int64_t, protocol::Down>& newest() const { return newest_; }

 private:
  std::map<int64_t, protocol::Down> newest_;
  int64_t oldest_known_ = 0;
};

}  // namespace trainctl
