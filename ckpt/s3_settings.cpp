// Where endpoint and credentials come from.
#include <fmt/format.h>

#include <cstdlib>
#include <sstream>

#include "ckpt/s3_client.h"

namespace trainctl::ckpt {
namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::string first_of(const Environment& environment, std::initializer_list<const char*> names,
                     const std::string& other) {
  for (const char* name : names)
    if (const std::string value = environment(name); !value.empty()) return value;
  return other;
}

}  // namespace

std::string process_environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value ? value : "";
}

S3Credentials s3_credentials(FileSystem& fs, const Environment& environment) {
  S3Credentials credentials{environment("AWS_ACCESS_KEY_ID"), environment("AWS_SECRET_ACCESS_KEY"),
                            environment("AWS_SESSION_TOKEN")};
  if (!credentials.access_key.empty() && !credentials.secret_key.empty()) return credentials;
  const std::string file =
      first_of(environment, {"AWS_SHARED_CREDENTIALS_FILE"}, environment("HOME") + "/.aws/credentials");
  const std::string profile = first_of(environment, {"AWS_PROFILE"}, "default");
  credentials = {};
  if (fs.exists(file)) {
    std::istringstream lines(fs.read_text(file));
    bool is_ours = false;
    for (std::string line; std::getline(lines, line);) {
      line = trimmed(line);
      if (line.starts_with("[")) is_ours = line == "[" + profile + "]";
      const size_t equals = line.find('=');
      if (!is_ours || equals == std::string::npos) continue;
      const std::string name = trimmed(line.substr(0, equals)), value = trimmed(line.substr(equals + 1));
      if (name == "aws_access_key_id") credentials.access_key = value;
      if (name == "aws_secret_access_key") credentials.secret_key = value;
      if (name == "aws_session_token") credentials.session_token = value;
    }
  }
  if (credentials.access_key.empty() || credentials.secret_key.empty())
    throw Error(ErrorCode::kUsage,
                fmt::format("there are no credentials for the object store: set AWS_ACCESS_KEY_ID and "
                            "AWS_SECRET_ACCESS_KEY, or write the profile [{}] to {}",
                            profile, file));
  return credentials;
}

S3Options s3_options(FileSystem& fs, const Environment& environment, const std::string& bucket) {
  S3Options options{.bucket = bucket, .credentials = s3_credentials(fs, environment)};
  options.region = first_of(environment, {"AWS_REGION", "AWS_DEFAULT_REGION"}, "us-east-1");
  options.endpoint = first_of(environment, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"},
                              fmt::format("https://s3.{}.amazonaws.com", options.region));
  while (options.endpoint.ends_with("/")) options.endpoint.pop_back();
  return options;
}

}  // namespace trainctl::ckpt
