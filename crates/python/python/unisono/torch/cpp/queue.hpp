// Collectives in flight.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "hooks.hpp"
#include "library.hpp"

namespace unisono {

class CallQueue;

// The work of a collective.
class Call final : public HookedWork {
 public:
  Call(
      const c10::intrusive_ptr<c10d::Backend>& group, std::shared_ptr<CallQueue> queue, const WorkHooks& hooks, c10d::OpType type,
      std::vector<at::Tensor> outputs, std::function<void()> make)
      : HookedWork(group, hooks, type), queue_(std::move(queue)), outputs_(std::move(outputs)), make_(std::move(make)) {}

  bool wait(std::chrono::milliseconds timeout) override;

  std::vector<at::Tensor> result() override { return outputs_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    run_in_callback();
    std::unique_lock<std::mutex> lock(future_mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    const auto future = future_;
    const bool is_done = is_done_;
    lock.unlock();
    if (is_done) complete(future);
    return future;
  }

 private:
  friend class CallQueue;

  // Runs the call if this thread runs a callback of an earlier one: a wait for the future would not run it.
  void run_in_callback();

  // Makes the call, and releases its captured objects.
  void run(Waits& waits) {
    complete_by([&] { waits.in_call(std::exchange(make_, nullptr)); });
    std::unique_lock<std::mutex> lock(future_mutex_);
    is_done_ = true;
    const auto future = future_;
    lock.unlock();
    if (future) complete(future);
  }

  void complete(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
    if (exception_) {
      future->setError(exception_);
    } else {
      future->markCompleted(c10::IValue(outputs_));
    }
  }

  const std::shared_ptr<CallQueue> queue_;
  const std::vector<at::Tensor> outputs_;
  std::function<void()> make_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<bool> is_done_{false};
};

// A queue of calls. They run one after the other in the order of submission, which is identical on all ranks.
//
// A thread that waits for a call runs it and the calls before it, unless another thread is running one. The queue's own thread runs the
// other calls after a delay, because a context switch takes longer than a short call.
//
// Callbacks of a call's future run before the next call. The calls that they submit run immediately: the thread of the callback may block
// until they are done, and all ranks run them in the same order even if the next call is already submitted on some ranks only. That holds
// for callbacks that are added before the next call is submitted: later ones may run on the thread that adds them.
class CallQueue : public std::enable_shared_from_this<CallQueue> {
 public:
  CallQueue(Waits& waits, const WorkHooks& hooks) : waits_(waits), hooks_(hooks), process_(getpid()) {}

  // Adds a call. If `runs_now`, runs it on this thread, unless others are in flight.
  c10::intrusive_ptr<Call> submit(
      const c10::intrusive_ptr<c10d::Backend>& group, c10d::OpType type, const std::vector<at::Tensor>& outputs,
      std::function<void()> make, bool runs_now) {
    auto call = c10::make_intrusive<Call>(group, shared_from_this(), hooks_, type, outputs, std::move(make));
    std::unique_lock<std::mutex> lock(mutex_);
    TORCH_CHECK(!is_closed_, kShutDown);
    const bool is_in_callback = runs_callback();
    int64_t bytes = 0;
    for (const auto& output : outputs) bytes += output.nbytes();
    const bool is_long = bytes >= kLongBytes;
    calls_.insert(
        is_in_callback ? calls_.begin() : calls_.end(), {call, Clock::now() + (is_long ? kLongDelay : kShortDelay)});
    if (is_in_callback || (runs_now && !is_busy() && calls_.size() == 1)) {
      run_first(lock);
      lock.unlock();
      if (!is_in_callback) Waits::rethrow_raised();
      // The caller of a synchronous call gets its error directly.
      if (runs_now && call->exception_) std::rethrow_exception(call->exception_);
      return call;
    }
    // The thread holds the queue, since a callback on it may drop the process group.
    if (!thread_.joinable()) thread_ = std::thread([self = shared_from_this()] { self->serve(); });
    if (is_asleep_ || is_long) changed_.notify_all();
    return call;
  }

  // Runs calls until this one is done. Returns false if the timeout is not 0 and expires first. Throws an exception of a handler, even
  // one that ended a call before this one; in a callback, the call that runs the callback throws it.
  bool run_until(const Call& call, std::chrono::milliseconds timeout) {
    const auto began = Clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    const bool is_in_callback = runs_callback();
    while (!call.is_done_) {
      if (is_in_callback ? !calls_.empty() : !is_busy() && timeout.count() == 0) {
        run_first(lock);
        if (!is_in_callback) Waits::rethrow_raised();
        continue;
      }
      done_.wait_for(lock, kSignalInterval);
      if (timeout.count() != 0 && Clock::now() - began > timeout && !call.is_done_) return false;
      if (call.is_done_ || !Waits::is_main_thread()) continue;
      lock.unlock();
      waits_.poll_handlers();
      Waits::rethrow_raised();
      lock.lock();
    }
    return true;
  }

  // Returns whether this thread runs a callback of a call.
  bool is_in_callback() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return runs_callback();
  }

  // Returns whether no call is in flight.
  bool is_idle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return calls_.empty() && !is_busy();
  }

  // Ends the thread after the calls in flight. `Waits::rethrow_raised` throws an exception of a handler.
  void close() {
    // A forked child has a copy of the queue without the thread, which keeps it.
    if (getpid() != process_) return;
    std::unique_lock<std::mutex> lock(mutex_);
    const bool is_in_callback = runs_callback();
    is_closed_ = true;
    while (true) {
      if (is_busy() && !is_in_callback) {
        done_.wait_for(lock, kSignalInterval);
        if (!is_busy() || !Waits::is_main_thread()) continue;
        lock.unlock();
        waits_.poll_handlers();
        lock.lock();
      } else if (!calls_.empty()) {
        run_first(lock);
      } else {
        break;
      }
    }
    changed_.notify_all();
    // Under the lock, since several threads may close the queue.
    std::thread thread = std::move(thread_);
    lock.unlock();
    if (!thread.joinable()) return;
    if (thread.get_id() != std::this_thread::get_id()) {
      thread.join();
      return;
    }
    const std::lock_guard<std::mutex> ending_lock(ending_mutex());
    ending().push_back(std::move(thread));
  }

  // Joins the threads of queues that a callback on them has closed. They need the interpreter to end.
  static void join_ending() {
    const std::lock_guard<std::mutex> lock(ending_mutex());
    for (auto& thread : ending()) thread.join();
    ending().clear();
  }

 private:
  struct Queued {
    c10::intrusive_ptr<Call> call;
    // The time at which the queue's thread runs the call.
    Clock::time_point due;
  };

  // The delays before the queue's thread runs a call of at least `kLongBytes`, and a shorter call.
  static constexpr Clock::duration kLongDelay = std::chrono::microseconds(100), kShortDelay = std::chrono::milliseconds(1);
  static constexpr int64_t kLongBytes = 256 << 10;
  // The number of polls of an empty queue before its thread sleeps. The submitting thread needs a system call to wake it up.
  static constexpr int kIdlePolls = 10;

  static std::vector<std::thread>& ending() {
    static std::vector<std::thread> threads;
    return threads;
  }

  static std::mutex& ending_mutex() {
    static std::mutex mutex;
    return mutex;
  }

  bool is_busy() const { return runner_ != std::thread::id(); }

  // Returns whether this thread runs a callback of a call. Throws an error if it runs a signal handler that has interrupted a call.
  bool runs_callback() const {
    TORCH_CHECK(!waits_.are_interrupted(), kInterrupted);
    return runner_ == std::this_thread::get_id();
  }

  // Runs the first call, without the lock.
  void run_first(std::unique_lock<std::mutex>& lock) {
    auto call = std::move(calls_.front().call);
    calls_.pop_front();
    const auto outer = std::exchange(runner_, std::this_thread::get_id());
    lock.unlock();
    call->run(waits_);
    // Outside the lock: this may free tensors, which acquires the interpreter's lock.
    call.reset();
    lock.lock();
    runner_ = outer;
    done_.notify_all();
    if (is_asleep_ && !calls_.empty()) changed_.notify_all();
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    int polls = 0;
    while (!is_closed_) {
      if (!is_busy() && !calls_.empty()) {
        polls = 0;
        if (Clock::now() < calls_.front().due) {
          changed_.wait_until(lock, calls_.front().due);
        } else {
          run_first(lock);
        }
      } else if (++polls < kIdlePolls) {
        changed_.wait_for(lock, kShortDelay);
      } else {
        is_asleep_ = true;
        changed_.wait(lock);
        is_asleep_ = false;
      }
    }
  }

  Waits& waits_;
  const WorkHooks& hooks_;
  const pid_t process_;
  std::mutex mutex_;
  // The queue's thread waits for `changed_`, and threads that wait for a call of another thread for `done_`.
  std::condition_variable changed_, done_;
  std::deque<Queued> calls_;
  // The thread that runs a call or its callbacks, if one does.
  std::thread::id runner_;
  bool is_asleep_ = false, is_closed_ = false;
  std::thread thread_;
};

inline void Call::run_in_callback() {
  if (is_done_ || !queue_->is_in_callback()) return;
  // PyTorch requests a future with the interpreter's lock held, for which hooks and handlers of other threads wait.
  std::optional<pybind11::gil_scoped_release> released;
  if (PyGILState_Check() != 0) released.emplace();
  queue_->run_until(*this, std::chrono::milliseconds(0));
}

inline bool Call::wait(std::chrono::milliseconds timeout) {
  if (!is_done_) {
    const auto held = group();
    TORCH_CHECK(queue_->run_until(*this, timeout), "timeout: a call was not done in ", timeout.count() / 1e3, " s");
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

}  // namespace unisono
