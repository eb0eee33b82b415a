// S3Server: moto's S3 server on a free port of loopback, which a test starts and ends. What it keeps is in
// its memory, and gone with it.
//
// The program is in TRAINCTL_TEST_MOTO: test/s3/moto.sh installs it and runs the tests that need it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "test/support/child.h"

namespace trainctl::test {

class S3Server {
 public:
  static constexpr const char* kKey = "test-key";
  static constexpr const char* kSecret = "test-secret-7Q2K";

  /// Starts it; its output goes to files in `folder`. The test fails if it does not answer.
  ///   environment   "NAME=VALUE", of the server
  explicit S3Server(const std::string& folder, std::vector<std::string> environment = {});
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  std::string endpoint() const;  ///< "http://127.0.0.1:34567"
  void end();                    ///< with SIGKILL
  void start_again();            ///< on the same port, with no bucket
  void make_bucket(const std::string& name);
  /// "NAME=VALUE" for the environment of programs that use it.
  std::vector<std::string> access() const;

 private:
  bool starts();
  const std::string folder_;
  const std::vector<std::string> environment_;
  int port_ = 0;
  std::unique_ptr<Child> child_;
};

}  // namespace trainctl::test
