#pragma once

// A finding of a check of `larder doctor`. A check never fails: what is wrong, or could not be looked at, is a finding.

#include <boost/json/object.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace larder::doctor {

enum class Verdict : std::uint8_t {
    good,
    to_do,
    not_checked  // does not apply here, for example because no daemon runs
};
std::string_view name(Verdict verdict);

struct Finding {
    std::string check;    // "io_uring", "disk"
    std::string subject;  // what was looked at: a directory, a dataset, a URL; empty: this machine
    Verdict verdict = Verdict::good;
    std::string found;   // one sentence, without its full stop
    std::string advice;  // what to do; only with Verdict::to_do
    boost::json::object values{};

    boost::json::object json() const;
};

// Returns the finding with Verdict::to_do.
Finding to_do(Finding finding, std::string found, std::string advice);

}  // namespace larder::doctor
