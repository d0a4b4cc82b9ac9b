#pragma once

// One of the real servers of tests/servers (nginx, an S3 server, the fault proxy), as a process of one test's: started,
// asked, and stopped by closing its standard input, or by its pid when that is not enough. Its folder's programs say at
// their top what they take and print.

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/file.h"

namespace larder::test {

class ServerProgram {
public:
    // The program's name and its arguments: {"nginx.py", "/some/directory"}. Returns once it is ready; the test fails
    // when it does not get there.
    explicit ServerProgram(const std::vector<std::string>& arguments);
    ~ServerProgram();
    ServerProgram(const ServerProgram&) = delete;
    ServerProgram& operator=(const ServerProgram&) = delete;

    // What it printed when it was ready, by name; empty when it printed no such thing.
    std::string operator[](const std::string& name) const;
    // One line to its standard input, and its answer: see fault_proxy.py.
    std::string ask(const std::string& line);
    // Its exit status, -1 when a signal ended it. The fault proxy's is 3 when something tried to write through it.
    int stop();

private:
    void start(const std::vector<std::string>& arguments);
    std::string read_line();

    std::map<std::string, std::string> values_;
    FileDescriptor input_;
    FileDescriptor output_;
    std::string ahead_;  // read, not yet asked for
    pid_t process_ = -1;
};

}  // namespace larder::test
