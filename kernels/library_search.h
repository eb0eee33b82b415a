// Finds a shared library that a job needs and a build does not: cuBLASLt, NCCL. They come with a CUDA toolkit, with a distribution or
// with a Python package, and are loaded when a job asks for a GPU.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::kernels {

/// The value of an environment variable, "" when it is not set.
using EnvironmentLookup = std::function<std::string(const std::string& name)>;
EnvironmentLookup process_environment();

/// Where a library may be, most wanted first. `files` are its file names, most wanted first ("libnccl.so.2"); `packages` its folders in
/// a Python site-packages ("nvidia/nccl/lib"). Entries without a slash are left to the dynamic linker (LD_LIBRARY_PATH, ld.so.cache).
/// TRAINCTL_CUDA_LIBRARIES, a list of folders separated by colons, comes first; then the linker, CUDA_HOME, CUDA_PATH,
/// /usr/local/cuda, and the site-packages of VIRTUAL_ENV, CONDA_PREFIX and of the python3 found in PATH. Looks at folders, opens nothing.
std::vector<std::string> library_candidates(std::span<const std::string_view> files, std::span<const std::string_view> packages,
                                            const EnvironmentLookup& environment);

/// A library that stays loaded until the process ends, or the sentence that says why there is none.
struct LoadedLibrary {
  void* handle = nullptr;          ///< of dlopen
  std::string path;                ///< the file that was opened
  std::string problem;             ///< empty when loaded; otherwise what was tried and what to do
  explicit operator bool() const { return handle != nullptr; }
  /// The address of a function; null when the library has none of that name.
  void* find(const char* name) const;
};
/// Opens the first candidate that can be opened. `what` names the library in `problem`: "cuBLASLt".
LoadedLibrary load_library(const char* what, std::span<const std::string_view> files, std::span<const std::string_view> packages,
                           const EnvironmentLookup& environment = process_environment());

/// cuBLASLt of CUDA 13 or 12, without which nothing is multiplied on a GPU.
LoadedLibrary load_cublaslt();

}  // namespace trainctl::kernels
