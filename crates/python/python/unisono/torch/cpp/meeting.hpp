// Where process groups meet that have no store in common.
#pragma once

#include <netdb.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <random>
#include <sstream>

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

// The name of this machine, if that is an address of it.
inline std::string host_name() {
  char name[256] = {};
  addrinfo* found = nullptr;
  if (gethostname(name, sizeof name - 1) != 0 || getaddrinfo(name, nullptr, nullptr, &found) != 0) return "localhost";
  freeaddrinfo(found);
  return name;
}

// The address of a store that this process serves, and a name that no other process has.
inline std::string handle_of(const c10d::TCPStore& store) {
  std::random_device random;
  return c10::str("unisono ", host_name(), " ", store.getPort(), " ", getpid(), "-", random(), "-", random());
}

// The store that a handle names.
inline c10::intrusive_ptr<c10d::Store> store_at(const std::string& handle, std::chrono::milliseconds timeout) {
  std::istringstream words(handle);
  std::string kind, host;
  c10d::TCPStoreOptions options;
  options.waitWorkers = false;
  options.timeout = timeout;
  words >> kind >> host >> options.port;
  TORCH_CHECK_VALUE(words && kind == "unisono", "reconfigure: this is no handle of a process group of unisono: ", handle);
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace unisono
