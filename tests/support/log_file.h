#pragma once

// Captures this process's log, line by line, while the object lives. For test programs that link larder_base_server.

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/server/logging.h"
#include "tests/support/temp_directory.h"

namespace larder::test {

class LogFile {
public:
    explicit LogFile(LogLevel level) { EXPECT_TRUE(start_logging({level, path_})); }
    ~LogFile() { stop_logging(); }
    LogFile(const LogFile&) = delete;
    LogFile& operator=(const LogFile&) = delete;

    const std::string& path() const { return path_; }
    std::vector<std::string> lines() const { return lines_with(""); }
    std::vector<std::string> lines_with(const std::string& text) const {
        std::ifstream file(path_);
        std::vector<std::string> lines;
        for (std::string line; std::getline(file, line);) {
            if (line.find(text) != std::string::npos) lines.push_back(line);
        }
        return lines;
    }

private:
    TempDirectory directory_;
    std::string path_ = directory_ / "larder.log";
};

}  // namespace larder::test
