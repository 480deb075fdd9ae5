// How the ranks of a process group find each other, and what they do by its store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <numeric>

#include "lane.hpp"
#include "meeting.hpp"
#include "message.hpp"

namespace unisono {

// The ranks of a process group: a communicator for collectives, and one for messages, so that a message starts while a collective runs.
class World {
 public:
  // Starts a world of ranks that share a store.
  World(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
    const auto name = common_name(store, rank, size, timeout, waits_);
    unisono_settings settings{};
    settings.timeout_s = timeout.count() / 1e3;
    Keys keys{store, timeout, {}};
    waits_.during([&] {
      const int code = unisono_start_store(rank, size, name.c_str(), set, get, &keys, &settings, &calls_);
      if (code != UNISONO_OK && !keys.error.empty()) C10_THROW_ERROR(DistStoreError, unisono_last_error() + (": " + keys.error));
      check(code);
      if (size == 1) return;
      std::vector<int> ranks(size);
      std::iota(ranks.begin(), ranks.end(), 0);
      check(unisono_group(calls_, ranks.data(), ranks.size(), &messages_));
    });
    is_one_node_ = unisono_nodes(calls_) == 1;
  }

  World(const World&) = delete;

  ~World() { leave(""); }

  // Leaves the world after the collectives in flight; with a cause, at once: what is in flight fails, here and on other ranks, which learn
  // it.
  void leave(const std::string& cause) {
    if (!cause.empty()) waits_.end(cause);
    lane_->close();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (calls_ == nullptr) return;
    const bool are_done = in_flight_.are_done();
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
  Lane& lane() { return *lane_; }
  unisono_comm* calls() const { return calls_; }
  bool is_one_node() const { return is_one_node_; }

 private:
  struct Keys {
    c10d::Store& store;
    // The store's own may be longer.
    std::chrono::milliseconds timeout;
    std::string error;
  };

  // Uses the store; what it throws must not pass through the library.
  template <typename Use>
  static int with(void* context, Use use) {
    auto& keys = *static_cast<Keys*>(context);
    try {
      return use(keys);
    } catch (const std::exception& error) {
      keys.error = error.what();
    }
    return 1;
  }

  // A store need not take an empty value: values have a byte before them.
  static int set(void* context, const char* key, const void* value, size_t size_bytes) {
    return with(context, [&](const Keys& keys) {
      const auto* bytes = static_cast<const uint8_t*>(value);
      std::vector<uint8_t> stored(1 + size_bytes, '=');
      std::copy(bytes, bytes + size_bytes, stored.begin() + 1);
      keys.store.set(key, stored);
      return 0;
    });
  }

  static int get(void* context, const char* key, void* value, size_t* size_bytes) {
    return with(context, [&](const Keys& keys) {
      keys.store.wait({key}, keys.timeout);
      const auto stored = keys.store.get(key);
      if (stored.empty() || stored.size() - 1 > *size_bytes) return 2;
      *size_bytes = stored.size() - 1;
      std::copy(stored.begin() + 1, stored.end(), static_cast<uint8_t*>(value));
      return 0;
    });
  }

  Waits waits_;
  const std::shared_ptr<Lane> lane_ = std::make_shared<Lane>(waits_);
  std::mutex mutex_;
  unisono_comm* calls_ = nullptr;
  unisono_comm* messages_ = nullptr;
  Messages in_flight_;
  bool is_one_node_ = true;
};

// Whether a key is set within a time.
inline bool is_set(c10d::Store& store, const std::string& key, std::chrono::milliseconds timeout) {
  try {
    store.wait({key}, timeout);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// The barrier of this number in a store: it loses no communicator, and rank 0 says which ranks are missing. Texts are gloo's.
inline void monitored_barrier(
    c10d::Store& store, int rank, int size, uint64_t number, std::chrono::milliseconds timeout, bool names_all) {
  const std::string place = "unisono/monitored/" + std::to_string(number) + "/";
  TORCH_CHECK(timeout.count() != 0, "Rank ", rank, " timed out in monitoredBarrier, whose timeout is 0");
  const std::vector<uint8_t> here{'='};
  store.set(place + std::to_string(rank), here);
  if (rank != 0) {
    TORCH_CHECK(
        is_set(store, place + "go", timeout), "Rank ", rank,
        " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0");
    return;
  }
  std::string missing;
  for (int other = 1; other < size && (names_all || missing.empty()); other++) {
    if (!is_set(store, place + std::to_string(other), timeout)) missing += (missing.empty() ? "" : ", ") + std::to_string(other);
  }
  TORCH_CHECK(
      missing.empty(), names_all ? "Ranks " : "Rank ", missing, " failed to pass monitoredBarrier in ", timeout.count(), " ms");
  store.set(place + "go", here);
}

}  // namespace unisono
