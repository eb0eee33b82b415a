// HookServer: a web server of one test, in its process, that gets alerts: it keeps the bodies of the requests
// and answers with a status, or never.
#pragma once
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace trainctl::test {

class HookServer {
 public:
  enum class Answers { yes, never };
  explicit HookServer(Answers answers = Answers::yes);
  ~HookServer();
  HookServer(const HookServer&) = delete;
  HookServer& operator=(const HookServer&) = delete;

  std::string url() const;  ///< "http://127.0.0.1:34567/hook?token=secret"
  /// The statuses of the next answers; then 200.
  void answer_with(std::vector<int> statuses);
  std::vector<std::string> bodies() const;

 private:
  void serve();
  void answer(int connection);
  const Answers answers_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> ends_ = false;
  mutable std::mutex mutex_;
  std::vector<std::string> bodies_;
  std::vector<int> statuses_;
  std::vector<int> held_;  ///< connections that are never answered
  std::thread thread_;
};

}  // namespace trainctl::test
