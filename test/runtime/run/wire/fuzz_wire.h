// What must hold of any bytes that arrive over a connection of a run: between a rank and its agent, between an
// agent and the supervisor, and at the server of a node's memory. Driven by fuzz_wire_test.cpp (seeded) and by
// libFuzzer (scripts/fuzz.sh).
#pragma once
#include <string>

namespace trainctl::test {

// Each throws std::logic_error where the property does not hold; anything else that it throws or does is a
// defect too.

/// A line of the control channel, up or down: refused with an Error, or what is written for it is read as the
/// same.
void fuzz_control(const std::string& line);
/// A stream of messages of a node and their payloads, after a byte that says how the stream is cut: however
/// it is cut, the messages are the same, or it is refused with an Error.
void fuzz_node(const std::string& bytes);
/// Requests to a PieceServer by a peer that has its token: it answers each or ends the connection, changes
/// nothing but what was opened for writing, and goes on serving others.
void fuzz_requests(const std::string& bytes);

}  // namespace trainctl::test
