#pragma once

// A short measure of a remote, through the Remote that larderd's data plane reads with: the time of one small read, and
// the rate with one request and with several at once. Reads are spread at random over the objects.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/remote/remote_options.h"
#include "tools/doctor/finding.h"

namespace larder::doctor {

struct RemoteObject {
    std::string path;  // relative to the place
    std::uint64_t size_bytes = 0;
    std::int64_t tag = 0;
};

struct RemoteTarget {
    std::string subject;  // the dataset's name, or the URL
    std::string url;      // the place to which the objects' paths are relative
    cache::RemoteOptions options;
    std::vector<RemoteObject> objects;  // empty: they are listed
    std::string ca_file;                // empty: the system's authorities
};

struct RemoteMeasure {
    Finding finding;
    double bytes_per_second = 0;  // the best rate; 0: not measured, or a directory's
};

// Takes about five times `seconds`, and the time of listing.
RemoteMeasure check_remote(const RemoteTarget& target, double seconds);

// The objects of a dataset of this node, at most a thousand. Opens the dataset as a training job of this user does: a
// refusal is what that job would get.
Result<RemoteTarget> remote_of_dataset(const std::string& name, const std::string& socket);

}  // namespace larder::doctor
