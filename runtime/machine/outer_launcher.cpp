#include "runtime/machine/outer_launcher.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

extern char** environ;

namespace trainctl {
namespace {

constexpr std::string_view kPrefixes[] = {"SLURM_",
                                          "SRUN_",
                                          "PMI_",
                                          "PMI2_",
                                          "PMIX_",
                                          "PRTE_",
                                          "OMPI_COMM_WORLD_",
                                          "OMPI_MCA_orte_",
                                          "OMPI_MCA_ess",
                                          "OMPI_MCA_pmix",
                                          "OMPI_MCA_ras",
                                          "OMPI_MCA_plm",
                                          "OMPI_ARGV",
                                          "OMPI_COMMAND",
                                          "OMPI_APP_CTX",
                                          "OMPI_NUM_APP",
                                          "OMPI_FIRST_RANK",
                                          "OMPI_UNIVERSE",
                                          "OMPI_FILE_LOCATION"};
/// Where PMIx is installed and how it is set up: of the machine or of a bundle, not of a launcher.
constexpr std::string_view kInstallation[] = {"PMIX_PREFIX",    "PMIX_INSTALL_PREFIX", "PMIX_LIBDIR",
                                              "PMIX_PKGLIBDIR", "PMIX_DATADIR",        "PMIX_PKGDATADIR",
                                              "PMIX_SYSCONFDIR"};

}  // namespace

bool is_of_outer_launcher(std::string_view name) {
  if (name.starts_with("PMIX_MCA_")) return false;
  if (std::find(std::begin(kInstallation), std::end(kInstallation), name) != std::end(kInstallation))
    return false;
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

void forget_outer_launcher() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (is_of_outer_launcher(name)) names.emplace_back(name);
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

}  // namespace trainctl
