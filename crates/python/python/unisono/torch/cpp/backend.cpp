// The backend "unisono" of torch.distributed, for tensors in host memory.

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <map>

#include "group.hpp"

// The names of these functions since PyTorch 2.15. It forwards the new names to the old ones, but not while a signal handler runs that has
// interrupted such a call.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#define _allgather_base all_gather_single
#define allgather_into_tensor_coalesced all_gather_single_coalesced
#define gather_into_tensor gather_single
#define _reduce_scatter_base reduce_scatter_single
#define reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced
#define alltoall_base all_to_all_single
#endif

namespace unisono {

// Collectives. Each checks its arguments before it returns.
class Backend final : public Group {
 public:
  using Group::Group;

  ~Backend() override { end(); }

  // Runs instead of the destructor while works still refer to the process group.
  void release_resources() override { end(); }

  // Starts a process group of these ranks, in this order. Other ranks get none.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks, const c10::intrusive_ptr<Options>& opts) override {
    const auto own = std::find(ranks.begin(), ranks.end(), rank_);
    if (own == ranks.end()) return nullptr;
    return opened(c10::make_intrusive<Backend>(store, own - ranks.begin(), ranks.size(), opts->timeout, false));
  }

  c10::intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    // Gloo also adds the tensors of the list to each other.
    TORCH_CHECK(tensors.size() == 1, "allreduce: expected 1 tensor, got ", tensors.size(), ": use allreduce_coalesced");
    return all_reduce(tensors, opts);
  }

  c10::intrusive_ptr<Work> allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return all_reduce(tensors, opts);
  }

  c10::intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const int op = reduction(opts.reduceOp, tensors), root = opts.rootRank;
    const at::Tensor place = rank_ == root ? written(tensors.at(0)) : dense(tensors.at(0));
    return submit(OpType::REDUCE, "unisono:reduce", tensors, opts, [=, this](const unisono_call& call) {
      // Ranks other than the root use a copy: the library leaves the array undefined, but PyTorch leaves it unchanged.
      const at::Tensor target = rank_ == root ? place : place.clone(at::MemoryFormat::Contiguous);
      reduced(target, op, call, [&](void* data, size_t count, int dtype, int op, const unisono_call& call) {
        return unisono_reduce(calls(), data, count, dtype, op, root, &call);
      });
    });
  }

  c10::intrusive_ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const int root = opts.rootRank;
    const auto places = rank_ == root ? dense(tensors) : written(tensors);
    return submit(OpType::BROADCAST, "unisono:broadcast", tensors, opts, [=, this](unisono_call call) {
      for (const auto& place : places) {
        const at::Tensor buffer = packed(place);
        const Moved moved(buffer.scalar_type(), call);
        check(unisono_broadcast(calls(), buffer.data_ptr(), buffer.numel() * moved.width, moved.dtype, root, &call));
        if (rank_ != root) assign(place, buffer);
      }
    });
  }

  c10::intrusive_ptr<Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    check_pairs(outputs.size(), inputs.size(), "all_gather");
    std::vector<std::pair<Tensors, at::Tensor>> pairs;
    Tensors results;
    for (size_t pair = 0; pair < outputs.size(); pair++) {
      check_list(outputs[pair], "all_gather", "output");
      pairs.emplace_back(written(outputs[pair]), dense(inputs[pair]));
      check_same(pairs.back().first[rank_], pairs.back().second, "all_gather");
      results.insert(results.end(), outputs[pair].begin(), outputs[pair].end());
    }
    return submit(OpType::ALLGATHER, "unisono:all_gather", results, opts, [this, pairs](unisono_call call) {
      for (const auto& [places, own] : pairs) {
        const Moved moved(own.scalar_type(), call);
        const auto counts = counts_of(places), moved_counts = counts_of(places, moved.width);
        const at::Tensor buffer = at::empty({sum(counts)}, own.options());
        assign(buffer.narrow(0, sum(counts, rank_), own.numel()), own);
        const auto options = with(call, moved_counts);
        check(unisono_all_gather(calls(), buffer.data_ptr(), sum(moved_counts), moved.dtype, &options));
        divide(buffer, places);
      }
    });
  }

  c10::intrusive_ptr<Work> allgather_coalesced(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    // For this call, an output consists of the tensors of one rank instead of one tensor of all ranks.
    check_length(outputs.size(), "all_gather_coalesced", "output");
    std::vector<Tensors> of_inputs(inputs.size());
    for (const auto& tensors : outputs) {
      check_pairs(tensors.size(), inputs.size(), "all_gather_coalesced");
      for (size_t input = 0; input < inputs.size(); input++) of_inputs[input].push_back(tensors[input]);
    }
    return allgather(of_inputs, inputs, opts);
  }

  c10::intrusive_ptr<Work> _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, opts);
  }

  c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    check_pairs(outputs.size(), inputs.size(), "all_gather_into_tensor");
    const auto places = written(outputs), owns = dense(inputs);
    for (size_t pair = 0; pair < places.size(); pair++) {
      check_blocks(places[pair], owns[pair], size_, "all_gather_into_tensor", "output");
    }
    return submit(OpType::_ALLGATHER_BASE, "unisono:all_gather_single", outputs, opts, [this, places, owns](unisono_call call) {
      for (size_t pair = 0; pair < places.size(); pair++) {
        const at::Tensor buffer = packed(places[pair]);
        const Moved moved(buffer.scalar_type(), call);
        assign(buffer.view(-1).narrow(0, rank_ * owns[pair].numel(), owns[pair].numel()), owns[pair]);
        check(unisono_all_gather(calls(), buffer.data_ptr(), buffer.numel() * moved.width, moved.dtype, &call));
        assign(places[pair], buffer);
      }
    });
  }

  c10::intrusive_ptr<Work> gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    Tensors places;
    if (rank_ == opts.rootRank) {
      places = outputs.at(0);
      check_list(places, "gather", "output");
      for (const auto& place : places) check_same(place, inputs.at(0), "gather");
    }
    return gather_to(places, places, inputs.at(0), opts, [] {});
  }

  // Overrides a function of PyTorch 2.15.
  c10::intrusive_ptr<Work> gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) {
    if (rank_ != opts.rootRank) return gather_to({}, {}, input, opts, [] {});
    check_blocks(output, input, size_, "gather_single", "output");
    const at::Tensor buffer = packed(written(output));
    return gather_to({output}, buffer.view({size_, -1}).unbind(), input, opts, [output, buffer] { assign(output, buffer); });
  }

  c10::intrusive_ptr<Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    const int root = opts.rootRank;
    const at::Tensor place = written(outputs.at(0));
    Tensors sources;
    if (rank_ == root) {
      check_list(inputs.at(0), "scatter", "input");
      sources = dense(inputs[0]);
      for (const auto& source : sources) check_same(source, place, "scatter");
    }
    return submit(OpType::SCATTER, "unisono:scatter", outputs, opts, [=, this](unisono_call call) {
      if (is_long(place)) {
        exchange_with_root(false, root, place, sources, call);
        return;
      }
      const Moved moved(place.scalar_type(), call);
      const at::Tensor buffer = rank_ == root ? joined(sources) : at::empty({size_ * place.numel()}, place.options());
      check(unisono_scatter(calls(), buffer.data_ptr(), buffer.numel() * moved.width, moved.dtype, root, &call));
      assign(place, buffer.narrow(0, rank_ * place.numel(), place.numel()));
    });
  }

  c10::intrusive_ptr<Work> reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override {
    check_pairs(outputs.size(), inputs.size(), "reduce_scatter");
    std::vector<Tensors> sources;
    for (size_t pair = 0; pair < outputs.size(); pair++) {
      check_list(inputs[pair], "reduce_scatter", "input");
      sources.push_back(dense(inputs[pair]));
      check_same(sources.back()[rank_], dense(outputs[pair]), "reduce_scatter");
    }
    return reduce_scatter_of(outputs, std::move(sources), opts);
  }

  c10::intrusive_ptr<Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  }

  c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    check_pairs(outputs.size(), inputs.size(), "reduce_scatter_tensor");
    std::vector<Tensors> sources;
    for (size_t pair = 0; pair < outputs.size(); pair++) {
      check_blocks(inputs[pair], outputs[pair], size_, "reduce_scatter_tensor", "input");
      sources.push_back({dense(inputs[pair])});
    }
    return reduce_scatter_of(outputs, std::move(sources), opts);
  }

  c10::intrusive_ptr<Work> alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& opts) override {
    const at::Tensor place = written(output), source = dense(input);
    const auto to = rows(source, input_sizes, "input"), from = rows(place, output_sizes, "output");
    check_exchange(source, place, to, from);
    return submit(OpType::ALLTOALL_BASE, "unisono:all_to_all", {output}, opts, [=, this](const unisono_call& call) {
      const at::Tensor received = packed(place);
      // The library reads one array while it writes the other.
      const at::Tensor sent = source.is_alias_of(place) ? source.clone(at::MemoryFormat::Contiguous) : packed(source);
      exchange(sent, to, received, from, call);
      assign(place, received);
    });
  }

  c10::intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    check_list(outputs, "all_to_all", "output");
    check_list(inputs, "all_to_all", "input");
    const auto places = written(outputs), sources = dense(inputs);
    check_exchange(sources[0], places[0], counts_of(sources), counts_of(places));
    return submit(OpType::ALLTOALL, "unisono:all_to_all", outputs, opts, [=, this](const unisono_call& call) {
      const auto to = counts_of(sources), from = counts_of(places);
      const at::Tensor received = at::empty({sum(from)}, places[0].options());
      exchange(joined(sources), to, received, from, call);
      divide(received, places);
    });
  }

  c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& opts) override {
    return submit(OpType::BARRIER, "unisono:barrier", {}, opts, [this](const unisono_call& call) {
      check(unisono_barrier(calls(), &call));
    });
  }

 private:
  // Makes a reduction on a contiguous array of a supported type, and stores the result in the tensor. The label, which ranks compare, names
  // the type and the reduction if those of the library differ.
  template <typename Make>
  void reduced(const at::Tensor& place, int op, unisono_call call, Make make) const {
    const at::Tensor buffer = packed(place.to(widened(place.scalar_type())));
    // Complex numbers are added as pairs of real numbers.
    const at::Tensor numbers = buffer.is_complex() ? at::view_as_real(buffer) : buffer;
    std::string label = numbers.scalar_type() == place.scalar_type() ? "" : c10::toString(place.scalar_type());
    if (op == UNISONO_MEAN && numbers.scalar_type() == at::kHalf) {
      // The sum of values of which the mean is finite may be too large for the type.
      const at::NoGradGuard unrecorded;
      numbers.div_(size_);
      op = UNISONO_SUM;
      label += "avg";
    }
    if (!label.empty()) call.label = label.c_str();
    check(make(numbers.data_ptr(), numbers.numel(), dtype_of(numbers.scalar_type()), op, call));
    assign(place, buffer);
  }

  c10::intrusive_ptr<Work> all_reduce(const Tensors& tensors, const c10d::AllreduceOptions& opts) {
    const int op = reduction(opts.reduceOp, tensors);
    return submit(OpType::ALLREDUCE, "unisono:all_reduce", tensors, opts, [this, op, places = written(tensors)](const unisono_call& call) {
      for (const auto& place : places) {
        reduced(place, op, call, [&](void* data, size_t count, int dtype, int op, const unisono_call& call) {
          return unisono_all_reduce(calls(), data, count, dtype, op, &call);
        });
      }
    });
  }

  // Gathers one tensor of each rank in `places` on the root, and runs `finish`.
  template <typename Finish>
  c10::intrusive_ptr<Work> gather_to(
      const Tensors& outputs, const Tensors& places, const at::Tensor& input, const c10d::GatherOptions& opts, Finish finish) {
    const int root = opts.rootRank;
    return submit(
        OpType::GATHER, "unisono:gather", outputs, opts,
        [=, this, places = written(places), own = dense(input)](unisono_call call) {
          if (is_long(own)) {
            exchange_with_root(true, root, own, places, call);
          } else {
            const Moved moved(own.scalar_type(), call);
            const at::Tensor buffer = at::empty({size_ * own.numel()}, own.options());
            assign(buffer.narrow(0, rank_ * own.numel(), own.numel()), own);
            check(unisono_gather(calls(), buffer.data_ptr(), buffer.numel() * moved.width, moved.dtype, root, &call));
            divide(buffer, places);
          }
          finish();
        });
  }

  // Stores in each output its part of the reduction of its sources, which are one tensor per rank or one tensor of equal parts.
  c10::intrusive_ptr<Work> reduce_scatter_of(Tensors& outputs, std::vector<Tensors> sources, const c10d::ReduceScatterOptions& opts) {
    const int op = reduction(opts.reduceOp, outputs);
    return submit(
        OpType::REDUCE_SCATTER, "unisono:reduce_scatter", outputs, opts,
        [=, this, places = written(outputs), sources = std::move(sources)](unisono_call call) {
          for (size_t pair = 0; pair < places.size(); pair++) {
            // For the library, complex numbers are pairs.
            const size_t width = places[pair].is_complex() ? 2 : 1;
            const auto counts = counts_of(sources[pair], width);
            int64_t start = rank_ * places[pair].numel();
            if (counts.size() > 1) {
              call = with(call, counts);
              start = sum(counts, rank_) / width;
            }
            // A copy, since the library overwrites its array.
            const at::Tensor buffer = joined(sources[pair]);
            reduced(buffer, op, call, [&](void* data, size_t count, int dtype, int op, const unisono_call& call) {
              return unisono_reduce_scatter(calls(), data, count, dtype, op, &call);
            });
            assign(places[pair], buffer.narrow(0, start, places[pair].numel()));
          }
        });
  }

  // Returns whether copying a tensor takes longer than a message.
  static bool is_long(const at::Tensor& tensor) { return tensor.nbytes() >= (1 << 14); }

  // Gathers or scatters between `single` and, on the root, one of `all` for each rank, without additional copies. The barrier
  // compares the calls of all ranks.
  void exchange_with_root(bool gathers, int root, const at::Tensor& single, const Tensors& all, unisono_call call) {
    const Moved moved(single.scalar_type(), call);
    const auto label = c10::str(gathers ? "gather of " : "scatter of ", single.numel(), " ", single.scalar_type(), ", root ", root);
    call.label = label.c_str();
    check(unisono_barrier(calls(), &call));
    const size_t count = single.numel() * moved.width;
    if (rank_ != root) {
      const at::Tensor buffer = packed(single);
      check(gathers ? unisono_send(calls(), buffer.data_ptr(), count, moved.dtype, root, &call)
                    : unisono_receive(calls(), buffer.data_ptr(), count, moved.dtype, root, &call));
      if (!gathers) assign(single, buffer);
      return;
    }
    Tensors buffers;
    std::vector<unisono_request*> requests(size_);
    for (const auto& tensor : all) buffers.push_back(packed(tensor));
    // Before messages arrive in this memory, which the tensors may share.
    if (gathers) assign(buffers[root], single);
    try {
      for (int other = 0; other < size_; other++) {
        if (other == root) continue;
        void* data = buffers[other].data_ptr();
        check(gathers ? unisono_receive_async(calls(), data, count, moved.dtype, other, &call, &requests[other])
                      : unisono_send_async(calls(), data, count, moved.dtype, other, &call, &requests[other]));
      }
    } catch (...) {
      // Started messages use this memory.
      unisono_wait_all(requests.size(), requests.data());
      throw;
    }
    check(unisono_wait_all(requests.size(), requests.data()));
    if (!gathers) assign(single, buffers[root]);
    for (int other = 0; other < size_ && gathers; other++) assign(all[other], buffers[other]);
  }

  // Sends `to[j]` elements to every rank j, and receives `from[i]` from every rank i, on contiguous tensors.
  void exchange(const at::Tensor& sent, Counts to, const at::Tensor& received, Counts from, unisono_call call) {
    const Moved moved(sent.scalar_type(), call);
    for (auto& count : to) count *= moved.width;
    for (auto& count : from) count *= moved.width;
    check(unisono_all_to_all_v(calls(), sent.data_ptr(), to.data(), received.data_ptr(), from.data(), moved.dtype, &call));
  }

  void check_exchange(const at::Tensor& sent, const at::Tensor& received, const Counts& to, const Counts& from) const {
    check_types(sent, received, "all_to_all");
    TORCH_CHECK(
        to[rank_] == from[rank_], "all_to_all: rank ", rank_, " sends ", to[rank_], " elements to itself, and expects ", from[rank_]);
  }

  // Returns the number of elements for each rank, given numbers of rows.
  Counts rows(const at::Tensor& tensor, const std::vector<int64_t>& sizes, const char* what) const {
    const int64_t rows = tensor.size(0), width = rows == 0 ? 0 : tensor.numel() / rows;
    if (sizes.empty()) {
      TORCH_CHECK(
          rows % size_ == 0, "all_to_all: the number of rows of the ", what, ", ", rows, ", must be a multiple of the ", size_, " ranks");
      return Counts(size_, rows / size_ * width);
    }
    TORCH_CHECK(
        sizes.size() == static_cast<size_t>(size_) && sum(Counts(sizes.begin(), sizes.end())) == rows &&
            std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; }),
        "all_to_all: the ", what, " has ", rows, " rows, and the split sizes for ", size_, " ranks are [", c10::Join(", ", sizes), "]");
    Counts counts;
    for (const auto size : sizes) counts.push_back(size * width);
    return counts;
  }

  void check_length(size_t length, const char* call, const char* what) const {
    TORCH_CHECK(
        length == static_cast<size_t>(size_), call, ": the ", what, " list has ", length, " tensors for ", size_, " ranks");
  }

  // Checks a list of one tensor for each rank, all of one type.
  void check_list(const Tensors& list, const char* call, const char* what) const {
    check_length(list.size(), call, what);
    for (const auto& tensor : list) check_types(list.front(), tensor, call);
  }
};

}  // namespace unisono

// Operators for compiled models: PyTorch traces them, and a call takes less time than a functional collective.
namespace {

// Leaves the reduction of the tensors of all ranks of a group on every rank. `op` is "sum", "avg", "product", "min" or "max".
void all_reduce_(at::Tensor tensor, const std::string& op, const std::string& group_name) {
  using Op = c10d::ReduceOp;
  static const std::map<std::string, Op::RedOpType> kOps{
      {"sum", Op::SUM}, {"avg", Op::AVG}, {"product", Op::PRODUCT}, {"min", Op::MIN}, {"max", Op::MAX}};
  const auto found = kOps.find(op);
  TORCH_CHECK(found != kOps.end(), "unisono::all_reduce_: the reduction must be sum, avg, product, min or max, got `", op, "`");
  c10d::AllreduceOptions opts;
  opts.reduceOp = found->second;
  opts.asyncOp = false;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::resolve_process_group(group_name)->getBackend(c10::kCPU)->allreduce(tensors, opts)->wait();
}

}  // namespace

TORCH_LIBRARY(unisono, library) { library.def("all_reduce_(Tensor(a!) tensor, str op, str group_name) -> ()"); }
TORCH_LIBRARY_IMPL(unisono, CPU, library) { library.impl("all_reduce_", all_reduce_); }
TORCH_LIBRARY_IMPL(unisono, Meta, library) { library.impl("all_reduce_", [](at::Tensor, const std::string&, const std::string&) {}); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  unisono::Waits::record_main_thread();
  module.def(
      "create",
      [](c10::intrusive_ptr<c10d::Store> store, int rank, int size, unisono::Milliseconds timeout,
         bool reconfigurable) -> c10::intrusive_ptr<c10d::Backend> {
        return unisono::Backend::opened(c10::make_intrusive<unisono::Backend>(std::move(store), rank, size, timeout, reconfigurable));
      },
      pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("leave_all", &unisono::Backend::leave_all, pybind11::call_guard<pybind11::gil_scoped_release>());
}
