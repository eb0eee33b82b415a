#include "cmd/interrupt_note.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <list>
#include <mutex>

namespace trainctl::cmd {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
std::atomic<const char*> shown = nullptr;

/// The sentences so far: a handler may still read one that was replaced.
struct Sentences {
  std::mutex mutex;
  std::list<std::string> all;
};
Sentences& sentences() {
  static Sentences kept;
  return kept;
}

void handle(int number) {
  if (const char* text = shown.load()) (void)!::write(STDERR_FILENO, text, std::strlen(text));
  std::signal(number, SIG_DFL);
  ::raise(number);  // ends the process once this handler has returned
}

}  // namespace

InterruptNote::InterruptNote() {
  for (const int number : kSignals)
    if (std::signal(number, handle) == SIG_IGN) std::signal(number, SIG_IGN);
}

InterruptNote::~InterruptNote() {
  for (const int number : kSignals)
    if (std::signal(number, SIG_DFL) == SIG_IGN) std::signal(number, SIG_IGN);
  shown = nullptr;
}

void InterruptNote::set(const std::string& sentence) {
  Sentences& kept = sentences();
  const std::lock_guard lock(kept.mutex);
  const std::string text = "\n" + sentence + "\n";
  if (!kept.all.empty() && kept.all.back() == text) return;
  kept.all.push_back(text);
  shown = kept.all.back().c_str();
}

}  // namespace trainctl::cmd
