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
inline std::string common_name(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout, Waits& waits) {
  const std::string place = "unisono/", own = unique_name();
  const auto deadline = Clock::now() + timeout;
  const auto check_joined = [&](bool has_joined, int other) {
    TORCH_CHECK(has_joined, "timeout: rank ", other, " has not joined the process group within ", timeout.count() / 1e3, " s");
  };
  if (rank != 0) {
    set_text(store, c10::str(place, "rank/", rank), own);
    check_joined(is_set(store, place + "answer/" + own, deadline, waits), 0);
    const auto name = text_at(store, place + "answer/" + own);
    set_text(store, c10::str(name, "/here/", rank), "here");
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
      if (store.check({c10::str(name, "/here/", other)})) {
        at = missing.erase(at);
        continue;
      }
      const auto introduced = c10::str(place, "rank/", other);
      if (store.check({introduced})) {
        const auto now = text_at(store, introduced);
        if (now != answered) set_text(store, place + "answer/" + now, name);
        answered = now;
      }
      at++;
    }
    if (missing.empty()) break;
    check_joined(Clock::now() < deadline, missing.begin()->first);
    waits.run_handlers();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  set_text(store, name + "/all", "here");
  return name;
}

// Returns the store that a handle names.
inline c10::intrusive_ptr<c10d::Store> store_at(const std::string& handle, std::chrono::milliseconds timeout) {
  std::istringstream words(handle);
  std::string kind, host;
  c10d::TCPStoreOptions options;
  options.waitWorkers = false;
  options.timeout = timeout;
  words >> kind >> host >> options.port;
  TORCH_CHECK_VALUE(words && kind == "unisono", "reconfigure: expected a handle of a process group of unisono, got `", handle, "`");
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

// A barrier in a store, at `place`, a prefix of keys that no other barrier uses. After a timeout, the communicator remains usable, and
// rank 0 names the missing ranks. The error texts are gloo's.
inline void monitored_barrier(
    c10d::Store& store, const std::string& place, int rank, int size, std::chrono::milliseconds timeout, bool names_all, Waits& waits) {
  TORCH_CHECK(timeout.count() != 0, "Rank ", rank, " timed out in monitoredBarrier, whose timeout is 0");
  const auto deadline = Clock::now() + timeout;
  const std::vector<uint8_t> here{'='};
  store.set(place + std::to_string(rank), here);
  if (rank != 0) {
    TORCH_CHECK(
        is_set(store, place + "go", deadline, waits), "Rank ", rank,
        " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0");
    return;
  }
  std::string missing;
  for (int other = 1; other < size && (names_all || missing.empty()); other++) {
    if (is_set(store, place + std::to_string(other), deadline, waits)) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(other);
  }
  TORCH_CHECK(
      missing.empty(), names_all ? "Ranks " : "Rank ", missing, " failed to pass monitoredBarrier in ", timeout.count(), " ms");
  store.set(place + "go", here);
}

}  // namespace unisono
