#pragma once

// systemd's readiness protocol: one datagram to the socket that $NOTIFY_SOCKET names. Without one, nothing happens.

#include <string_view>

namespace larder {

// "READY=1", "STOPPING=1". A failure is logged. Any thread.
void tell_systemd(std::string_view state);

}  // namespace larder
