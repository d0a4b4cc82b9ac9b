#pragma once

// The heap of a program that takes and frees megabytes at every turn.

namespace larder {

// Freed memory stays with the process instead of going back to the system, from which it would come again page by page.
// For all threads, from now on.
void keep_freed_memory();

}  // namespace larder
