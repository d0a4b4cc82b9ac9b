#pragma once

// The format of an LMDB 0.9 data file (data version 1, 64 bits, little-endian), as far as Larder uses it: no
// duplicates, no sub-pages, no fixed map. LMDB trusts this file: a truncated file kills its reader, a flipped bit its
// writer. So every page is checked, by plain reads, before LMDB may open the file.

#include <cstddef>
#include <cstdint>

namespace larder::lmdb_format {

inline constexpr std::uint32_t kMagic = 0xbeefc0de;
inline constexpr std::uint32_t kDataVersion = 1;
inline constexpr std::uint64_t kNoPage = ~std::uint64_t{0};

enum PageFlags : std::uint16_t { branch_page = 0x01, leaf_page = 0x02, overflow_page = 0x04, meta_page = 0x08 };
enum NodeFlags : std::uint16_t { big_data = 0x01, sub_data = 0x02 };
enum DatabaseFlags : std::uint16_t { integer_key = 0x08 };

struct PageHeader {
    std::uint64_t page;
    std::uint16_t pad;
    std::uint16_t flags;
    std::uint16_t lower;  // end of the array of node offsets; with `upper`, the page count of an overflow page
    std::uint16_t upper;  // start of the nodes
};
static_assert(sizeof(PageHeader) == 16);

struct NodeHeader {
    std::uint16_t low;  // leaf: size of the data; branch: page, with `flags` as its highest bits
    std::uint16_t high;
    std::uint16_t flags;
    std::uint16_t key_bytes;
};
static_assert(sizeof(NodeHeader) == 8);

struct Database {
    std::uint32_t pad;  // in the free-page database: the size of a page
    std::uint16_t flags;
    std::uint16_t depth;
    std::uint64_t branch_pages;
    std::uint64_t leaf_pages;
    std::uint64_t overflow_pages;
    std::uint64_t entries;
    std::uint64_t root;
};
static_assert(sizeof(Database) == 48);

struct Meta {
    PageHeader header;
    std::uint32_t magic;
    std::uint32_t version;
    std::uint64_t address;
    std::uint64_t map_bytes;
    Database free_pages;
    Database main;
    std::uint64_t last_page;
    std::uint64_t transaction;
};
static_assert(sizeof(Meta) == 152);

}  // namespace larder::lmdb_format
