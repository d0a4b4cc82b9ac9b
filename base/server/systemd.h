#pragma once

// systemd's readiness protocol: one datagram to the socket in $NOTIFY_SOCKET. Does nothing if the variable is not set.

#include <string_view>

namespace larder {

// Sends a state such as "READY=1" or "STOPPING=1". A failure is logged. Any thread.
void tell_systemd(std::string_view state);

}  // namespace larder
