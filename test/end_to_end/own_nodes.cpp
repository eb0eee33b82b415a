#include "test/end_to_end/own_nodes.h"

#include <fmt/format.h>

#include <filesystem>

#include "test/support/child.h"
#include "test/support/fake_nodes.h"

namespace trainctl::test {
namespace {

/// What gives an agent a /dev/shm of its own, as a machine has; "" if that is impossible here.
std::string own_memory(const std::string& folder) {
  for (const char* how : {"unshare --mount", "unshare --map-root-user --mount"}) {
    const std::string words = fmt::format("{} sh -c 'mount -t tmpfs none /dev/shm'", how);
    if (Child({"sh", "-c", words}, folder).wait(120).status == 0) return how;
  }
  return "";
}

}  // namespace

std::string write_shell(const std::string& folder, const std::string& node, const std::string& variable,
                        const std::string& late) {
  const std::string path = folder + "/shell", own = own_memory(folder);
  skip_program_if(own.empty() ? "no agent gets a /dev/shm of its own: unshare and mount fail" : "");
  write_file(path, fmt::format("#!/bin/sh\n[ \"$1\" = {} ] && export '{}'\n"
                               "[ \"$1\" = \"{}\" ] && until [ -e \"{}/go\" ]; do sleep 0.1; done\nshift\n"
                               "exec {} sh -c \"mount -t tmpfs none /dev/shm && $*\"\n",
                               node, variable, late, folder, own));
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

}  // namespace trainctl::test
