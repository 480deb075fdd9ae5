// Calls of the library, with errors as exceptions and with waits that can be cancelled.
#pragma once

#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "unisono.h"

namespace unisono {

using Clock = std::chrono::steady_clock;

constexpr auto kShutDown = "the process group was shut down";

constexpr auto kInterrupted =
    "the signal handler has interrupted a call of this process group, and cannot make another one: set a flag, or raise an exception";

// The interval at which a waiting thread acquires the interpreter's lock to run signal handlers.
constexpr auto kSignalInterval = std::chrono::milliseconds(50);

// The refusal of a call, which has not started. Python gets a RuntimeError, as from gloo.
class Refusal final : public c10::Error {
 public:
  using Error::Error;
};

// Throws the last error of this thread, if a function has returned one.
inline void check(int code) {
  if (code == UNISONO_OK) return;
  const std::string text = unisono_last_error();
  if (code == UNISONO_ERROR_ARGUMENT) throw Refusal(c10::SourceLocation{__func__, __FILE__, __LINE__}, text);
  C10_THROW_ERROR(DistBackendError, text);
}

// Cancellation of waits by another thread, or by an exception of a Python signal handler such as KeyboardInterrupt. A wait on
// Python's main thread runs the handlers.
class Waits {
 public:
  // Records Python's main thread. Another thread may load the module.
  static void record_main_thread() {
    const auto thread = pybind11::module_::import("threading").attr("main_thread")();
    main_thread() = static_cast<pthread_t>(thread.attr("ident").cast<unsigned long>());
  }

  static bool is_main_thread() { return pthread_equal(main_thread(), pthread_self()) != 0; }

  // Ends all current and later waits of all threads. The first cause is kept.
  void end(const std::string& cause) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_ended_) return;
    cause_ = cause;
    has_ended_ = true;
  }

  // Returns whether this thread runs a signal handler that has interrupted a call of the library.
  bool are_interrupted() const {
    const auto* call = current();
    while (call != nullptr && call->waits != this) call = call->outer;
    return call != nullptr;
  }

  // Makes calls of the library on this thread. `rethrow_raised` throws an exception of a handler.
  template <typename Calls>
  void in_call(Calls calls) {
    const InCall here{this, current()};
    current() = &here;
    unisono_while_waiting(poll);
    try {
      calls();
    } catch (...) {
      leave(here);
      throw;
    }
    leave(here);
  }

  // Makes calls of the library on this thread. Throws an exception of a handler instead of the error that follows from it.
  template <typename Calls>
  void during(Calls calls) {
    try {
      in_call(std::move(calls));
    } catch (...) {
      rethrow_raised();
      throw;
    }
    rethrow_raised();
  }

  // Runs signal handlers, if this is Python's main thread. An exception of a handler ends all waits. `rethrow_raised` throws it.
  void poll_handlers() {
    // The handlers interrupt a call, even if another thread carries it out.
    const InCall here{this, current()};
    current() = &here;
    const char* text = run_handlers_quietly();
    leave(here);
    if (text != nullptr) end(text);
  }

  // Like `poll_handlers`, but throws the exception, or the cause for which the waits have ended.
  void run_handlers() {
    poll_handlers();
    rethrow_raised();
    if (has_ended_) C10_THROW_ERROR(DistBackendError, cause_);
  }

  // Throws the exception that a handler has raised during the calls of this thread, once. Works do not store it: Python accepts an
  // exception object once, and the program may wait for any work.
  static void rethrow_raised() {
    if (raised()) std::rethrow_exception(std::exchange(raised(), nullptr));
  }

  // Discards that exception, for a destructor, which cannot throw it.
  static void discard_raised() { raised() = nullptr; }

 private:
  // A call on this thread, and the one that it interrupts: a signal handler may use another process group.
  struct InCall {
    const Waits* waits;
    const InCall* outer;
  };

  static pthread_t& main_thread() {
    static pthread_t thread;
    return thread;
  }

  static const InCall*& current() {
    static thread_local const InCall* call = nullptr;
    return call;
  }

  static std::exception_ptr& raised() {
    static thread_local std::exception_ptr raised;
    return raised;
  }

  static void leave(const InCall& call) {
    current() = call.outer;
    if (call.outer == nullptr) unisono_while_waiting(nullptr);
  }

  static const char* poll() {
    const Waits* waits = current()->waits;
    static thread_local Clock::time_point polled_at;
    if (!waits->has_ended_ && Clock::now() - polled_at >= kSignalInterval) {
      polled_at = Clock::now();
      if (const char* text = run_handlers_quietly()) return text;
    }
    // A handler may have ended the waits.
    return waits->has_ended_ ? waits->cause_.c_str() : nullptr;
  }

  // Returns the text of a handler's exception.
  static const char* run_handlers_quietly() {
    static thread_local std::string text;
    if (!is_main_thread()) return nullptr;
    const pybind11::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() == 0) return nullptr;
    pybind11::error_already_set error;
    text = error.what();
    raised() = std::make_exception_ptr(std::move(error));
    return text.c_str();
  }

  std::mutex mutex_;
  std::string cause_;
  std::atomic<bool> has_ended_{false};
};

}  // namespace unisono
