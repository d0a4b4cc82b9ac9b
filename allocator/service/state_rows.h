#pragma once

// The rows of the allocator's state (base/server/row_store.h): a key and JSON. Since version 3, the rows that survive a
// power cut (is_durable) are in an environment of their own.
//
//   version              {"version": 6}
//   run                  {"boot", "lease_ns", "no_lease_before_ns"}: of the process that wrote last. Among the durable
//                        rows it has {"lease_ns", "rates_recorded", "term"}: how long leases last, if rates/ has them
//                        all, and which leader this is
//   remote               {"bytes_per_second", "configured_bytes_per_second"}
//   plan                 {"number"}
//   job/NAME             what was registered             pin/DATASET      {"bytes"}
//   node/NAME            its last report                 quotas/NODE      {"quotas": [...]}: of the plan in force
//   ideal/JOB            {"bits", "user"}: the measured f*, a double's bits, and the job's user if known
//   epochs/JOB           {"first", "last"}: the epochs it was seen in since it was registered; since version 2
//   leases/NODE          {"leases": [...]}: all that may be in force there, ends by CLOCK_MONOTONIC
//   floor/NODE           {"bytes_per_second"}: the most it may take without a lease, durable; since version 5
//   rates/NODE           {"bytes_per_second", "rates": [[job, bytes_per_second], ...]}: the most it may take under its
//                        leases, and its jobs' rates (none if they take more than 10 KiB), durable; since version 6

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/cluster_record.h"
#include "base/error.h"
#include "base/server/row_store.h"

namespace larder::allocator {

inline constexpr std::uint64_t kStateVersion = 6;
inline constexpr std::int64_t kLeaseMax_ns = 3'600'000'000'000;  // as in the config

struct StateRun {
    std::string boot;
    std::int64_t lease_ns = 0;
    std::optional<std::int64_t> no_lease_before_ns;
    bool rates_recorded = false;  // no lease is in force that the rates on record do not cover
    std::uint64_t term = 0;       // counts the leaders of several allocators
};
// A leader's leases have numbers of its own: no other leader's leases have them.
inline constexpr std::uint64_t kLeaseNumbersOfTerm = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kTermMax = std::uint64_t{1} << 22;

// True for what a user or an operator set, and what a node was promised: remote, job/, pin/, floor/ and rates/.
bool is_durable(std::string_view key);

std::vector<Row> rows_of(const ClusterRecord& change);
// Returns the rows of the change for which is_durable().
std::vector<Row> durable_rows_of(const ClusterRecord& change);
Row row_of(const StateRun& run);

struct StoredState {
    StateRun run;
    ClusterRecord record;
};
// Reads a decoded row into `into`. Error: corrupt if the row is not one of those above.
Result<void> read_row(StoredState& into, std::string_view key, std::string_view text);

// For a record whose leases may not be the last ones, or are timed by another clock: makes these leases expire at
// `now_ns`, and adds leases for floors that are missing. Returns the change.
ClusterRecord expire_leases(ClusterRecord& record, std::int64_t now_ns);
// Adds leases until `until_ns` that stand for the rates on record.
void carry_over_rates(ClusterRecord& record, std::int64_t until_ns);

}  // namespace larder::allocator
