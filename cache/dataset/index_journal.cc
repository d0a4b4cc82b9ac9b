#include "cache/dataset/index_journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/hash.h"

namespace larder::cache {
namespace {

std::uint64_t hash_text(std::string_view text) {
    std::uint64_t mixed = text.size();
    for (const char c : text) mixed = mix64(mixed ^ static_cast<unsigned char>(c));
    return mixed;
}

std::uint64_t hash_key(const JournalKey& key) {
    return mix64(hash_text(key.path) ^ static_cast<std::uint64_t>(key.kind));
}

Result<void> write_whole(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t put = ::write(fd, bytes.data(), bytes.size());
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_errno(errno, "write");
        bytes.remove_prefix(static_cast<std::size_t>(put));
    }
    return {};
}

}  // namespace

std::string journal_path(std::string_view manifest_path) {
    return std::string(manifest_path) + ".journal";
}

Result<std::unique_ptr<IndexJournal>> IndexJournal::open(std::string path, std::string_view what) {
    std::unique_ptr<IndexJournal> journal(new IndexJournal(std::move(path), hash_text(what)));
    if (auto loaded = journal->load(); !loaded) return std::unexpected(loaded.error().within("journal"));
    return journal;
}

Result<void> IndexJournal::load() {
    auto file = open_file(path_, O_RDWR | O_APPEND);
    if (!file) return file.error().system_errno == ENOENT ? Result<void>() : std::unexpected(file.error());
    struct stat status{};
    if (::fstat(file->get(), &status) != 0) return fail_errno(errno, path_);
    const auto bytes = static_cast<std::size_t>(status.st_size);
    if (bytes >= sizeof(JournalHeader)) {
        auto mapped = Mapping::of(file->get(), bytes, Mapping::Access::read_only);
        if (!mapped) return std::unexpected(mapped.error());
        old_ = std::move(*mapped);
    }
    if (!old_ || !is_journal_of(old_.span(), what_)) {
        old_.reset();
        if (::unlink(path_.c_str()) != 0) return fail_errno(errno, "remove " + path_);
        return {};
    }
    JournalScan scan(old_.span());
    for (;;) {
        const std::uint64_t offset = scan.offset();
        const auto record = scan.next();
        if (record.empty()) break;
        entries_.push_back({.hash = hash_key(journal_key(record)), .offset = offset});
    }
    // The bytes from the first damaged record on were never written completely.
    if (scan.offset() < bytes && ::ftruncate(file->get(), static_cast<off_t>(scan.offset())) != 0) {
        return fail_errno(errno, "cut off the end of " + path_);
    }
    std::ranges::stable_sort(entries_, {}, &Entry::hash);
    file_ = std::move(*file);
    return {};
}

std::optional<IndexedObject> IndexJournal::find(const JournalKey& key) {
    auto [at, end] = std::ranges::equal_range(entries_, hash_key(key), {}, &Entry::hash);
    for (; at != end; ++at) {
        const auto record = JournalScan(old_.span(), at->offset).next();
        if (journal_key(record) != key) continue;
        auto object = decode_journal_record(record);
        if (!object) continue;
        (key.kind == JournalKind::index ? indexes_ : checksums_).fetch_add(1);
        return object;
    }
    return std::nullopt;
}

void IndexJournal::add(const JournalKey& key, const IndexedObject& object) {
    const std::string record = encode_journal_record(key, object);
    if (record.empty()) return;
    const std::scoped_lock lock(mutex_);
    if (failure_) return;
    Result<void> written = file_ ? Result<void>() : make_file();
    if (written) written = write_whole(file_.get(), record);
    if (!written) failure_ = written.error().within(path_);
}

Result<void> IndexJournal::make_file() {
    auto file = open_file(path_, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0640);
    if (!file) return std::unexpected(file.error());
    file_ = std::move(*file);
    const JournalHeader header = make_journal_header(what_);
    return write_whole(file_.get(), {reinterpret_cast<const char*>(&header), sizeof header});
}

std::optional<Error> IndexJournal::failure() const {
    const std::scoped_lock lock(mutex_);
    return failure_;
}

Result<IndexedObject> find_or_compute(IndexJournal* journal, const JournalKey& key,
                                      const std::function<Result<IndexedObject>()>& work) {
    if (journal == nullptr || key.tag == 0) return work();
    if (auto known = journal->find(key)) return std::move(*known);
    auto object = work();
    if (object) journal->add(key, *object);
    return object;
}

std::uint64_t hash_numbers(std::initializer_list<std::uint64_t> numbers) {
    std::uint64_t mixed = numbers.size();
    for (const std::uint64_t number : numbers) mixed = mix64(mixed ^ number);
    return mixed;
}

}  // namespace larder::cache
