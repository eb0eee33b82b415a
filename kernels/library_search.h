// Finds and loads the shared libraries that jobs on GPUs need and the build does not: cuBLASLt, NCCL. They
// come with a CUDA toolkit, a Linux distribution or a Python package.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::kernels {

/// Returns the value of an environment variable; "" if it is not set.
using EnvironmentLookup = std::function<std::string(const std::string& name)>;
EnvironmentLookup process_environment();

/// The paths at which a library may be, in the order of preference: TRAINCTL_CUDA_LIBRARIES (folders
/// separated by colons), the dynamic linker (names without a slash: LD_LIBRARY_PATH, ld.so.cache), CUDA_HOME,
/// CUDA_PATH, /usr/local/cuda, and the site-packages of VIRTUAL_ENV, CONDA_PREFIX and of the python3 on PATH.
/// Lists folders, opens no file.
///   files      file names of the library in the order of preference ("libnccl.so.2")
///   packages   its folders in a Python site-packages ("nvidia/nccl/lib")
std::vector<std::string> library_candidates(std::span<const std::string_view> files, std::span<const std::string_view> packages,
                                            const EnvironmentLookup& environment);

/// A library that stays loaded until the process ends, or why it could not be loaded.
struct LoadedLibrary {
  void* handle = nullptr;          ///< from dlopen; null if it was not loaded
  std::string path;                ///< resolved path of the loaded library
  std::string problem;             ///< what was tried and what to do, one sentence; "" if it was loaded
  explicit operator bool() const { return handle != nullptr; }
  /// The address of a function; null if the library does not have it.
  void* find(const char* name) const;
};
/// Loads the first candidate that can be loaded. `what`: the name of the library in `problem`, "cuBLASLt".
LoadedLibrary load_library(const char* what, std::span<const std::string_view> files, std::span<const std::string_view> packages,
                           const EnvironmentLookup& environment = process_environment());

/// Loads cuBLASLt of CUDA 13 or 12. Every product on a GPU needs it.
LoadedLibrary load_cublaslt();

}  // namespace trainctl::kernels
