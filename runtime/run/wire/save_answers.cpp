#include "runtime/run/wire/save_answers.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl {

void SaveAnswers::add(const protocol::Down& answer) {
  ENSURE(answer.kind == protocol::Down::saved, "kind = {}", int(answer.kind));
  ENSURE(!contradicts(answer), "save {} is answered twice: {} ({}) and {} ({})", answer.number,
         find(answer.number)->ok, find(answer.number)->message, answer.ok, answer.message);
  if (has_forgotten(answer.number)) return;
  newest_.emplace(answer.number, answer);
  if (newest_.size() <= kMost) return;
  oldest_known_ = newest_.begin()->first + 1;
  newest_.erase(newest_.begin());
}

const protocol::Down* SaveAnswers::find(int64_t number) const {
  const auto answer = newest_.find(number);
  return answer == newest_.end() ? nullptr : &answer->second;
}

bool SaveAnswers::contradicts(const protocol::Down& answer) const {
  const protocol::Down* const known = find(answer.number);
  return known && known->ok != answer.ok;
}

}  // namespace trainctl
