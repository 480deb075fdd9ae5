// Point-to-point messages in flight.
#pragma once

#include <optional>
#include <thread>

#include "hooks.hpp"
#include "library.hpp"

namespace unisono {

// The work of a message.
class Message final : public HookedWork {
 public:
  // Creates a message in `buffer`. A received message is copied to `target`.
  Message(
      const c10::intrusive_ptr<c10d::Backend>& group, Waits& waits, const WorkHooks& hooks, c10d::OpType type, at::Tensor buffer,
      at::Tensor target, int source)
      : HookedWork(group, hooks, type), nbytes(buffer.nbytes()), waits_(waits), buffer_(std::move(buffer)), target_(std::move(target)),
        source_(source) {}

  const size_t nbytes;

  // Returns pointers to the request and to the rank of the sender, which the library sets.
  unisono_request** request() { return &request_; }
  int* source() { return &source_; }

  void* data() const { return buffer_.data_ptr(); }

  bool isCompleted() override {
    // A signal handler may have interrupted a wait of this thread, which holds the lock.
    if (is_done_ || waits_.are_interrupted()) return is_done_;
    const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (turn.owns_lock() && !is_done_) {
      int is_done = 0;
      if (unisono_test(request_, &is_done) != UNISONO_OK || is_done != 0) complete();
    }
    return is_done_;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    const auto held = group();
    TORCH_CHECK(is_done_ || !waits_.are_interrupted(), kInterrupted);
    const std::unique_lock<std::mutex> turn(turn_);
    if (!is_done_) {
      const double limit_s = timeout.count() == 0 ? kForever_s : timeout.count() / 1e3;
      int is_done = 0;
      waits_.during([&] { check(unisono_wait_for(request_, limit_s, &is_done)); });
      TORCH_CHECK(is_done != 0, "timeout: a message was not done in ", limit_s, " s");
      complete();
    }
    if (exception_) std::rethrow_exception(exception_);
    return true;
  }

  int sourceRank() const override { return source_; }

  // A later failure of this message is not reported as a failure of the process group.
  void abandon() { is_abandoned_ = true; }

 private:
  // Longer than the deadline of any message.
  static constexpr double kForever_s = 1e9;

  void complete() {
    // PyTorch polls with the interpreter's lock held. A hook of a failure waits for a thread that needs it.
    std::optional<pybind11::gil_scoped_release> released;
    if (PyGILState_Check() != 0) released.emplace();
    complete_by([&] {
      check(unisono_wait(&request_));
      if (target_.defined() && !target_.is_same(buffer_)) target_.copy_(buffer_);
    }, is_abandoned_);
    buffer_.reset();
    target_.reset();
    is_done_ = true;
  }

  Waits& waits_;
  at::Tensor buffer_, target_;
  int source_;
  unisono_request* request_ = nullptr;
  std::mutex turn_;
  std::atomic<bool> is_done_{false}, is_abandoned_{false};
};

// The messages in flight. They are kept until they are done, since the library uses their memory even if the program drops their
// works.
class Messages {
 public:
  void add(c10::intrusive_ptr<Message> message) {
    bytes_ += message->nbytes;
    if (kept_.size() >= limit_ || bytes_ >= limit_bytes_) {
      const auto is_done = [](const auto& kept) { return kept->isCompleted(); };
      kept_.erase(std::remove_if(kept_.begin(), kept_.end(), is_done), kept_.end());
      bytes_ = message->nbytes;
      for (const auto& kept : kept_) bytes_ += kept->nbytes;
      // Twice the messages in flight, so that the time per message does not grow with them.
      limit_ = 2 * kept_.size() + kMany;
      limit_bytes_ = 2 * bytes_ + kManyBytes;
    }
    kept_.push_back(std::move(message));
  }

  bool are_done() {
    return std::all_of(kept_.begin(), kept_.end(), [](const auto& message) { return message->isCompleted(); });
  }

  void abandon() {
    for (const auto& message : kept_) message->abandon();
  }

  // Waits until all messages are done, successful or not.
  void settle() {
    for (const auto& message : kept_) {
      while (!message->isCompleted()) std::this_thread::yield();
    }
    kept_.clear();
  }

 private:
  static constexpr size_t kMany = 256, kManyBytes = 1 << 20;
  std::vector<c10::intrusive_ptr<Message>> kept_;
  // The bytes of the kept messages, and the numbers of messages and bytes at which the completed ones are removed.
  size_t bytes_ = 0, limit_ = kMany, limit_bytes_ = kManyBytes;
};

}  // namespace unisono
