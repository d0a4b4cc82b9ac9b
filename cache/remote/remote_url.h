#pragma once

// Parses the URL of a dataset. The forms are:
//
//   file:///data/pets, /data/pets        a directory
//   s3://bucket/prefix                   all objects whose keys begin with prefix/
//   gs://bucket/prefix                   the same in Google Cloud Storage
//   az://container/prefix                the same in Azure Blob Storage; the account comes from the credentials
//   https://host/pets/{000..146}.tar     the objects with these names; {a,b} and several braces are allowed
//   https://host/pets/list.txt           the objects named in the lines of the list, relative to the list
//   https://host/pets                    the objects that an index.json there describes (MDS, LitData)
//
// A URL of any form that ends in .tar selects that one shard.

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/remote/remote_options.h"

namespace larder::cache {

enum class RemoteScheme : std::uint8_t { file, http, s3, gcs, azure };

struct RemoteUrl {
    RemoteScheme scheme = RemoteScheme::file;
    std::string base;  // http: "https://host:port"; of a store: the bucket or container
    std::string
        root;  // file: the absolute path; http: the path, decoded, "" or "/pets"; of a store: the prefix, "" or "a/b"
    std::string list;                // http: the list's name below the root; empty: none
    std::vector<std::string> names;  // http: names from the braces, or the one .tar
    std::string only_shard;          // name of the one .tar below the root; empty: all objects

    // The URL of the root, without list, braces and .tar. Manifests store it, and a Remote is made from it.
    std::string text() const;
};

Result<RemoteUrl> parse_remote_url(std::string_view url);
// Fails if an option is not usable with this kind of URL or is invalid.
Result<void> check_remote_options(const RemoteOptions& options, std::string_view url);
// Checks the endpoint of a store: "https://host:port", optionally with a path. The error does not quote the endpoint.
Result<void> check_endpoint(std::string_view endpoint);
// Returns the normal form of a URL: without trailing slashes. A path becomes a file:// URL without double slashes.
Result<std::string> normalise_url(std::string_view url);

// Expands "a{0..2}.tar" to a0.tar, a1.tar, a2.tar. At most a million names.
Result<std::vector<std::string>> expand_braces(std::string_view pattern);

}  // namespace larder::cache
