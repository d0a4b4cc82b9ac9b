#include "cache/protocol/megatron.h"

#include <cstring>
#include <string>

#include "cache/protocol/little_endian.h"

namespace larder::protocol {
namespace {

constexpr std::size_t kHeadBytes = 34;
constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::uint64_t kSequenceBytes = sizeof(std::int32_t) + sizeof(std::int64_t);  // without a mode

std::unexpected<Error> index_error(std::uint64_t offset, const std::string& what) {
    return fail(ErrorCode::corrupt, "at offset " + std::to_string(offset) + ": " + what);
}

}  // namespace

MegatronIndex::MegatronIndex(ByteSource& idx, std::uint64_t bin_bytes, ElementType element, std::uint64_t sequences,
                             std::uint64_t document_indices)
    : element_(element),
      document_count_(document_indices - 1),
      sequence_count_(sequences),
      bin_bytes_(bin_bytes),
      lengths_(idx, kHeadBytes, sequences),
      pointers_(idx, kHeadBytes + sequences * sizeof(std::int32_t), sequences),
      documents_(idx, kHeadBytes + sequences * kSequenceBytes, document_indices) {}

Result<MegatronIndex> MegatronIndex::open(ByteSource& idx, std::uint64_t bin_bytes) {
    const std::uint64_t idx_bytes = idx.size_bytes();
    if (idx_bytes < kHeadBytes)
        return index_error(0, "an index has at least 34 bytes, this one " + std::to_string(idx_bytes));
    auto head = idx.read(0, kHeadBytes);
    if (!head) return std::unexpected(head.error());
    if (std::memcmp(head->data(), kMagic, sizeof kMagic) != 0) return index_error(0, "it does not begin with MMIDIDX");
    const auto version = load<std::uint64_t>(*head, 9);
    if (version != 1) {
        return fail(ErrorCode::unsupported,
                    "at offset 9: version " + std::to_string(version) + " is not supported, only 1");
    }
    const auto code = load<std::uint8_t>(*head, 17);
    if (code == 0 || code > static_cast<std::uint8_t>(ElementType::uint16)) {
        return index_error(17, "token type " + std::to_string(code) + " is not 1 to 8");
    }
    const auto sequences = load<std::uint64_t>(*head, 18);
    const auto indices = load<std::uint64_t>(*head, 26);
    if (indices == 0) return index_error(26, "it has no document indices");
    const bool fits = lies_within(kHeadBytes, sequences, kSequenceBytes, idx_bytes) &&
                      lies_within(kHeadBytes + sequences * kSequenceBytes, indices, sizeof(std::int64_t), idx_bytes);
    const std::uint64_t bytes_without_modes =
        fits ? kHeadBytes + sequences * kSequenceBytes + indices * sizeof(std::int64_t) : 0;
    if (!fits || (idx_bytes != bytes_without_modes && idx_bytes != bytes_without_modes + sequences)) {
        return index_error(18, std::to_string(sequences) + " sequences and " + std::to_string(indices) +
                                   " document indices do not fit its size of " + std::to_string(idx_bytes) + " bytes");
    }
    // Megatron's codes 1 to 8 for the type of tokens are the values of ElementType.
    MegatronIndex index(idx, bin_bytes, static_cast<ElementType>(code), sequences, indices);
    const auto first = index.documents_.next();
    if (!first) return std::unexpected(first.error());
    if (*first != 0)
        return index_error(bytes_without_modes - indices * 8, "the first document does not begin at sequence 0");
    return index;
}

Result<std::optional<MegatronDocument>> MegatronIndex::next() {
    if (documents_.at_end()) {
        if (sequence_ != sequence_count_) {
            return index_error(documents_.position(), "the documents end at sequence " + std::to_string(sequence_) +
                                                          " of " + std::to_string(sequence_count_));
        }
        return std::nullopt;
    }
    const std::uint64_t document_position = documents_.position();
    const auto end = documents_.next();
    if (!end) return std::unexpected(end.error());
    if (*end < 0 || static_cast<std::uint64_t>(*end) < sequence_ ||
        static_cast<std::uint64_t>(*end) > sequence_count_) {
        return index_error(document_position, "a document ends at sequence " + std::to_string(*end) +
                                                  ", which is not from " + std::to_string(sequence_) + " to " +
                                                  std::to_string(sequence_count_));
    }
    MegatronDocument document{.offset = bin_end_, .bytes = 0};
    for (; sequence_ < static_cast<std::uint64_t>(*end); ++sequence_) {
        const std::uint64_t length_position = lengths_.position();
        const std::uint64_t pointer_position = pointers_.position();
        const auto length = lengths_.next();
        if (!length) return std::unexpected(length.error());
        const auto pointer = pointers_.next();
        if (!pointer) return std::unexpected(pointer.error());
        if (*length < 0) {
            return index_error(length_position,
                               "sequence " + std::to_string(sequence_) + " has " + std::to_string(*length) + " tokens");
        }
        if (*length == 0) continue;
        const std::uint64_t bytes = static_cast<std::uint64_t>(*length) * size_bytes(element_);
        const std::uint64_t expected = document.offset + document.bytes;
        // A gap may lie before a document, never within one.
        const bool fits = *pointer >= 0 && (document.bytes == 0 ? static_cast<std::uint64_t>(*pointer) >= expected
                                                                : static_cast<std::uint64_t>(*pointer) == expected);
        if (!fits) {
            return index_error(pointer_position,
                               "sequence " + std::to_string(sequence_) + " lies at " + std::to_string(*pointer) +
                                   " of the .bin, not after the previous one, at " + std::to_string(expected));
        }
        if (document.bytes == 0) document.offset = static_cast<std::uint64_t>(*pointer);
        if (!lies_within(document.offset, document.bytes + bytes, bin_bytes_)) {
            return index_error(pointer_position, "sequence " + std::to_string(sequence_) +
                                                     " goes past the end of the .bin, " + "which has " +
                                                     std::to_string(bin_bytes_) + " bytes");
        }
        document.bytes += bytes;
    }
    bin_end_ = document.offset + document.bytes;
    return document;
}

}  // namespace larder::protocol
