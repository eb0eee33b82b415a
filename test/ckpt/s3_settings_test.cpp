// Goal: credentials and endpoint of an object store come from the environment or a file, as for other tools,
// and are not printed. Method: made-up environments and files.
#include <catch2/catch.hpp>

#include "ckpt/s3_client.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

ckpt::Environment environment(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) {
    const auto at = values.find(name);
    return at == values.end() ? "" : at->second;
  };
}

}  // namespace

TEST_CASE("credentials come from the environment, then from the profile of a file") {
  PowerLossFileSystem fs;
  const auto from = [&](const std::map<std::string, std::string>& values) {
    return ckpt::s3_credentials(fs, environment(values));
  };
  CHECK_THROWS_WITH(from({{"HOME", "/h"}}),
                    Catch::Contains("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") &&
                        Catch::Contains("[default] to /h/.aws/credentials"));
  const auto both =
      from({{"AWS_ACCESS_KEY_ID", "k"}, {"AWS_SECRET_ACCESS_KEY", "s"}, {"AWS_SESSION_TOKEN", "t"}});
  CHECK((both.access_key == "k" && both.secret_key == "s" && both.session_token == "t"));

  fs.make_directory("/h");
  fs.make_directory("/h/.aws");
  fs.write_new_text(
      "/h/.aws/credentials",
      "# mine\n[default]\naws_access_key_id = a\r\naws_secret_access_key=b/c+=\n\n[other]\n  "
      "aws_access_key_id=x\n"
      "aws_secret_access_key = y\naws_session_token = z\n[half]\naws_access_key_id = secret-half\n");
  const auto plain = from({{"HOME", "/h"}});
  CHECK((plain.access_key == "a" && plain.secret_key == "b/c+=" && plain.session_token == ""));
  const auto other = from({{"HOME", "/h"}, {"AWS_PROFILE", "other"}});
  CHECK((other.access_key == "x" && other.secret_key == "y" && other.session_token == "z"));
  const auto elsewhere =
      from({{"AWS_SHARED_CREDENTIALS_FILE", "/h/.aws/credentials"}, {"AWS_ACCESS_KEY_ID", "k"}});
  CHECK(elsewhere.access_key == "a");  // half a pair in the environment does not count
  try {
    from({{"HOME", "/h"}, {"AWS_PROFILE", "half"}});
    FAIL("half a pair was accepted");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("secret-half") == std::string::npos);
  }
}

TEST_CASE("the endpoint and the region of an object store") {
  PowerLossFileSystem fs;
  std::map<std::string, std::string> values{{"AWS_ACCESS_KEY_ID", "k"}, {"AWS_SECRET_ACCESS_KEY", "s"}};
  const auto options = [&] { return ckpt::s3_options(fs, environment(values), "b"); };
  CHECK((options().endpoint == "https://s3.us-east-1.amazonaws.com" && options().bucket == "b"));
  values["AWS_DEFAULT_REGION"] = "eu-central-1";
  CHECK(options().endpoint == "https://s3.eu-central-1.amazonaws.com");
  values["AWS_REGION"] = "eu-west-1";
  CHECK(options().region == "eu-west-1");
  values["AWS_ENDPOINT_URL"] = "http://minio:9000/";
  CHECK(options().endpoint == "http://minio:9000");
  values["AWS_ENDPOINT_URL_S3"] = "https://s3.example:444";
  CHECK(options().endpoint == "https://s3.example:444");
}
