#pragma once

// Ends a program that runs out of memory, with a message and an exit code in place of a crash. For main() of the
// programs only: a library must leave this choice to its program.

namespace larder {

// From now on, an allocation that fails in any thread, or a std::bad_alloc that nobody catches, prints "PROGRAM: out of
// memory" and ends the program with exit code 1. No destructor runs: what is on the disk is as after SIGKILL, from
// which every program starts again. `program` must live as long as the process. May be called before main(), by a
// constructor function.
void exit_when_out_of_memory(const char* program);

}  // namespace larder
