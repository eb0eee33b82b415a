#include "runtime/machine/bundle.h"

#include <cstdlib>
#include <filesystem>

namespace trainctl {

std::string bundle_root(const std::string& program, const std::function<bool(const std::string&)>& exists) {
  const std::filesystem::path bin = std::filesystem::path(program).parent_path();
  if (bin.filename() != "bin") return "";
  const std::string root = bin.parent_path().string();
  return exists(root + "/lib/openmpi") && exists(root + "/share/openmpi") && exists(root + "/etc/openmpi") ? root : "";
}

std::string own_bundle() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  return bundle_root(program.string(), [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored);
  });
}

Environment bundle_environment(const std::string& root) {
  if (root.empty()) return {};
  return {{"OPAL_PREFIX", root},
          {"OPAL_LIBDIR", root + "/lib"},
          {"OPAL_PKGLIBDIR", root + "/lib/openmpi"},
          {"OPAL_DATADIR", root + "/share"},
          {"OPAL_PKGDATADIR", root + "/share/openmpi"},
          {"OPAL_SYSCONFDIR", root + "/etc/openmpi"},
          {"PMIX_PREFIX", root},
          {"PMIX_INSTALL_PREFIX", root},  // what newer versions read
          {"PMIX_LIBDIR", root + "/lib"},
          {"PMIX_PKGLIBDIR", root + "/lib/pmix"},
          {"PMIX_DATADIR", root + "/share"},
          {"PMIX_PKGDATADIR", root + "/share/pmix"},
          {"PMIX_SYSCONFDIR", root + "/etc/openmpi"},
          {"HWLOC_PLUGINS_PATH", root + "/lib/hwloc"}};  // empty: the machine's are built for another hwloc
}

void enter_bundle(const std::string& root) {
  for (const auto& [name, value] : bundle_environment(root)) ::setenv(name.c_str(), value.c_str(), 1);
}

std::string find_launcher(const std::string& name, const std::string& root,
                          const std::function<std::string(const std::string&)>& find) {
  if (!root.empty() && name.find('/') == std::string::npos)
    if (const std::string own = find(root + "/bin/" + name); !own.empty()) return own;
  return find(name);
}

bool is_of_bundle(const std::string& program, const std::string& root) {
  return !root.empty() && program.starts_with(root + "/");
}

}  // namespace trainctl
