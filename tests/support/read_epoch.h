#pragma once

// Reads an epoch of a dataset of plain files, and compares each sample with its file.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>

#include "loader/larder.h"

namespace larder::test {

// Each sample must come once, with its file's bytes. `files`: contents by path below the dataset's root.
inline void read_epoch(Loader& loader, const std::map<std::string, std::string>& files) {
    std::map<std::string, int> seen;
    for (;;) {
        const auto batch = loader.next();
        ASSERT_TRUE(batch.has_value()) << batch.error().message;
        if (!*batch) break;
        for (const Sample& sample : (*batch)->samples()) {
            const std::string key(sample.key);
            const auto* bytes = reinterpret_cast<const char*>(sample.bytes().data());
            ASSERT_TRUE(files.at(key) == std::string_view(bytes, sample.bytes().size())) << key;
            EXPECT_EQ(++seen[key], 1) << key;
        }
    }
    EXPECT_EQ(seen.size(), files.size());
}

}  // namespace larder::test
