// A process group: its ranks, messages, the start of calls, and its end.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

#include <algorithm>
#include <map>
#include <set>

#include "meeting.hpp"
#include "tensors.hpp"
#include "world.hpp"

namespace unisono {

using c10d::OpType;
using c10d::Work;
using Milliseconds = std::chrono::milliseconds;

// The work of a call that completed immediately.
class Done final : public Work {
 public:
  Done() { finish(); }
};

// All of a backend except its collectives.
class Group : public c10d::Backend {
 public:
  // A `reconfigurable` process group has no ranks until it is reconfigured.
  Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, Milliseconds timeout, bool reconfigurable)
      : c10d::Backend(rank, size), store_(std::move(store)), timeout_(timeout) {
    if (!reconfigurable) world_ = std::make_shared<World>(*store_, rank, size, timeout, hooks_);
  }

  // Records a new process group as open.
  static c10::intrusive_ptr<c10d::Backend> opened(const c10::intrusive_ptr<Group>& group) {
    const std::lock_guard<std::mutex> lock(alive_mutex());
    alive().emplace(group.get(), group);
    return group;
  }

  // Leaves the world after the calls in flight, once. The destructor of the derived class calls this, since these calls use its members.
  void end() {
    const bool has_lock = PyGILState_Check() != 0;
    PyThreadState* state = has_lock ? PyEval_SaveThread() : nullptr;
    leave("");
    Waits::discard_raised();
    {
      const std::lock_guard<std::mutex> lock(alive_mutex());
      alive().erase(this);
    }
    if (has_lock) PyEval_RestoreThread(state);
  }

  // Leaves all worlds of the process.
  static void leave_all(const std::string& cause) {
    // A callback of a call may drop the last reference of the program.
    std::vector<c10::intrusive_ptr<Group>> groups;
    {
      const std::lock_guard<std::mutex> lock(alive_mutex());
      for (const auto& [address, group] : alive()) groups.push_back(group.lock());
    }
    for (const auto& group : groups) {
      if (group) group->leave(cause);
    }
    CallQueue::join_ending();
    Waits::rethrow_raised();
  }

  const std::string getBackendName() const override { return "unisono"; }

  uint64_t getSequenceNumberForGroup() override { return collectives_; }

  void setTimeout(Milliseconds timeout) override { timeout_ = timeout; }

  bool supportsSplitting() const override { return true; }

  c10::intrusive_ptr<Options> getBackendOptions() override { return c10::make_intrusive<Options>(getBackendName(), timeout_.load()); }

  // Leaves the world after the calls in flight.
  void shutdown() override {
    leave("");
    Waits::rethrow_raised();
  }

  // Leaves the world immediately: calls in flight fail, on this rank and on others.
  void abort() override {
    leave("the process group was aborted");
    Waits::rethrow_raised();
  }

  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    const auto timeout = opts.timeout == c10d::kUnsetTimeout ? timeout_.load() : opts.timeout;
    world().monitored_barrier(*store_, rank_, size_, timeout, wait_all_ranks);
  }

  // Messages.

  c10::intrusive_ptr<Work> send(Tensors& tensors, int to, int tag) override {
    const at::Tensor buffer = packed(dense(tensors.at(0)));
    return start(OpType::SEND, buffer, {}, to, tag, [to](auto* comm, Message& message, size_t count, int dtype, const auto* call) {
      return unisono_send_async(comm, message.data(), count, dtype, to, call, message.request());
    });
  }

  c10::intrusive_ptr<Work> recv(Tensors& tensors, int from, int tag) override {
    const at::Tensor target = written(tensors.at(0)), buffer = packed(target);
    return start(OpType::RECV, buffer, target, from, tag, [from](auto* comm, Message& message, size_t count, int dtype, const auto* call) {
      return unisono_receive_async(comm, message.data(), count, dtype, from, call, message.request());
    });
  }

  c10::intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override {
    TORCH_CHECK(size_ > 1, "a process group of one rank has no messages to receive");
    const at::Tensor target = written(tensors.at(0)), buffer = packed(target);
    return start(
        OpType::RECVANYSOURCE, buffer, target, -1, tag, [](auto* comm, Message& message, size_t count, int dtype, const auto* call) {
          return unisono_receive_any_async(comm, message.data(), count, dtype, message.source(), call, message.request());
        });
  }

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // Reconfiguration: PyTorch's interface for jobs that lose ranks and add new ones.

  bool supportsReconfigure() const override { return true; }

  // Returns a name of this process group, and the address of a store that it serves.
  c10d::ReconfigureHandle get_reconfigure_handle() const override {
    const std::lock_guard<std::mutex> lock(handle_mutex_);
    if (handle_.empty()) {
      meeting_ = served_store();
      handle_ = handle_of(*meeting_);
    }
    return handle_;
  }

  // Leaves the world, whose calls in flight fail, and starts a new one of the process groups with these handles, in this order, over the
  // store of the first.
  // All of them call it with a `uuid` that this process group has not used.
  c10::intrusive_ptr<Work> reconfigure(const c10d::ReconfigureOptions& opts) override {
    auto handles = std::visit([](const auto& all) { return std::vector<std::string>(all.begin(), all.end()); }, opts.handles);
    // Sorted, since a set is unordered.
    if (opts.handles.index() == 0) std::sort(handles.begin(), handles.end());
    for (const auto& handle : handles) address_in(handle);
    TORCH_CHECK(std::set(handles.begin(), handles.end()).size() == handles.size(), "reconfigure: two of the handles are equal");
    const auto own = std::find(handles.begin(), handles.end(), get_reconfigure_handle());
    TORCH_CHECK(own != handles.end(), "reconfigure: this rank's handle is not among the ", handles.size(), " handles");
    TORCH_CHECK(!world_ || !world_->is_interrupted(), kInterrupted);
    TORCH_CHECK(uuids_.insert(opts.uuid).second, "reconfigure: the uuid ", opts.uuid, " is already used");
    // Ranks that have left would delay the calls in flight until their own timeout.
    leave(!world_ || world_->is_idle() ? "" : "the process group was reconfigured");
    Waits::rethrow_raised();
    world_ = nullptr;
    rank_ = static_cast<int>(own - handles.begin());
    size_ = static_cast<int>(handles.size());
    const auto timeout = opts.timeout.value_or(timeout_.load());
    store_ = c10::make_intrusive<c10d::PrefixStore>(std::to_string(opts.uuid), store_at(handles.front(), timeout));
    world_ = std::make_shared<World>(*store_, rank_, size_, timeout, hooks_);
    return c10::make_intrusive<Done>();
  }
#endif

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  // Completion hooks of calls and messages. PyTorch's flight recorder uses them, and writes a dump when a call fails.

  bool supportsCompletionHooks() const override { return true; }

  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override {
    hooks_.succeeded.add(id, [hook = std::move(hook)](uint64_t key) { hook({key, std::nullopt}); });
  }

  void unregisterCompletionHook(int64_t id) override { hooks_.succeeded.remove(id); }

  bool supportsAbortHooks() const override { return true; }

  void registerAbortHook(int64_t id, c10d::AbortHook hook) override { hooks_.failed.add(id, std::move(hook)); }

  void unregisterAbortHook(int64_t id) override { hooks_.failed.remove(id); }
#endif

 protected:
  // Returns the supported options of a call.
  unisono_call call_of(Milliseconds timeout) const {
    unisono_call call{};
    call.timeout_s = (timeout.count() > 0 ? timeout : timeout_.load()).count() / 1e3;
    return call;
  }

  // Adds the numbers of elements of the parts if they differ.
  static unisono_call with(unisono_call call, const Counts& counts) {
    const bool are_equal = std::equal(counts.begin() + 1, counts.end(), counts.begin());
    call.counts = are_equal ? nullptr : counts.data();
    return call;
  }

  // Makes a synchronous call, or starts an asynchronous one. A call of a backward pass, which waits for it before it returns, is
  // also made synchronously if the ranks share a node, since the same cores compute and reduce. Between nodes, calls in flight overlap
  // with the backward pass.
  template <typename Options, typename Make>
  c10::intrusive_ptr<Work> submit(OpType type, const char* name, const Tensors& outputs, const Options& opts, Make make) {
    RECORD_FUNCTION(name, c10::ArrayRef<const c10::IValue>{});
    auto& world = this->world();
    collectives_++;
    const bool runs_now = !opts.asyncOp || (world.is_one_node() && torch::autograd::get_current_node() != nullptr);
    const auto call = call_of(opts.timeout);
    return world.queue().submit(self(), type, outputs, [call, make = std::move(make)] { make(call); }, runs_now);
  }

  unisono_comm* calls() const { return world_->calls(); }

 private:
  // Returns the open process groups of this process, which leaves them when it ends.
  static std::map<Group*, c10::weak_intrusive_ptr<Group>>& alive() {
    static std::map<Group*, c10::weak_intrusive_ptr<Group>> groups;
    return groups;
  }

  static std::mutex& alive_mutex() {
    static std::mutex mutex;
    return mutex;
  }

  c10::intrusive_ptr<Backend> self() { return c10::intrusive_ptr<Backend>::unsafe_reclaim_from_nonowning(this); }

  // Leaves the world. `Waits::rethrow_raised` throws an exception of a handler.
  void leave(const std::string& cause) {
    if (const auto world = world_) world->leave(cause);
  }

  // Returns the world, for a new call.
  World& world() const {
    TORCH_CHECK(world_, "the process group has no ranks until it is reconfigured");
    TORCH_CHECK(!world_->is_interrupted(), kInterrupted);
    return *world_;
  }

  // Starts a message: `make` passes it to the library.
  template <typename Make>
  c10::intrusive_ptr<Work> start(OpType type, const at::Tensor& buffer, const at::Tensor& target, int other, int tag, Make make) {
    TORCH_CHECK(
        other < size_ && other != rank_ && other >= -1, "rank ", rank_, " of ", size_, " exchanges no messages with rank ", other);
    const auto message = c10::make_intrusive<Message>(self(), world().waits(), hooks_, type, buffer, target, other);
    auto call = call_of(Milliseconds(0));
    call.tag = tag;
    const Moved moved(buffer.scalar_type(), call);
    world().send(message, [&](unisono_comm* comm) { return make(comm, *message, buffer.numel() * moved.width, moved.dtype, &call); });
    return message;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<Milliseconds> timeout_;
  WorkHooks hooks_;
  std::shared_ptr<World> world_;
  // The handle for other process groups, once created, its store, and the uuids of this group's worlds.
  mutable std::mutex handle_mutex_;
  mutable std::string handle_;
  mutable c10::intrusive_ptr<c10d::TCPStore> meeting_;
  std::set<int64_t> uuids_;
  std::atomic<uint64_t> collectives_{0};
};

}  // namespace unisono
