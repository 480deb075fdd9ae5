// The communicators of a process group.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <numeric>

#include "queue.hpp"
#include "meeting.hpp"
#include "message.hpp"

namespace unisono {

// The ranks of a process group. It has separate communicators for collectives and for messages, so that a message can start while a
// collective runs.
class World {
 public:
  // Starts a world of ranks that share a store.
  World(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout, const WorkHooks& hooks)
      : queue_(std::make_shared<CallQueue>(waits_, hooks)) {
    unisono_settings settings{};
    settings.timeout_s = timeout.count() / 1e3;
    Keys keys{store, waits_, timeout};
    name_ = common_name(store, rank, size, timeout, waits_, keys.own);
    try {
      waits_.during([&] {
        const int code = unisono_start_store(rank, size, name_.c_str(), set, get, &keys, &settings, &calls_);
        if (code != UNISONO_OK && keys.error) std::rethrow_exception(keys.error);
        check(code);
        if (size == 1) return;
        std::vector<int> ranks(size);
        std::iota(ranks.begin(), ranks.end(), 0);
        check(unisono_group(calls_, ranks.data(), ranks.size(), &messages_));
      });
    } catch (...) {
      unisono_free(messages_);
      unisono_free(calls_);
      throw;
    }
    // The start of `messages_` has waited for all ranks, which have read these keys before.
    for (const auto& key : keys.own) discard(store, key);
    is_one_node_ = unisono_nodes(calls_) == 1;
  }

  World(const World&) = delete;

  ~World() { leave(""); }

  // Returns whether this thread runs a signal handler that has interrupted a call.
  bool is_interrupted() const { return waits_.are_interrupted(); }

  // Returns whether no call is in flight.
  bool is_idle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return queue_->is_idle() && in_flight_.are_done();
  }

  // Leaves the world after the collectives in flight or, with a cause, immediately. Calls in flight then fail with this cause, on this
  // rank and on others.
  void leave(const std::string& cause) {
    // The interrupted call cannot end before this returns. So it fails, and the process group leaves when it is destroyed.
    if (is_interrupted()) {
      waits_.end(cause.empty() ? kShutDown : cause);
      return;
    }
    if (!cause.empty()) waits_.end(cause);
    queue_->close();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (calls_ == nullptr) return;
    // Another rank may have left already, which ends a message without a counterpart.
    if (cause.empty()) in_flight_.abandon();
    bool are_done = in_flight_.are_done();
    // The thread that drives messages may not have detected yet that the receiver has one.
    for (int naps = 0; !are_done && cause.empty() && naps < 100; naps++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      are_done = in_flight_.are_done();
    }
    if (!cause.empty()) unisono_fail(calls_, cause.c_str());
    if (!are_done) unisono_fail(messages_, cause.empty() ? kShutDown : cause.c_str());
    in_flight_.settle();
    unisono_free(std::exchange(messages_, nullptr));
    unisono_free(std::exchange(calls_, nullptr));
  }

  // Starts a message: `make` passes it to the library.
  template <typename Make>
  void send(const c10::intrusive_ptr<Message>& message, Make make) {
    const std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(messages_ != nullptr, kShutDown);
    check(make(messages_));
    in_flight_.add(message);
  }

  Waits& waits() { return waits_; }
  CallQueue& queue() { return *queue_; }
  unisono_comm* calls() const { return calls_; }
  bool is_one_node() const { return is_one_node_; }

  // Waits for all ranks at a barrier in the store.
  void monitored_barrier(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout, bool names_all) {
    barriers_.wait(store, name_ + "/monitored/", rank, size, timeout, names_all, waits_);
  }

 private:
  struct Keys {
    c10d::Store& store;
    Waits& waits;
    // The timeout of the store may be longer.
    std::chrono::milliseconds timeout;
    // The keys that this rank has set.
    std::vector<std::string> own = {};
    std::exception_ptr error = nullptr;
  };

  // Uses the store. Its exceptions are caught, since they must not pass through the library.
  template <typename Use>
  static int with(void* context, Use use) {
    auto& keys = *static_cast<Keys*>(context);
    try {
      return use(keys);
    } catch (...) {
      keys.error = std::current_exception();
    }
    return 1;
  }

  // A store may not accept an empty value, so values are prefixed with a byte.
  static int set(void* context, const char* key, const void* value, size_t size_bytes) {
    return with(context, [&](Keys& keys) {
      const auto* bytes = static_cast<const uint8_t*>(value);
      std::vector<uint8_t> stored(1 + size_bytes, '=');
      std::copy(bytes, bytes + size_bytes, stored.begin() + 1);
      keys.store.set(key, stored);
      keys.own.push_back(key);
      return 0;
    });
  }

  static int get(void* context, const char* key, void* value, size_t* size_bytes) {
    return with(context, [&](const Keys& keys) {
      if (!is_set(keys.store, key, Clock::now() + keys.timeout, keys.waits)) {
        C10_THROW_ERROR(DistStoreError, c10::str("timeout: no rank has set the key `", key, "` within ", keys.timeout.count() / 1e3, " s"));
      }
      const auto stored = keys.store.get(key);
      if (stored.empty() || stored.size() - 1 > *size_bytes) return 2;
      *size_bytes = stored.size() - 1;
      std::copy(stored.begin() + 1, stored.end(), static_cast<uint8_t*>(value));
      return 0;
    });
  }

  Waits waits_;
  const std::shared_ptr<CallQueue> queue_;
  // Unique, so keys of the store that it prefixes are new.
  std::string name_;
  StoreBarriers barriers_;
  std::mutex mutex_;
  unisono_comm* calls_ = nullptr;
  unisono_comm* messages_ = nullptr;
  Messages in_flight_;
  bool is_one_node_ = true;
};

}  // namespace unisono
