#pragma once

// A blocking client of etcd 3.4 or newer, over the JSON gateway that every member serves beside gRPC. It knows only
// what a replicated store of rows needs: ranges, transactions that are fenced by a key, and leases. Calls go to one
// member at a time. If that member does not answer, or answers that it cannot serve now, the call goes to the next
// member, to each once. So a call may take effect twice, and also after an error. `write` takes effect once, whatever
// happens; the others do no harm the second time. Reads are linearizable. One thread at a time.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/server/http_client.h"
#include "base/server/row_store.h"

namespace boost::json {
class object;
}

namespace larder {

struct EtcdOptions {
    std::vector<std::string> endpoints;  // "https://10.0.0.1:2379", one for each member
    std::string prefix = "/larder/";     // of every key
    // A user of etcd that may read and write the prefix. Without one, whoever may connect may write: etcd's gateway
    // knows no users by their certificates.
    std::string user;
    // The password is the first line of this file, which is read whenever etcd wants the password. While it cannot be
    // had, or is wrong, etcd counts as unavailable.
    std::string password_file;
    // For https://: PEM files.
    std::string ca_file;
    std::string certificate_file;
    std::string key_file;
    std::int64_t timeout_ms = 2'000;  // for each member to answer
};

struct EtcdKey {
    std::string key;
    std::string value;
    std::int64_t create_revision = 0;
    std::int64_t lease = 0;  // 0: none
};

class EtcdClient {
public:
    explicit EtcdClient(EtcdOptions options);

    // Keys are without the prefix. Returns the key as it is now; nullopt if there is none.
    Result<std::optional<EtcdKey>> get(std::string_view key);
    // Returns at most `limit` keys that start with `start` and sort after `after`, in order.
    Result<std::vector<EtcdKey>> list(std::string_view start, std::string_view after, std::size_t limit);

    // Creates the key with a lease, unless there is one. Returns the key. Its lease tells who created it.
    Result<EtcdKey> create(std::string_view key, std::string_view value, std::int64_t lease);

    // A write holds only if the key `fence` has this revision of creation, and if the key `sequence` has the value
    // `last`. The write then gives it the value `next`.
    struct Turn {
        std::string fence;
        std::int64_t create_revision = 0;
        std::string sequence;
        std::string last;  // empty: there is no such key yet
        std::string next;  // no other write has this value, neither earlier nor later
    };
    // Writes values, or removes keys, in one transaction. Rows have different keys, and are kRowsMax at most. Removes
    // all keys that start with `cleared`, too, unless that is empty.
    // Returns the sequence's value. That is `next` if the transaction has taken effect, now or by an earlier attempt;
    // another value means that it has not, and will not. Returns nullopt, with nothing written, if the fence has
    // changed. After an error the transaction may have taken effect, or may do so later.
    static constexpr std::size_t kRowsMax = 100;  // etcd takes 128 operations by default
    Result<std::optional<std::string>> write(std::span<const Row> rows, const Turn& turn,
                                             std::string_view cleared = {});

    Result<std::int64_t> grant_lease(std::int64_t seconds);
    // Renews a lease. Returns the seconds that it now has; 0 if it has expired.
    Result<std::int64_t> keep_lease(std::int64_t lease);
    // Ends a lease and removes its keys.
    Result<void> revoke_lease(std::int64_t lease);

private:
    Result<boost::json::object> call(std::string_view path, const boost::json::object& body);
    Result<HttpResponse> ask_member(std::string_view path, const std::string& text);
    Result<HttpResponse> request(std::string_view path, const std::string& text);
    Result<void> authenticate();

    EtcdOptions options_;
    std::vector<HttpClient> members_;
    std::size_t current_ = 0;  // the member that answered last
    std::string token_;        // of the user; empty: none
};

}  // namespace larder
