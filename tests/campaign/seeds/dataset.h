#pragma once

// A simulated dataset at the remote. The bytes of an object follow from its number and its version, so that whoever
// gets a block can tell whether it has the right bytes. An object is one block and one sample.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cache/protocol/manifest.h"
#include "tests/campaign/seeds/event_queue.h"

namespace larder::campaign {

// The bytes of a block follow from its seed alone.
void fill_content(std::span<std::byte> into, std::uint64_t seed);
bool has_content(std::span<const std::byte> bytes, std::uint64_t seed);

struct SimulatedObject {
    std::string path;
    std::uint32_t bytes = 0;
    std::int64_t mtime_ns = 0;
    std::uint64_t seed = 0;
};

// All objects at one time, by number, which is the order of their paths.
using Edition = std::vector<SimulatedObject>;

class SimulatedDataset {
public:
    SimulatedDataset(std::string name, std::uint32_t objects, std::uint32_t bytes_max, bool checksums,
                     WorldRandom& random);

    // Replaces some objects.
    void change(WorldRandom& random);

    const std::string& name() const { return name_; }
    bool checksums() const { return checksums_; }
    // The largest size of any object of any edition.
    std::uint32_t bytes_max() const { return bytes_max_; }
    // Editions are numbered from 0; the last one is at the remote.
    const std::vector<std::shared_ptr<const Edition>>& editions() const { return editions_; }
    const SimulatedObject* find(std::string_view path) const;

    // The objects that a node has read since it last asked.
    void note_read(int node, std::uint32_t object) { reads_[node].insert(object); }
    const std::set<std::uint32_t>& read_lately(int node) { return reads_[node]; }
    void forget_reads(int node) { reads_[node].clear(); }

    // Writes a manifest of an edition for a node. `previous`: the node's manifest before; may be null.
    std::shared_ptr<const protocol::Manifest> index(std::size_t edition, std::uint64_t dataset_id,
                                                    std::uint64_t version, const protocol::Manifest* previous,
                                                    const std::string& path) const;

private:
    SimulatedObject make_object(std::uint32_t number, WorldRandom& random);

    std::string name_;
    std::uint32_t bytes_max_;
    bool checksums_;
    std::int64_t last_mtime_ns_ = 1'000'000;
    std::map<int, std::set<std::uint32_t>> reads_;
    std::vector<std::shared_ptr<const Edition>> editions_;
};

}  // namespace larder::campaign
