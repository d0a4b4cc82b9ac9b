#include "cache/remote/redirect_rule.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace larder::cache {
namespace {

AddressKind kind_of_ipv4(std::uint32_t address) {
    if ((address >> 16) == 0xa9feu) return AddressKind::link_local;
    if ((address >> 24) == 127 || address == INADDR_ANY) return AddressKind::loopback;
    return AddressKind::ordinary;
}

AddressKind kind_of_ipv6(const in6_addr& address) {
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
        std::uint32_t ipv4 = 0;
        std::memcpy(&ipv4, address.s6_addr + 12, sizeof ipv4);
        return kind_of_ipv4(ntohl(ipv4));
    }
    if (IN6_IS_ADDR_LINKLOCAL(&address)) return AddressKind::link_local;
    if (IN6_IS_ADDR_LOOPBACK(&address) || IN6_IS_ADDR_UNSPECIFIED(&address)) return AddressKind::loopback;
    constexpr std::uint8_t kEc2Metadata[16] = {0xfd, 0x00, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54};
    static_assert(sizeof kEc2Metadata == sizeof address.s6_addr);
    const bool is_metadata = std::memcmp(address.s6_addr, kEc2Metadata, sizeof kEc2Metadata) == 0;
    return is_metadata ? AddressKind::link_local : AddressKind::ordinary;
}

}  // namespace

AddressKind kind_of_address(const sockaddr& address) {
    if (address.sa_family == AF_INET) {
        return kind_of_ipv4(ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr));
    }
    if (address.sa_family == AF_INET6) return kind_of_ipv6(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
    return AddressKind::ordinary;
}

AddressKind kind_of_address(std::string_view address) {
    const std::string text(address.substr(0, address.find('%')));  // without the zone
    in_addr ipv4{};
    if (::inet_pton(AF_INET, text.c_str(), &ipv4) == 1) return kind_of_ipv4(ntohl(ipv4.s_addr));
    in6_addr ipv6{};
    if (::inet_pton(AF_INET6, text.c_str(), &ipv6) == 1) return kind_of_ipv6(ipv6);
    return AddressKind::ordinary;
}

}  // namespace larder::cache
