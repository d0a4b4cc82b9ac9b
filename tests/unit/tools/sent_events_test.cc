// Server-sent events, split into pieces of every size.

#include "tools/cli/sent_events.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace larder::cli {
namespace {

TEST(SentEvents, AreTheSameForEveryPieceSize) {
    const std::string stream =
        "id: 3\nevent: node_came\ndata: {\"a\":1}\n\n: nothing new\n\nevent: status\ndata: {}\n\nid: 4\n";
    for (std::size_t size = 1; size <= stream.size(); ++size) {
        SentEvents events;
        std::vector<std::string> got;
        for (std::size_t at = 0; at < stream.size(); at += size) {
            events.add(std::string_view(stream).substr(at, size), [&](const SentEvent& event) {
                got.push_back(std::to_string(event.id.value_or(0)) + " " + std::string(event.kind) + " " +
                              std::string(event.data));
            });
        }
        EXPECT_EQ(got, (std::vector<std::string>{"3 node_came {\"a\":1}", "0 status {}"})) << "pieces of " << size;
    }
}

}  // namespace
}  // namespace larder::cli
