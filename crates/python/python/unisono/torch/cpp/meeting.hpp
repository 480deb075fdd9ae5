// The rendezvous of ranks through a key-value store of the program, or through one that a rank serves.
#pragma once

#include <netdb.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <sstream>
#include <thread>
#include <tuple>

#include "library.hpp"

namespace unisono {

// A store that this process serves, on a port that the system chooses.
inline c10::intrusive_ptr<c10d::TCPStore> served_store() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("localhost", options);
}

// Returns the name of this machine, if it resolves to an address.
inline std::string host_name() {
  char name[256] = {};
  addrinfo* found = nullptr;
  if (gethostname(name, sizeof name - 1) != 0 || getaddrinfo(name, nullptr, nullptr, &found) != 0) return "localhost";
  freeaddrinfo(found);
  return name;
}

// Returns a unique name.
inline std::string unique_name() {
  std::random_device random;
  return c10::str(getpid(), "-", random(), "-", random());
}

// Returns the address of a store that this process serves, with a unique name.
inline std::string handle_of(const c10d::TCPStore& store) {
  return c10::str("unisono ", host_name(), " ", store.getPort(), " ", unique_name());
}

inline std::string text_at(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

inline void set_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

// Deletes a key that no rank reads any more. A store that cannot delete keeps it.
inline void discard(c10d::Store& store, const std::string& key) {
  try {
    store.deleteKey(key);
  } catch (const std::exception&) {
  }
}

// Waits for a key, and runs signal handlers meanwhile. Returns whether it is set before the deadline. It polls with longer and longer
// pauses, since `Store::wait` runs no handlers, and a TCPStore prints warnings when a short one times out.
inline bool is_set(c10d::Store& store, const std::string& key, Clock::time_point deadline, Waits& waits) {
  for (auto pause = std::chrono::milliseconds(1); !store.check({key}); pause = std::min(2 * pause, kSignalInterval)) {
    if (Clock::now() >= deadline) return false;
    waits.run_handlers();
    std::this_thread::sleep_for(pause);
  }
  return true;
}

// Returns the name of a new world on all of its ranks. The store may have keys of former ranks that an elastic launcher has
// replaced. So rank 0 chooses the name, and answers the request of each rank until all have read it. An error names a missing rank.
// Adds the keys to `keys` that the program deletes once all ranks have the name.
inline std::string common_name(
    c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout, Waits& waits, std::vector<std::string>& keys) {
  const std::string place = "unisono/", own = unique_name();
  const auto deadline = Clock::now() + timeout;
  const auto set = [&](const std::string& key, const std::string& text) {
    set_text(store, key, text);
    keys.push_back(key);
  };
  const auto check_joined = [&](bool has_joined, int other) {
    TORCH_CHECK(has_joined, "timeout: rank ", other, " has not joined the process group within ", timeout.count() / 1e3, " s");
  };
  if (rank != 0) {
    set_text(store, c10::str(place, "rank/", rank), own);
    check_joined(is_set(store, place + "answer/" + own, deadline, waits), 0);
    const auto name = text_at(store, place + "answer/" + own);
    set(c10::str(name, "/here/", rank), "here");
    if (!is_set(store, name + "/all", deadline, waits)) {
      int missing = 1;
      while (missing < size && store.check({c10::str(name, "/here/", missing)})) missing++;
      check_joined(false, missing % size);
    }
    return name;
  }
  const auto name = place + own;
  // The ranks that have not read it, and the name by which each was answered.
  std::map<int, std::string> missing;
  for (int other = 1; other < size; other++) missing[other];
  while (true) {
    // A missing rank delays no answer to another.
    for (auto at = missing.begin(); at != missing.end();) {
      auto& [other, answered] = *at;
      const auto introduced = c10::str(place, "rank/", other);
      if (store.check({c10::str(name, "/here/", other)})) {
        // Before this world starts: after that, the rank may set the key again for its next one.
        discard(store, introduced);
        at = missing.erase(at);
        continue;
      }
      if (store.check({introduced})) {
        const auto now = text_at(store, introduced);
        if (now != answered) set(place + "answer/" + now, name);
        answered = now;
      }
      at++;
    }
    if (missing.empty()) break;
    check_joined(Clock::now() < deadline, missing.begin()->first);
    waits.run_handlers();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  set(name + "/all", "here");
  return name;
}

// Returns the address of the store that a handle names.
inline std::pair<std::string, uint16_t> address_in(const std::string& handle) {
  std::istringstream words(handle);
  std::string kind, host;
  uint16_t port = 0;
  words >> kind >> host >> port;
  TORCH_CHECK(words && kind == "unisono", "reconfigure: expected a handle of a process group of unisono, got `", handle, "`");
  return {host, port};
}

// Connects to the store that rank 0's handle names.
inline c10::intrusive_ptr<c10d::Store> store_at(const std::string& handle, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.waitWorkers = false;
  // PyTorch may connect twice, each time with this timeout.
  options.timeout = timeout / 2;
  std::string host;
  std::tie(host, options.port) = address_in(handle);
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    store->setTimeout(timeout);
    return store;
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "rank 0 has not joined the process group, since its store cannot be reached: ", error.what_without_backtrace());
  }
}

// Barriers of the ranks of a world in a store. After a timeout, the communicator remains usable, and rank 0 names the missing ranks. A call that
// times out on a rank counts: its next call is the next barrier. The error texts are gloo's.
class StoreBarriers {
 public:
  // Waits for all ranks. `prefix` is that of the keys.
  void wait(
      c10d::Store& store, const std::string& prefix, int rank, int size, std::chrono::milliseconds timeout, bool names_all, Waits& waits) {
    TORCH_CHECK(timeout.count() != 0, "Rank ", rank, " timed out in monitoredBarrier, whose timeout is 0");
    const auto deadline = Clock::now() + timeout;
    std::string place, result;
    do {
      place = c10::str(prefix, ++number_, "/");
      result = place + "result";
      // A barrier that has a result without this rank has failed.
    } while (rank != 0 && store.check({result}));
    if (rank != 0) {
      const auto own = place + std::to_string(rank);
      set_text(store, own, "here");
      const bool is_done = is_set(store, result, deadline, waits);
      const bool has_passed = is_done && text_at(store, result) == kPassed;
      // Rank 0 may still read it before it sets the result.
      if (is_done) discard(store, own);
      TORCH_CHECK(
          has_passed, "Rank ", rank, " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0");
      return;
    }
    std::string missing;
    for (int other = 1; other < size && (names_all || missing.empty()); other++) {
      if (is_set(store, place + std::to_string(other), deadline, waits)) continue;
      missing += (missing.empty() ? "" : ", ") + std::to_string(other);
    }
    set_text(store, result, missing.empty() ? kPassed : "failed");
    // All ranks have reached this barrier, and read no earlier result.
    if (missing.empty()) {
      for (const auto& earlier : std::exchange(results_, {})) discard(store, earlier);
    }
    results_.push_back(result);
    TORCH_CHECK(
        missing.empty(), names_all ? "Ranks " : "Rank ", missing, " failed to pass monitoredBarrier in ", timeout.count(), " ms");
  }

 private:
  static constexpr auto kPassed = "passed";
  uint64_t number_ = 0;
  // The keys of results that ranks may still read, on rank 0.
  std::vector<std::string> results_;
};

}  // namespace unisono
