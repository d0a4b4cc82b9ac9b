#pragma once

// The URLs a dataset may have, taken apart:
//
//   file:///data/pets, /data/pets        a directory
//   s3://bucket/prefix                   all objects whose keys begin with prefix/
//   https://host/pets/{000..146}.tar     the objects so named; {a,b} too, and several of them
//   https://host/pets/list.txt           the objects its lines name, relative to its own place
//   https://host/pets                    what an index.json there describes (MDS, LitData)
//
// and any of them that ends in .tar: that one shard.

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/remote/remote_options.h"

namespace larder::cache {

enum class RemoteScheme : std::uint8_t { file, http, s3 };

struct RemoteUrl {
    RemoteScheme scheme = RemoteScheme::file;
    std::string base;  // http: "https://host:port"; s3: the bucket
    std::string root;  // file: the absolute path; http: the path, decoded, "" or "/pets"; s3: the prefix, "" or "a/b"
    std::string list;  // http: the list's name below the root; empty: none
    std::vector<std::string> names;  // http: what braces say, or the one .tar
    std::string only;                // the one .tar, below the root

    // Without what selects objects below the root: what a manifest has, and a Remote is made of.
    std::string text() const;
};

Result<RemoteUrl> parse_remote_url(std::string_view url);
// Whether they say anything that a URL of this kind has no use for, or must not say.
Result<void> check_remote_options(const RemoteOptions& options, std::string_view url);
// Of an S3 endpoint: "https://host:port", perhaps with a path. What is wrong is said without repeating it.
Result<void> check_endpoint(std::string_view endpoint);
// In its normal form: no slash at the end, none twice, a path made a file:// URL.
Result<std::string> normalise_url(std::string_view url);

// "a{0..2}.tar" to a0.tar, a1.tar, a2.tar. At most a million.
Result<std::vector<std::string>> expand_braces(std::string_view pattern);

}  // namespace larder::cache
