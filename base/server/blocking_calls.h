#pragma once

// Runs calls that may block for ever, such as opening a directory of a mount that hangs, or asking a name service that
// does not answer. Each call has a thread of its own while it runs, so that one that blocks holds up no other. A call
// that blocks cannot be ended: the destructor leaves it behind, so a call must own all that it uses.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace boost::asio {
class io_context;
}

namespace larder {

class BlockingCalls {
public:
    // The work with the result of a call, done on the control thread.
    using Then = std::function<void()>;
    using Call = std::function<Then()>;

    static constexpr std::size_t kThreadsMax = 256;

    // `control` is the io_context of the control thread; it must outlive this object. With all threads taken, further
    // calls wait for one.
    BlockingCalls(boost::asio::io_context& control, const std::string& thread_name,
                  std::size_t threads_max = kThreadsMax);
    // Returns at once. The results of running calls are dropped.
    ~BlockingCalls();
    BlockingCalls(const BlockingCalls&) = delete;
    BlockingCalls& operator=(const BlockingCalls&) = delete;

    // Any thread. Runs `call`, and on the control thread what it returns.
    void run(Call call);
    // Control thread. As above, but runs `late` instead, on the control thread, if the call has not returned in time;
    // what it returns later is dropped.
    void run(Call call, std::int64_t timeout_ns, Then late);

    // Waits until all calls have returned, for at most this long. False if some have not.
    bool wait(std::int64_t timeout_ns);

private:
    struct State;
    std::shared_ptr<State> state_;
};

}  // namespace larder
