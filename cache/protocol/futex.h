#pragma once

// Sleeping on a word of memory that two processes share, and waking the sleeper. A wake never blocks, whatever the
// other process does: unlike a descriptor, a word has no flags that its other user could change.

#include <atomic>
#include <cstdint>

namespace larder::protocol {

// Sleeps while `word` is `value`, for at most `timeout_ns`. May also return on a signal or spuriously.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, std::int64_t timeout_ns);
// Wakes one sleeper.
void futex_wake(std::atomic<std::uint32_t>& word);

}  // namespace larder::protocol
