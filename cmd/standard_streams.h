// stdin, stdout and stderr of a process that was started without them, or whose reader is gone.
#pragma once

namespace trainctl::cmd {

/// Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed: the next file that is opened would
/// take its number and get what is written to the console. From then on what cannot be written to stderr is
/// lost, and is no failure: it must not change how a command ends. Call it first, once.
void keep_standard_streams();

/// Whether the descriptor is a pipe or socket whose other end is closed.
bool has_no_reader(int fd);

}  // namespace trainctl::cmd
