// Any bytes as a tar: the reader stays inside the tar and reads the same from a span as from a source, and every member
// lies where the reader says. Each input is also tried with the checksums of all blocks repaired, because a fuzzer
// cannot find valid checksums.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/assert.h"
#include "cache/protocol/tar.h"

namespace larder::protocol {
namespace {

class CopyingSource final : public ByteSource {
public:
    explicit CopyingSource(std::span<const std::byte> archive) : archive_(archive) {}
    std::uint64_t size_bytes() const override { return archive_.size(); }
    Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) override {
        LARDER_ASSERT(offset <= archive_.size() && bytes <= archive_.size() - offset);
        // A new allocation each time, so that using a stale view is a use after free.
        copy_ = std::vector<std::byte>(archive_.begin() + static_cast<std::ptrdiff_t>(offset),
                                       archive_.begin() + static_cast<std::ptrdiff_t>(offset + bytes));
        return copy_;
    }

private:
    std::span<const std::byte> archive_;
    std::vector<std::byte> copy_;
};

void read_all(std::span<const std::byte> archive) {
    TarReader reader(archive);
    CopyingSource source(archive);
    TarReader other_reader(source);
    std::uint64_t end = 0;
    for (;;) {
        const auto member = reader.next();
        const auto other = other_reader.next();
        LARDER_ASSERT(member.has_value() == other.has_value());
        if (!member) {
            LARDER_ASSERT(member.error().message == other.error().message);
            break;
        }
        LARDER_ASSERT(member->has_value() == other->has_value());
        if (!*member) break;
        LARDER_ASSERT((*member)->prefix == (*other)->prefix && (*member)->name == (*other)->name);
        LARDER_ASSERT((*member)->offset == end && (*member)->data_offset > end);
        LARDER_ASSERT((*member)->end_offset <= archive.size());
        LARDER_ASSERT((*member)->data_offset + (*member)->data_bytes <= (*member)->end_offset);
        end = (*member)->end_offset;
    }
    std::vector<TarField> fields;
    std::deque<std::string> texts;
    if (split_sample(archive, fields, texts)) {
        LARDER_ASSERT(!fields.empty());
        for (const TarField& field : fields)
            LARDER_ASSERT(field.bytes.data() + field.bytes.size() <= archive.data() + archive.size());
    }
}

void repair_checksums(std::span<std::byte> archive) {
    for (; archive.size() >= kTarBlockBytes; archive = archive.subspan(kTarBlockBytes)) {
        const auto block = archive.first(kTarBlockBytes);
        if (std::ranges::all_of(block, [](std::byte byte) { return byte == std::byte{0}; })) continue;
        std::memset(block.data() + 148, ' ', 8);
        unsigned sum = 0;
        for (const std::byte byte : block) sum += static_cast<unsigned>(byte);
        char text[8];
        std::snprintf(text, sizeof text, "%06o", sum);
        std::memcpy(block.data() + 148, text, 7);
    }
}

}  // namespace
}  // namespace larder::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // Exactly sized, so that a read past the end is detected.
    std::vector<std::byte> archive(size);
    if (size > 0) std::memcpy(archive.data(), data, size);
    larder::protocol::read_all(archive);
    larder::protocol::repair_checksums(archive);
    larder::protocol::read_all(archive);
    return 0;
}
