#pragma once

// A few helpers for LMDB, in our types. For the .cc files of the classes that own an environment.

#include <lmdb.h>

#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder {

inline MDB_val lmdb_value(std::span<const unsigned char> bytes) {
    return {bytes.size(), const_cast<unsigned char*>(bytes.data())};
}

inline std::span<const unsigned char> lmdb_bytes(const MDB_val& value) {
    return {static_cast<const unsigned char*>(value.mv_data), value.mv_size};
}

// True if the environment itself is inconsistent, as opposed to a full disk, a full map or a refused file.
inline bool lmdb_damaged(int code) {
    switch (code) {
        case MDB_CORRUPTED:
        case MDB_INVALID:
        case MDB_PAGE_NOTFOUND:
        case MDB_PANIC:
        case MDB_VERSION_MISMATCH:
        case MDB_CURSOR_FULL:
        case MDB_PAGE_FULL:
        case MDB_INCOMPATIBLE:
        case MDB_BAD_DBI: return true;
        default: return false;
    }
}

inline Error lmdb_error(int code, std::string_view what) {
    if (code > 0) return errno_error(code, what);
    ErrorCode kind = lmdb_damaged(code) ? ErrorCode::corrupt : ErrorCode::internal;
    if (code == MDB_MAP_FULL) kind = ErrorCode::no_space;
    return Error{kind, std::string(what) + ": " + mdb_strerror(code), 0};
}

}  // namespace larder
