#include "base/server/lmdb_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/server/lmdb_pages.h"

namespace larder {
namespace {

using namespace lmdb_format;
using Bytes = LmdbBytes;

constexpr unsigned kDepthMax = 32;

// Describes the damage. Thrown to the start of the check, because the walk is deep.
struct Damage {
    std::string what;
};

template <typename T>
T read_at(Bytes bytes, std::size_t offset) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

class Checker {
public:
    Checker(int fd, std::uint64_t file_bytes, std::span<const LmdbDatabase> databases)
        : fd_(fd), file_bytes_(file_bytes), databases_(databases) {}

    void run() {
        const Meta meta = pick_meta();
        page_bytes_ = meta.free_pages.pad;
        last_page_ = meta.last_page;
        require(last_page_ >= 1 && last_page_ < file_bytes_ / page_bytes_, "it is truncated");
        seen_.assign(last_page_ + 1, false);
        seen_[0] = seen_[1] = true;

        std::vector<std::pair<std::string, Database>> databases;
        walk(meta.main, 0, [&](Bytes key, Bytes value, std::uint16_t flags) {
            require(flags == sub_data && value.size() == sizeof(Database), "a database's description is damaged");
            databases.emplace_back(std::string(key.begin(), key.end()), read_at<Database>(value, 0));
        });
        // An environment has no databases before its first commit.
        require(databases.empty() || databases.size() >= databases_.size(), "databases are missing");
        for (const auto& [name, database] : databases) {
            const auto known = std::ranges::find(databases_, name, &LmdbDatabase::name);
            require(known != databases_.end(), "it has a foreign database");
            walk(database, 0, [&](Bytes key, Bytes value, std::uint16_t flags) {
                require((flags & ~big_data) == 0 && known->row_is_good(key, value), "a row does not match its CRC");
            });
        }
        // The free list is walked last: a page that is both used and free would be overwritten.
        walk(meta.free_pages, integer_key, [&](Bytes key, Bytes value, std::uint16_t flags) {
            require((flags & ~big_data) == 0 && read_at<std::uint64_t>(key, 0) <= meta.transaction,
                    "its list of free pages is damaged");
            check_free_list(value);
        });
    }

private:
    using Visit = std::function<void(Bytes key, Bytes value, std::uint16_t flags)>;

    struct Tree {
        bool integer_keys;
        const Visit& visit;
        Database found;                        // counted while walking
        std::vector<unsigned char> last_key;   // in the leaves walked so far
        std::vector<unsigned char> least_key;  // from the branches above: no key here is less
    };

    static void require(bool holds, std::string_view what) {
        if (!holds) throw Damage{std::string(what)};
    }

    void read(std::uint64_t offset, std::span<unsigned char> into) const {
        for (std::size_t done = 0; done < into.size();) {
            const ssize_t got = ::pread(fd_, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
            if (got < 0 && errno == EINTR) continue;
            require(got > 0, "it is truncated or cannot be read");
            done += static_cast<std::size_t>(got);
        }
    }

    Meta read_meta(unsigned number, std::uint64_t page_bytes) const {
        std::array<unsigned char, sizeof(Meta)> bytes;
        read(number * page_bytes, bytes);
        const Meta meta = read_at<Meta>(bytes, 0);
        require(meta.header.page == number && meta.header.flags == meta_page && meta.magic == kMagic &&
                    meta.version == kDataVersion && meta.transaction % 2 == (meta.transaction == 0 ? 0 : number),
                "its first pages are damaged");
        require(meta.free_pages.pad == (number == 0 ? meta.free_pages.pad : page_bytes) &&
                    std::has_single_bit(meta.free_pages.pad) && meta.free_pages.pad >= 512 &&
                    meta.free_pages.pad <= 65536,
                "its first pages are damaged");
        return meta;
    }

    Meta pick_meta() const {
        const Meta first = read_meta(0, 0);
        const Meta second = read_meta(1, first.free_pages.pad);
        const Meta& older = first.transaction < second.transaction ? first : second;
        const Meta& newer = first.transaction < second.transaction ? second : first;
        require(newer.transaction - older.transaction <= 1, "its first pages are damaged");
        return newer;
    }

    std::vector<unsigned char> read_page(std::uint64_t page, std::uint64_t count = 1) {
        require(page <= last_page_ && count <= last_page_ + 1 - page, "a page lies beyond the end");
        for (std::uint64_t i = page; i < page + count; i++) {
            require(!seen_[i], "a page is used twice");
            seen_[i] = true;
        }
        std::vector<unsigned char> bytes(page_bytes_ * count);
        read(page * page_bytes_, bytes);
        require(read_at<PageHeader>(bytes, 0).page == page, "a page is not the one it should be");
        return bytes;
    }

    void walk(const Database& database, std::uint16_t flags, const Visit& visit) {
        require(database.flags == flags, "a database's description is damaged");
        Tree tree{(flags & integer_key) != 0, visit, {}, {}, {}};
        if (database.root != kNoPage) {
            require(database.depth >= 1 && database.depth <= kDepthMax, "a database's description is damaged");
            walk_page(tree, database.root, database.depth);
        }
        require(database.root != kNoPage || database.depth == 0, "a database's description is damaged");
        require(database.entries == tree.found.entries && database.branch_pages == tree.found.branch_pages &&
                    database.leaf_pages == tree.found.leaf_pages &&
                    database.overflow_pages == tree.found.overflow_pages,
                "a database does not hold what it counts");
    }

    bool less(const Tree& tree, Bytes left, Bytes right) const {
        if (tree.integer_keys) return read_at<std::uint64_t>(left, 0) < read_at<std::uint64_t>(right, 0);
        return std::ranges::lexicographical_compare(left, right);
    }

    void walk_page(Tree& tree, std::uint64_t page, unsigned levels) {
        const std::vector<unsigned char> bytes = read_page(page);
        const auto header = read_at<PageHeader>(bytes, 0);
        const bool leaf = levels == 1;
        require(header.flags == (leaf ? leaf_page : branch_page), "a page is of the wrong kind");
        require(header.lower >= sizeof header && header.lower % 2 == 0 && header.lower <= header.upper &&
                    header.upper <= page_bytes_,
                "a page's bounds are damaged");
        const std::size_t nodes = (header.lower - sizeof header) / 2;
        require(nodes >= (leaf ? 1 : 2), "a page is empty");
        (leaf ? tree.found.leaf_pages : tree.found.branch_pages)++;

        std::size_t bytes_of_nodes = 0;
        for (std::size_t i = 0; i < nodes; i++) {
            const std::size_t at = read_at<std::uint16_t>(bytes, sizeof header + 2 * i);
            require(at >= header.upper && at % 2 == 0 && at + sizeof(NodeHeader) <= page_bytes_, "a row lies outside");
            const auto node = read_at<NodeHeader>(bytes, at);
            const std::size_t data_bytes = node.low | std::size_t{node.high} << 16;
            const std::size_t stored = !leaf ? 0 : (node.flags & big_data) != 0 ? 8 : data_bytes;
            const std::size_t node_bytes = sizeof node + node.key_bytes + stored;
            require(node_bytes <= page_bytes_ - at, "a row lies outside");
            bytes_of_nodes += (node_bytes + 1) / 2 * 2;
            const Bytes key = Bytes(bytes).subspan(at + sizeof node, node.key_bytes);
            require(!tree.integer_keys || key.size() == 8 || (!leaf && i == 0), "a key is damaged");
            if (leaf) {
                visit_leaf(tree, key, node, Bytes(bytes).subspan(at + sizeof node + key.size(), stored));
                continue;
            }
            // Keys before are less than the node's key; keys under it are not. The first node has no key.
            require(i == 0 || tree.last_key.empty() || less(tree, tree.last_key, key), "keys are out of order");
            const std::uint64_t child = data_bytes | std::uint64_t{node.flags} << 32;
            if (i > 0) tree.least_key.assign(key.begin(), key.end());
            walk_page(tree, child, levels - 1);
        }
        // The nodes fill their part of the page exactly once.
        require(bytes_of_nodes == page_bytes_ - header.upper, "a page's bounds are damaged");
        require(distinct_nodes(bytes, nodes), "rows overlap");
    }

    static bool distinct_nodes(Bytes bytes, std::size_t nodes) {
        std::vector<std::uint16_t> offsets(nodes);
        std::memcpy(offsets.data(), bytes.data() + sizeof(PageHeader), nodes * 2);
        std::ranges::sort(offsets);
        return std::ranges::adjacent_find(offsets) == offsets.end();
    }

    void visit_leaf(Tree& tree, Bytes key, const NodeHeader& node, Bytes stored) {
        require((node.flags & ~(big_data | sub_data)) == 0 && !key.empty(), "a row is damaged");
        require(tree.last_key.empty() || less(tree, tree.last_key, key), "keys are out of order");
        require(tree.least_key.empty() || !less(tree, key, tree.least_key), "keys are out of order");
        tree.last_key.assign(key.begin(), key.end());
        tree.found.entries++;
        if ((node.flags & big_data) == 0) return tree.visit(key, stored, node.flags);

        const std::size_t data_bytes = node.low | std::size_t{node.high} << 16;
        const std::uint64_t count = (sizeof(PageHeader) + data_bytes + page_bytes_ - 1) / page_bytes_;
        const std::vector<unsigned char> pages = read_page(read_at<std::uint64_t>(stored, 0), count);
        const auto header = read_at<PageHeader>(pages, 0);
        require(header.flags == overflow_page && (header.lower | std::uint64_t{header.upper} << 16) == count,
                "a large row is damaged");
        tree.found.overflow_pages += count;
        tree.visit(key, Bytes(pages).subspan(sizeof header, data_bytes), node.flags);
    }

    // Checks a free list: a count, then that many pages in descending order.
    void check_free_list(Bytes list) {
        require(list.size() >= 8, "its list of free pages is damaged");
        const auto count = read_at<std::uint64_t>(list, 0);
        require(count <= list.size() / 8 - 1, "its list of free pages is damaged");
        std::uint64_t previous = last_page_ + 1;
        for (std::size_t i = 1; i <= count; i++) {
            const auto page = read_at<std::uint64_t>(list, 8 * i);
            require(page < previous && !seen_[page], "its list of free pages is damaged");
            seen_[page] = true;
            previous = page;
        }
    }

    int fd_;
    std::uint64_t file_bytes_;
    std::span<const LmdbDatabase> databases_;
    std::uint64_t page_bytes_ = 0;
    std::uint64_t last_page_ = 0;
    std::vector<bool> seen_;
};

}  // namespace

std::optional<std::string> find_lmdb_damage(const std::string& directory, std::span<const LmdbDatabase> databases) {
    auto file = open_file(directory + "/data.mdb", O_RDONLY);
    struct stat status{};
    // LMDB will meet the same failure and report it.
    if (!file || ::fstat(file->get(), &status) != 0) return std::nullopt;
    try {
        Checker(file->get(), static_cast<std::uint64_t>(status.st_size), databases).run();
    } catch (const Damage& damage) {
        return damage.what;
    }
    return std::nullopt;
}

bool cover_lmdb_pages(MDB_env* environment, std::uint64_t slack_bytes) {
    MDB_envinfo info;
    MDB_stat stat;
    mdb_filehandle_t fd = -1;
    struct stat file{};
    if (mdb_env_info(environment, &info) != 0 || mdb_env_stat(environment, &stat) != 0) return true;
    if (mdb_env_get_fd(environment, &fd) != 0 || ::fstat(fd, &file) != 0) return true;
    const auto needed = static_cast<std::uint64_t>(info.me_last_pgno + 1) * stat.ms_psize + slack_bytes / 2;
    if (static_cast<std::uint64_t>(file.st_size) >= needed) return true;
    return ::ftruncate(fd, static_cast<off_t>(needed + slack_bytes / 2)) == 0;
}

}  // namespace larder
