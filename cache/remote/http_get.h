#pragma once

// One GET of an object, or of a range of it (or what a peer is sent), and what became of it. The asker owns it and the
// memory it names until `done` has run, on the transfers' own thread (cache/remote/http_transfers.h).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/remote.h"

using CURL = void;
struct curl_slist;

namespace larder::cache {

// What is the same for all requests of one dataset: who is asked, and how they are signed. Used on the transfers'
// thread.
class HttpOrigin {
public:
    virtual ~HttpOrigin() = default;
    // "https://host:port": requests to one endpoint share its limits.
    virtual const std::string& endpoint() const = 0;
    // Adds headers and signs. `headers` is the list so far, and what it returns is the whole list.
    virtual Result<curl_slist*> prepare(CURL* easy, curl_slist* headers) const = 0;
    // Signed requests must not follow redirects: the signature is for this host.
    virtual bool follows_redirects() const = 0;
    // What an answer other than 2xx means, for people; `body` is its beginning.
    virtual std::string explain(int status, std::string_view body) const = 0;
    // True if the answer says that the whole bucket is missing, and not one object of it.
    virtual bool lacks_bucket(int /*status*/, std::string_view /*body*/) const { return false; }
    // Whether it will be another answer a little later, although the status does not say so.
    virtual bool passes(int /*status*/, std::string_view /*body*/) const { return false; }
};

enum class HttpAsk : std::uint8_t {
    range,  // `into` at `offset`: whole or not at all
    whole,  // the whole object into `into`, without asking for a range
    probe,  // its first byte, for its size and tag, and to see whether ranges are served
    text,   // all of a small body, to `body`
    send,   // POSTs `into`; for peers, never for a remote
};

enum class HttpOutcome : std::uint8_t { ok, missing, changed, failed, cancelled };

struct HttpGet {
    void (*done)(HttpGet& get) noexcept = nullptr;
    const HttpOrigin* origin = nullptr;
    const void* owner = nullptr;  // who may cancel it
    void* context = nullptr;      // the asker's own
    std::string url;              // percent-encoded
    HttpAsk ask = HttpAsk::range;
    std::uint64_t offset = 0;
    std::span<std::byte> into;
    std::uint64_t object_bytes = 0;      // expected; 0: not known. Set by a probe
    std::int64_t tag = 0;                // expected; 0: not known. Set by a probe
    std::int64_t retry_for_ns = 0;       // 0: as the transfers were told, who are never outdone
    std::shared_ptr<RemotePayer> payer;  // of what is taken beyond the answer; null: nobody

    HttpOutcome outcome = HttpOutcome::failed;
    int status = 0;               // the last answer's; 0: there was none
    int system_errno = 0;         // of `failed`
    std::string message;          // why not ok: what was asked, what came
    bool serves_ranges = false;   // of a probe
    std::vector<std::byte> body;  // of `text`
    unsigned attempts = 0;
    std::uint64_t extra_bytes = 0;  // of bodies that were not the answer

    HttpGet* next = nullptr;  // the transfers' own
};

// What stands for an object's version: made of the ETag, else of Last-Modified; 0 where there is neither.
std::int64_t tag_of_etag(std::string_view etag);
std::int64_t tag_of_headers(const char* etag, const char* last_modified);

}  // namespace larder::cache
