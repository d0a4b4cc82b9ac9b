// The servers of tests/servers, started as C++ tests start them.

#include "tests/support/server_program.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/file.h"
#include "tests/support/temp_directory.h"

namespace larder::test {
namespace {

// Sends a request to the server at this port. Returns the answer, head and body, or an empty text if nobody listens.
std::string request(const std::string& port, const std::string& method, const std::string& target) {
    const FileDescriptor connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
    const std::string text = method + " " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(::send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    std::string answer;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::recv(connection.get(), buffer, sizeof buffer, 0)) > 0;) {
        answer.append(buffer, static_cast<std::size_t>(got));
    }
    return answer;
}

TEST(ServerProgram, NginxServesUntilItsProgramEnds) {
    const TempDirectory directory;
    std::ofstream(directory / "a.txt") << "contents";
    std::string port;
    {
        ServerProgram nginx({"nginx.py", directory.path()});
        port = nginx["http"];
        ASSERT_NE(port, "");
        EXPECT_TRUE(request(port, "GET", "/a.txt").ends_with("\r\n\r\ncontents"));
        EXPECT_NE(nginx["authority"], "");
        EXPECT_EQ(nginx["nonsense"], "");
    }
    EXPECT_EQ(request(port, "GET", "/a.txt"), "");
}

TEST(ServerProgram, FaultProxyReportsFaultsAndAttemptedWrites) {
    const TempDirectory directory;
    std::ofstream(directory / "a.txt") << "contents";
    ServerProgram nginx({"nginx.py", directory.path()});
    ServerProgram proxy({"fault_proxy.py", "--upstream", "127.0.0.1:" + nginx["http"], "--probability", "error_500=1"});
    EXPECT_TRUE(request(proxy["port"], "GET", "/a.txt").starts_with("HTTP/1.1 500 "));
    EXPECT_EQ(proxy.ask(R"({"do": "set", "probabilities": {}})"), "{}");
    std::string answer = request(proxy["port"], "GET", "/a.txt");
    for (int i = 0; i < 2 && answer.starts_with("HTTP/1.1 500 "); ++i) answer = request(proxy["port"], "GET", "/a.txt");
    EXPECT_TRUE(answer.ends_with("\r\n\r\ncontents")) << answer;  // after the burst
    EXPECT_TRUE(request(proxy["port"], "DELETE", "/a.txt").starts_with("HTTP/1.1 405 "));
    const std::string counts = proxy.ask(R"({"do": "counts"})");
    EXPECT_NE(counts.find(R"("injected": {"error_500": 3})"), std::string::npos) << counts;
    EXPECT_NE(counts.find(R"("writes_refused": 1)"), std::string::npos) << counts;
    EXPECT_EQ(proxy.stop(), 3);
    EXPECT_EQ(nginx.stop(), 0);
}

TEST(ServerProgram, S3IsFilledAndRefusesUnsignedRequests) {
    const TempDirectory directory;
    std::ofstream(directory / "a.txt") << "contents";
    ServerProgram s3({"s3.py", "--bucket", "shut", "--upload", directory.path()});
    ASSERT_NE(s3["port"], "");
    EXPECT_EQ(s3["secret"].size(), 40U);
    EXPECT_TRUE(request(s3["port"], "GET", "/shut/a.txt").starts_with("HTTP/1.1 403 "));
    EXPECT_EQ(s3.stop(), 0);
}

}  // namespace
}  // namespace larder::test
