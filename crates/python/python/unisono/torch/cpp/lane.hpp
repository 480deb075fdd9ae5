// Collectives in flight.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "library.hpp"

namespace unisono {

class Lane;

// A collective, as PyTorch knows it.
class Call final : public c10d::Work {
 public:
  Call(std::shared_ptr<Lane> lane, c10d::OpType type, std::vector<at::Tensor> outputs, std::function<void()> make)
      : Work(-1, type), lane_(std::move(lane)), outputs_(std::move(outputs)), make_(std::move(make)) {}

  bool wait(std::chrono::milliseconds timeout) override;

  std::vector<at::Tensor> result() override { return outputs_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
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
  friend class Lane;

  // Makes the call. What it throws is the result.
  void run(Waits& waits) {
    std::exception_ptr error;
    try {
      // The values of tensors change as those of any call's outputs do: autograd does not see it.
      const at::AutoDispatchBelowADInplaceOrView guard;
      waits.during(make_);
    } catch (...) {
      error = std::current_exception();
    }
    make_ = nullptr;
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
      const std::lock_guard<std::mutex> lock(future_mutex_);
      error_ = error;
      is_done_ = true;
      future = future_;
    }
    finish(error);
    if (future) complete(future);
  }

  void complete(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
    if (error_) {
      future->setError(error_);
    } else {
      future->markCompleted(c10::IValue(outputs_));
    }
  }

  const std::shared_ptr<Lane> lane_;
  const std::vector<at::Tensor> outputs_;
  std::function<void()> make_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<bool> is_done_{false};
  std::exception_ptr error_;
};

// Calls that run one after the other, in the order in which they were made, which is the same on all ranks.
//
// A thread that waits for a call runs it, and those before it, unless another one is at it. The lane's own thread runs what nobody waits
// for. It leaves calls to their callers for a while: to change threads takes longer than a short call.
class Lane : public std::enable_shared_from_this<Lane> {
 public:
  explicit Lane(Waits& waits) : waits_(waits), process_(getpid()) {}

  // Starts a call; runs it, unless others are in flight, if `is_in_turn`.
  c10::intrusive_ptr<Call> submit(
      c10d::OpType type, const std::vector<at::Tensor>& outputs, std::function<void()> make, bool is_in_turn) {
    auto call = c10::make_intrusive<Call>(shared_from_this(), type, outputs, std::move(make));
    std::unique_lock<std::mutex> lock(mutex_);
    TORCH_CHECK(!is_closed_, kShutDown);
    int64_t bytes = 0;
    for (const auto& output : outputs) bytes += output.nbytes();
    const bool is_long = bytes >= kLong;
    calls_.push_back({call, Clock::now() + (is_long ? kMoment : kWhile)});
    if (is_in_turn && !is_busy_ && calls_.size() == 1) {
      run_first(lock);
      lock.unlock();
      // An error of a call that its caller waits for is thrown by it, not by its work.
      if (call->error_) std::rethrow_exception(call->error_);
      return call;
    }
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    if (is_asleep_ || is_long) changed_.notify_all();
    return call;
  }

  // Runs calls until this one is done; returns false if that takes longer than the timeout, unless it is 0.
  bool run_until(const Call& call, std::chrono::milliseconds timeout) {
    const auto began = Clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    while (!call.is_done_) {
      if (!is_busy_ && timeout.count() == 0) {
        run_first(lock);
        continue;
      }
      if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
      done_.wait_for(lock, kLook);
      if (timeout.count() != 0 && Clock::now() - began > timeout && !call.is_done_) return false;
      if (call.is_done_ || !Waits::is_main_thread()) continue;
      lock.unlock();
      waits_.run_handlers();
      lock.lock();
    }
    return true;
  }

  // Ends the thread, after the calls in flight.
  void close() {
    // A forked child has the lane of its parent, and not the thread.
    if (getpid() != process_) {
      if (thread_.joinable()) thread_.detach();
      return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    is_closed_ = true;
    while (is_busy_ || !calls_.empty()) {
      if (is_busy_) {
        done_.wait(lock);
      } else {
        run_first(lock);
      }
    }
    changed_.notify_all();
    lock.unlock();
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Queued {
    c10::intrusive_ptr<Call> call;
    // When the thread takes it.
    Clock::time_point due;
  };

  // How long the thread leaves a call to who waits for it: one of many bytes, and any other.
  static constexpr Clock::duration kMoment = std::chrono::microseconds(100), kWhile = std::chrono::milliseconds(1);
  static constexpr int64_t kLong = 256 << 10;
  // How often it looks for calls before it sleeps until it is woken up, which takes time of who does that.
  static constexpr int kLooks = 10;
  // How often a wait for another thread lets signal handlers run.
  static constexpr auto kLook = std::chrono::milliseconds(50);

  // Runs the first call, without the lock.
  void run_first(std::unique_lock<std::mutex>& lock) {
    auto call = std::move(calls_.front().call);
    calls_.pop_front();
    is_busy_ = true;
    lock.unlock();
    call->run(waits_);
    // This may free tensors, which takes the interpreter's lock.
    call.reset();
    lock.lock();
    is_busy_ = false;
    done_.notify_all();
    if (is_asleep_ && !calls_.empty()) changed_.notify_all();
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    int looks = 0;
    while (!is_closed_) {
      if (!is_busy_ && !calls_.empty()) {
        looks = 0;
        if (Clock::now() < calls_.front().due) {
          changed_.wait_until(lock, calls_.front().due);
        } else {
          run_first(lock);
        }
      } else if (++looks < kLooks) {
        changed_.wait_for(lock, kWhile);
      } else {
        is_asleep_ = true;
        changed_.wait(lock);
        is_asleep_ = false;
      }
    }
  }

  Waits& waits_;
  const pid_t process_;
  std::mutex mutex_;
  // The thread sleeps here, and who waits for a call of another thread there.
  std::condition_variable changed_, done_;
  std::deque<Queued> calls_;
  bool is_busy_ = false, is_asleep_ = false, is_closed_ = false;
  std::thread thread_;
};

inline bool Call::wait(std::chrono::milliseconds timeout) {
  if (!is_done_) {
    TORCH_CHECK(lane_->run_until(*this, timeout), "a call was not done in ", timeout.count() / 1e3, " s");
  }
  if (error_) std::rethrow_exception(error_);
  return true;
}

}  // namespace unisono
