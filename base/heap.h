#pragma once

// Heap settings for a program that allocates and frees megabytes every round.

namespace larder {

// Keeps freed memory in the process. Memory given back to the system would have to be faulted in again page by page.
// Applies to all threads, from now on.
void keep_freed_memory();

}  // namespace larder
