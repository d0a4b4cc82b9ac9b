#pragma once

// Decides where a remote's server may redirect this daemon. A redirect is chosen by the server, not by the user who
// named the URL, so it must not reach services that trust whoever is near: the metadata services of clouds, which give
// credentials to every process of a machine, and services on this machine's loopback.

#include <sys/socket.h>

#include <string_view>

namespace larder::cache {

// An address as an ordinary redirect may not reach it.
enum class AddressKind : unsigned char { ordinary, loopback, link_local };

// link_local: 169.254/16 and fe80::/10, also as an IPv4-mapped address, and fd00:ec2::254 (EC2's metadata service).
// loopback: 127/8, ::1 and the unspecified addresses, which reach the same services.
AddressKind kind_of_address(const sockaddr& address);
// The same for the text of a numeric address. A text that is no address counts as ordinary.
AddressKind kind_of_address(std::string_view address);

// True if a server at an address of kind `from` may redirect to an address of kind `to`.
constexpr bool may_redirect(AddressKind from, AddressKind to) {
    return to == AddressKind::ordinary || (to == AddressKind::loopback && from == AddressKind::loopback);
}

}  // namespace larder::cache
