#include "cache/peers/witnesses.h"

#include <algorithm>
#include <iterator>

#include "base/assert.h"

namespace larder::cache {

Witnesses::Witnesses(std::uint32_t block_count, unsigned needed) : needed_(needed), claims_(block_count) {
    LARDER_ASSERT(needed >= 1 && needed <= kNeededMax);
}

bool Witnesses::is_made_by(const Claim& claim, Node node) {
    return std::ranges::find(claim.nodes, node) != claim.nodes.end();
}

void Witnesses::withdraw(Claim& claim, Node node) {
    std::ranges::replace(claim.nodes, node, Node{0});
    if (std::ranges::count(claim.nodes, 0) == kNeededMax) claim.digest = {};
}

bool Witnesses::is_enough(const Claim& claim) const {
    return kNeededMax - static_cast<unsigned>(std::ranges::count(claim.nodes, 0)) >= needed_;
}

void Witnesses::note(Node node, std::uint32_t block, const BlockDigest& digest) {
    LARDER_ASSERT(node != 0);
    const auto add = [&](Claim& claim) {
        claim.digest = digest;
        if (const auto free = std::ranges::find(claim.nodes, 0); free != claim.nodes.end()) *free = node;
    };
    Claim& first = claims_[block];
    const auto others = other_claims_.find(block);
    if (first.digest == digest && is_made_by(first, node)) return;
    if (is_made_by(first, node)) withdraw(first, node);
    if (others != other_claims_.end()) {
        for (Claim& claim : others->second) {
            if (is_made_by(claim, node)) withdraw(claim, node);
        }
        std::erase_if(others->second, [](const Claim& claim) { return !claim.digest.is_known(); });
        const auto same = std::ranges::find(others->second, digest, &Claim::digest);
        if (same != others->second.end()) return add(*same);
        if (others->second.empty()) other_claims_.erase(others);
    }
    if (!first.digest.is_known() || first.digest == digest) return add(first);
    std::vector<Claim>& rest = other_claims_[block];
    if (rest.size() < kOtherClaimsMax) add(rest.emplace_back());
}

BlockDigest Witnesses::agreed(std::uint32_t block) const {
    BlockDigest agreed;
    if (is_enough(claims_[block])) agreed = claims_[block].digest;
    const auto others = other_claims_.find(block);
    if (others == other_claims_.end()) return agreed;
    for (const Claim& claim : others->second) {
        if (!is_enough(claim)) continue;
        if (agreed.is_known()) return {};
        agreed = claim.digest;
    }
    return agreed;
}

std::vector<Witnesses::Node> Witnesses::take_contradicting(std::uint32_t block, const BlockDigest& right) {
    std::vector<Node> nodes;
    const auto take = [&](Claim& claim) {
        if (!claim.digest.is_known() || claim.digest == right) return;
        std::ranges::copy_if(claim.nodes, std::back_inserter(nodes), [](Node node) { return node != 0; });
        claim = {};
    };
    take(claims_[block]);
    if (other_claims_.empty()) return nodes;
    const auto others = other_claims_.find(block);
    if (others == other_claims_.end()) return nodes;
    for (Claim& claim : others->second) take(claim);
    std::erase_if(others->second, [](const Claim& claim) { return !claim.digest.is_known(); });
    if (others->second.empty()) other_claims_.erase(others);
    return nodes;
}

}  // namespace larder::cache
