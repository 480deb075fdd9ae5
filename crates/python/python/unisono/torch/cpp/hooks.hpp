// PyTorch's completion hooks of works, which its flight recorder uses.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "library.hpp"

namespace unisono {

// Functions by number. They run without the lock: a function may acquire a lock that a thread holds while it adds or removes
// functions.
template <typename... Args>
class Hooks {
 public:
  using Hook = std::function<void(Args...)>;

  void add(int64_t id, Hook hook) {
    change([&](auto& hooks) { hooks[id] = std::move(hook); });
  }

  void remove(int64_t id) {
    change([&](auto& hooks) { hooks.erase(id); });
  }

  void run(Args... args) const {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto hooks = hooks_;
    lock.unlock();
    for (const auto& [id, hook] : *hooks) {
      // An exception of a hook must not replace the result of the call.
      try {
        hook(args...);
      } catch (const std::exception& error) {
        TORCH_WARN("a completion hook failed: ", error.what());
      }
    }
  }

 private:
  using All = std::map<int64_t, Hook>;

  template <typename Change>
  void change(Change change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    All hooks = *hooks_;
    change(hooks);
    hooks_ = std::make_shared<const All>(std::move(hooks));
  }

  mutable std::mutex mutex_;
  std::shared_ptr<const All> hooks_ = std::make_shared<const All>();
};

// The hooks of a process group.
struct WorkHooks {
  // Called with the key of the work.
  Hooks<uint64_t> succeeded;
  Hooks<> failed;
};

// A work that runs the hooks of its process group when it ends.
class HookedWork : public c10d::Work {
 public:
  HookedWork(const c10::intrusive_ptr<c10d::Backend>& group, const WorkHooks& hooks, c10d::OpType type)
      : Work(-1, type), group_(group), hooks_(hooks) {}

  // Overrides a function of PyTorch 2.15. The key is not the address of the work, which a later work may have.
  uint64_t getCompletionKey() const { return key_; }

 protected:
  // Returns the process group, unless it is destroyed. A wait holds it, since a signal handler may drop it meanwhile.
  c10::intrusive_ptr<c10d::Backend> group() const { return group_.lock(); }

  // Completes the work. `make` makes its call, whose exception is the result, and a failure of the process group unless the work is abandoned.
  template <typename Make>
  void complete_by(Make make, bool is_abandoned = false) {
    std::exception_ptr error;
    try {
      // As for the outputs of any call, autograd does not track the change of the tensors' values.
      const at::AutoDispatchBelowADInplaceOrView guard;
      make();
    } catch (const Refusal&) {
      error = std::current_exception();
    } catch (...) {
      error = std::current_exception();
      if (!is_abandoned) hooks_.failed.run();
    }
    finish(error);
    // The hooks run after the completion, since PyTorch polls a new work once and then waits for the hook.
    if (!error) hooks_.succeeded.run(key_);
  }

 private:
  static uint64_t next_key() {
    static std::atomic<uint64_t> next{0};
    return next++;
  }

  const c10::weak_intrusive_ptr<c10d::Backend> group_;
  const WorkHooks& hooks_;
  const uint64_t key_ = next_key();
};

}  // namespace unisono
