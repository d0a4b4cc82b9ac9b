#include "cache/remote/http_outage.h"

namespace larder::cache {

void HttpOutages::tell(const std::string& endpoint, std::optional<HttpOutage> outage) {
    if (!outage) return;
    outage->endpoint = endpoint;
    const bool lasts = outage->ended_ns == 0;
    if (lasts) begun_.fetch_add(1, std::memory_order_relaxed);
    if (listener_) listener_(*outage);
    const std::scoped_lock lock(mutex_);
    std::erase_if(lasting_, [&](const HttpOutage& known) { return known.endpoint == endpoint; });
    if (lasts) lasting_.push_back(*std::move(outage));
}

std::vector<HttpOutage> HttpOutages::lasting() const {
    const std::scoped_lock lock(mutex_);
    return lasting_;
}

}  // namespace larder::cache
