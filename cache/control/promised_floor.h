#pragma once

// The remote bandwidth that a node takes after a start, before its first lease: the config's floor, but no more than
// the allocator promised the node last, because it counts on no more. So the promise is kept in the state directory,
// and the allocator hears that a lease is applied once its promise is on disk. A node that never had a lease takes the
// config's floor. Not thread-safe.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"

namespace larder::cache {

class PromisedFloor {
public:
    // `saved_bytes_per_second`: what an earlier process saved, if any.
    PromisedFloor(double configured_bytes_per_second, std::optional<double> saved_bytes_per_second)
        : configured_(configured_bytes_per_second), posted_(saved_bytes_per_second) {}

    double before_first_lease() const { return std::min(configured_, posted_.value_or(configured_)); }
    // Takes a lease that is applied, of which `expired_bytes_per_second` is left when it has expired. Returns what is
    // to be saved, in order of these calls; nothing if that is on disk. Call `saved` for each.
    std::optional<double> apply(std::uint64_t lease, double expired_bytes_per_second);
    void saved(const Result<void>& result);
    // Returns the last lease that the allocator may hear of; 0: none.
    std::uint64_t reportable() const { return reportable_; }

private:
    void report_if_saved() {
        if (unsaved_ == 0 && !failed_) reportable_ = applied_;
    }

    double configured_;
    std::optional<double> posted_;  // saved, or being saved
    std::size_t unsaved_ = 0;       // being saved
    bool failed_ = false;           // the last one was not saved
    std::uint64_t applied_ = 0;
    std::uint64_t reportable_ = 0;
};

// Blocks on the disk. Returns nothing if no floor was ever saved.
Result<std::optional<double>> load_promised_floor(const std::string& state_directory);
Result<void> save_promised_floor(const std::string& state_directory, double bytes_per_second);

}  // namespace larder::cache
