#include <array>

#include "base/server/lmdb_check.h"
#include "cache/store/index_databases.h"
#include "cache/store/index_environment.h"
#include "cache/store/index_rows.h"

namespace larder::cache {
namespace {

template <typename Row, std::size_t key_bytes>
bool is_good(LmdbBytes key, LmdbBytes value) {
    return key.size() == key_bytes && read_row<Row>(key, value).has_value();
}

bool is_good_block(LmdbBytes key, LmdbBytes value) {
    return key.size() == IndexKey::kBlockBytes && read_block_row(key, value).has_value();
}

}  // namespace

std::optional<std::string> find_index_damage(const std::string& directory) {
    const std::array databases{LmdbDatabase{kBlocksDatabase, is_good_block},
                               LmdbDatabase{kSegmentsDatabase, is_good<SegmentRow, IndexKey::kSegmentBytes>},
                               LmdbDatabase{kStateDatabase, is_good<StateRow, sizeof kNextSegmentKey>}};
    return find_lmdb_damage(directory, databases);
}

}  // namespace larder::cache
