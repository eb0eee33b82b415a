#include "kernels/library_search.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace trainctl::kernels {

namespace {

namespace fs = std::filesystem;

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// PREFIX/lib/python3.*/site-packages and Debian's PREFIX/lib/python3*/dist-packages, in order of their names.
void add_site_packages(const std::string& prefix, std::vector<std::string>& folders) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (fs::directory_iterator at(prefix + "/lib", ignored), end; !ignored && at != end; at.increment(ignored)) {
    if (at->path().filename().string().rfind("python3", 0) != 0) continue;
    for (const char* name : {"site-packages", "dist-packages"}) {
      const fs::path folder = at->path() / name;
      if (std::error_code none; fs::is_directory(folder, none)) found.push_back(folder.string());
    }
  }
  std::sort(found.begin(), found.end());
  folders.insert(folders.end(), found.begin(), found.end());
}

/// The prefix of the python3 that a shell would start: /usr for /usr/bin/python3, links followed.
std::string python_prefix(const EnvironmentLookup& environment) {
  for (const std::string& folder : split(environment("PATH"))) {
    std::error_code none;
    const fs::path real = fs::canonical(folder + "/python3", none);
    if (!none) return real.parent_path().parent_path().string();
  }
  return "";
}

}  // namespace

EnvironmentLookup process_environment() {
  return [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value ? value : "");
  };
}

std::vector<std::string> library_candidates(std::span<const std::string_view> files, std::span<const std::string_view> packages,
                                            const EnvironmentLookup& environment) {
  std::vector<std::string> folders = split(environment("TRAINCTL_CUDA_LIBRARIES"));
  folders.push_back("");   // the dynamic linker
  for (const char* toolkit : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string home = environment(toolkit); !home.empty()) folders.insert(folders.end(), {home + "/lib64", home + "/lib"});
  }
  folders.push_back("/usr/local/cuda/lib64");
  std::vector<std::string> sites;
  for (const std::string& prefix : {environment("VIRTUAL_ENV"), environment("CONDA_PREFIX"), python_prefix(environment)}) {
    if (!prefix.empty()) add_site_packages(prefix, sites);
  }
  for (const std::string& site : sites) {
    for (const std::string_view package : packages) folders.push_back(site + "/" + std::string(package));
  }
  std::vector<std::string> candidates;
  for (const std::string& folder : folders) {
    for (const std::string_view file : files) {
      std::string path = folder.empty() ? std::string(file) : folder + "/" + std::string(file);
      if (std::find(candidates.begin(), candidates.end(), path) == candidates.end()) candidates.push_back(std::move(path));
    }
  }
  return candidates;
}

namespace {

/// The file that the dynamic linker has opened for `name`.
std::string path_of(void* handle, const std::string& name) {
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !map || !map->l_name || !*map->l_name) return name;
  return map->l_name;
}

}  // namespace

void* LoadedLibrary::find(const char* name) const { return handle ? dlsym(handle, name) : nullptr; }

LoadedLibrary load_library(const char* what, std::span<const std::string_view> files, std::span<const std::string_view> packages,
                           const EnvironmentLookup& environment) {
  const std::vector<std::string> candidates = library_candidates(files, packages, environment);
  std::string broken;   // reported first: a library that exists and cannot be opened
  for (const std::string& path : candidates) {
    std::error_code none;
    const bool named = path.find('/') != std::string::npos;
    if (named && !fs::exists(path, none)) continue;
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return {.handle = handle, .path = path_of(handle, path), .problem = ""};
    const char* reason = dlerror();
    if (named) broken += fmt::format("; {} is there, but: {}", path, reason ? reason : "unknown");
  }
  return {.handle = nullptr,
          .path = "",
          .problem = fmt::format("{} was not found: tried {}{}; install it (cuBLASLt: a CUDA toolkit; NCCL: libnccl2; "
                                 "both: Python's nvidia-* packages), or name the folder of {} in TRAINCTL_CUDA_LIBRARIES",
                                 what, fmt::join(candidates, ", "), broken, files.front())};
}

LoadedLibrary load_cublaslt() {
  static constexpr std::string_view kFiles[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  static constexpr std::string_view kPackages[] = {"nvidia/cu13/lib", "nvidia/cublas/lib"};
  return load_library("cuBLASLt, which multiplies matrices on GPUs,", kFiles, kPackages);
}

}  // namespace trainctl::kernels
