#include "cache/protocol/sample_table.h"

#include <algorithm>

#include "cache/protocol/little_endian.h"

namespace larder::protocol {
namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint32_t);

std::unexpected<Error> table_error(std::uint64_t offset, const std::string& what) {
    return fail(ErrorCode::corrupt, "at offset " + std::to_string(offset) + ": " + what);
}

std::uint64_t table_bytes(std::uint64_t count) {
    return (count + 2) * kWordBytes;
}

Result<void> check_count(std::uint64_t file_bytes, std::uint64_t count, std::uint64_t expected) {
    if (count != expected) {
        return table_error(
            0, "it holds " + std::to_string(count) + " samples, but its index says " + std::to_string(expected));
    }
    if (!lies_within(0, count + 2, kWordBytes, file_bytes)) {
        return table_error(0, "the table of its " + std::to_string(count) +
                                  " samples is longer than the file, which has " + std::to_string(file_bytes) +
                                  " bytes");
    }
    return {};
}

// Checks the bounds of sample `i`, which are words i + 1 and i + 2 of the table.
Result<void> check_bounds(std::uint64_t file_bytes, std::uint64_t count, std::uint64_t i, std::uint64_t begin,
                          std::uint64_t end) {
    if (begin < table_bytes(count)) {
        return table_error((i + 1) * kWordBytes, "sample " + std::to_string(i) + " begins at " + std::to_string(begin) +
                                                     ", within the table");
    }
    if (end < begin || !lies_within(begin, end - begin, file_bytes)) {
        return table_error((i + 2) * kWordBytes, "sample " + std::to_string(i) + " from " + std::to_string(begin) +
                                                     " ends at " + std::to_string(end) + "; the file has " +
                                                     std::to_string(file_bytes) + " bytes");
    }
    return {};
}

}  // namespace

Result<SampleTable> SampleTable::open(ByteSource& source, std::uint64_t expected_samples) {
    const std::uint64_t file_bytes = source.size_bytes();
    if (file_bytes < 2 * kWordBytes) {
        return table_error(0, "it has " + std::to_string(file_bytes) + " bytes, too few for a table of samples");
    }
    auto head = source.read(0, 2 * kWordBytes);
    if (!head) return std::unexpected(head.error());
    const auto count = load<std::uint32_t>(*head);
    const auto first_offset = load<std::uint32_t>(*head, kWordBytes);
    if (auto checked = check_count(file_bytes, count, expected_samples); !checked) {
        return std::unexpected(checked.error());
    }
    return SampleTable(source, count, first_offset);
}

Result<FileExtent> SampleTable::next() {
    if (next_ >= count_) return table_error(0, "it has only " + std::to_string(count_) + " samples");
    const auto read = ends_.next();
    if (!read) return std::unexpected(read.error());
    const std::uint64_t begin = offset_;
    const std::uint64_t end = *read;
    const std::uint64_t file_bytes = source_->size_bytes();
    if (auto checked = check_bounds(file_bytes, count_, next_, begin, end); !checked) {
        return std::unexpected(checked.error());
    }
    ++next_;
    if (next_ == count_ && end != file_bytes) {
        return table_error(end, "the last sample ends here, but the file has " + std::to_string(file_bytes) + " bytes");
    }
    offset_ = end;
    return FileExtent{.offset = begin, .bytes = end - begin};
}

Result<std::span<const std::byte>> sample_in(std::span<const std::byte> file, std::uint32_t ordinal,
                                             std::uint32_t expected_samples) {
    if (file.size() < 2 * kWordBytes) {
        return table_error(0, "it has " + std::to_string(file.size()) + " bytes, too few for a table of samples");
    }
    const auto count = load<std::uint32_t>(file);
    if (auto checked = check_count(file.size(), count, expected_samples); !checked) {
        return std::unexpected(checked.error());
    }
    if (ordinal >= count) return table_error(0, "it has only " + std::to_string(count) + " samples");
    const auto begin = load<std::uint32_t>(file, (std::size_t{ordinal} + 1) * kWordBytes);
    const auto end = load<std::uint32_t>(file, (std::size_t{ordinal} + 2) * kWordBytes);
    if (auto checked = check_bounds(file.size(), count, ordinal, begin, end); !checked) {
        return std::unexpected(checked.error());
    }
    return file.subspan(begin, end - begin);
}

Result<void> split_columns(std::span<const std::byte> sample, std::span<const FormatColumn> columns,
                           std::vector<std::span<const std::byte>>& fields) {
    const auto varying = static_cast<std::size_t>(std::ranges::count(columns, 0u, &FormatColumn::size_bytes));
    const std::size_t sizes_bytes = varying * kWordBytes;
    if (sizes_bytes > sample.size()) {
        return table_error(0, "the sample has " + std::to_string(sample.size()) + " bytes; the sizes of its " +
                                  std::to_string(varying) + " fields alone take " + std::to_string(sizes_bytes));
    }
    std::size_t size_position = 0;
    std::size_t position = sizes_bytes;
    for (const FormatColumn& column : columns) {
        std::size_t bytes = column.size_bytes;
        if (bytes == 0) {
            bytes = load<std::uint32_t>(sample, size_position);
            size_position += kWordBytes;
        }
        if (!lies_within(position, bytes, sample.size())) {
            return table_error(position, "field \"" + column.name + "\" has " + std::to_string(bytes) +
                                             " bytes, but the sample has " + std::to_string(sample.size() - position) +
                                             " left");
        }
        fields.push_back(sample.subspan(position, bytes));
        position += bytes;
    }
    if (position != sample.size()) {
        return table_error(position,
                           "its fields end here, but the sample has " + std::to_string(sample.size()) + " bytes");
    }
    return {};
}

}  // namespace larder::protocol
