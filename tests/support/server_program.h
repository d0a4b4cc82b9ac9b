#pragma once

// One of the real servers of tests/servers (nginx, an S3 server, the fault proxy), as a process of one test. It is
// stopped by closing its standard input, or by a signal if that is not enough. The programs document their arguments
// and output at their top.

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/file.h"

namespace larder::test {

class ServerProgram {
public:
    // Starts the program: its name and arguments, {"nginx.py", "/some/directory"}. Returns once it is ready; otherwise
    // the test fails.
    explicit ServerProgram(const std::vector<std::string>& arguments);
    ~ServerProgram();
    ServerProgram(const ServerProgram&) = delete;
    ServerProgram& operator=(const ServerProgram&) = delete;

    // Returns a value that the program printed when ready, by name; empty if it printed none.
    std::string operator[](const std::string& name) const;
    // Writes one line to the program's standard input and returns its answer: see fault_proxy.py.
    std::string ask(const std::string& line);
    // Ends the program. Returns its exit status, -1 if a signal ended it. The fault proxy's is 3 if something tried to
    // write through it.
    int stop();

private:
    void start(const std::vector<std::string>& arguments);
    std::string read_line();

    std::map<std::string, std::string> values_;
    FileDescriptor input_;
    FileDescriptor output_;
    std::string unreturned_;  // output read but not yet returned by read_line
    pid_t process_ = -1;
};

}  // namespace larder::test
