#pragma once

// A vector for lists that mostly have a few elements. These lie in the object itself, so such a list allocates nothing:
// a plan makes and frees tens of thousands of them. Moving the object moves these elements. So pointers to them do not
// stay valid, as they do with std::vector.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>

namespace larder::allocator {

template <typename T, std::uint32_t kFew>
class ShortVector {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    using value_type = T;
    using iterator = T*;
    using const_iterator = const T*;

    ShortVector() = default;
    ShortVector(std::initializer_list<T> things) { append(things.begin(), things.size()); }
    ShortVector(const ShortVector& other) { append(other.begin(), other.size()); }
    ShortVector(ShortVector&& other) noexcept { take(other); }
    ShortVector& operator=(const ShortVector& other) {
        if (this == &other) return *this;
        clear();
        append(other.begin(), other.size());
        return *this;
    }
    ShortVector& operator=(ShortVector&& other) noexcept {
        if (this != &other) take(other);
        return *this;
    }
    ~ShortVector() = default;

    void push_back(const T& thing) {
        const T copy = thing;  // it may be an element
        reserve(std::size_t{size_} + 1);
        begin()[size_++] = copy;
    }
    void pop_back() { --size_; }
    void clear() { size_ = 0; }
    void reserve(std::size_t count) {
        if (count <= capacity_) return;
        const std::size_t capacity = std::max<std::size_t>(count, 2 * std::size_t{capacity_});
        auto more = std::make_unique<T[]>(capacity);
        std::copy(begin(), end(), more.get());
        many_ = std::move(more);
        capacity_ = static_cast<std::uint32_t>(capacity);
    }
    void assign(std::size_t count, const T& thing) {
        const T copy = thing;
        clear();
        reserve(count);
        std::fill_n(begin(), count, copy);
        size_ = static_cast<std::uint32_t>(count);
    }

    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    T* begin() { return many_ ? many_.get() : few_.data(); }
    T* end() { return begin() + size_; }
    const T* begin() const { return many_ ? many_.get() : few_.data(); }
    const T* end() const { return begin() + size_; }
    T& operator[](std::size_t i) { return begin()[i]; }
    const T& operator[](std::size_t i) const { return begin()[i]; }
    T& front() { return *begin(); }
    const T& front() const { return *begin(); }
    T& back() { return end()[-1]; }
    const T& back() const { return end()[-1]; }

    bool operator==(const ShortVector& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

private:
    void append(const T* things, std::size_t count) {
        reserve(size_ + count);
        std::copy_n(things, count, end());
        size_ += static_cast<std::uint32_t>(count);
    }
    void take(ShortVector& other) {
        few_ = other.few_;
        many_ = std::move(other.many_);
        size_ = std::exchange(other.size_, 0);
        capacity_ = std::exchange(other.capacity_, kFew);
    }

    std::array<T, kFew> few_{};
    std::unique_ptr<T[]> many_;  // has all elements, instead of few_, once there were more
    std::uint32_t size_ = 0;
    std::uint32_t capacity_ = kFew;
};

}  // namespace larder::allocator
