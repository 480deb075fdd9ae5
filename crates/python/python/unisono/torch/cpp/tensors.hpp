// Tensors as arrays of the library.
#pragma once

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <numeric>

#include "unisono.h"

namespace unisono {

using Tensors = std::vector<at::Tensor>;
using Counts = std::vector<size_t>;

// Returns the tensor. Throws an error if it is not a dense one in host memory.
inline at::Tensor dense(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.device().is_cpu(),
      "unisono's backend needs tensors in host memory, got one on ", tensor.device(),
      ": use init_process_group(\"cpu:unisono,cuda:nccl\") for tensors on GPUs");
  TORCH_CHECK(
      tensor.layout() == at::kStrided, "unisono's backend needs dense tensors, got layout ", tensor.layout());
  // Its memory has other values than the tensor.
  TORCH_CHECK(
      !tensor.is_conj() && !tensor.is_neg(),
      "unisono's backend does not support conjugated or negated views: pass a copy, tensor.resolve_conj().resolve_neg()");
  return tensor;
}

// Returns a dense tensor that a call writes. Throws an error if its elements share memory.
inline at::Tensor written(const at::Tensor& tensor) {
  TORCH_CHECK(
      at::has_internal_overlap(dense(tensor)) != at::MemOverlap::Yes,
      "the call would write a tensor whose elements share memory, as after expand(): pass a copy, such as tensor.contiguous()");
  return tensor;
}

// Returns a contiguous tensor at an address that is aligned for its elements, which may be the tensor itself. Views of bytes may have any
// address.
inline at::Tensor packed(const at::Tensor& tensor) {
  const at::Tensor result = tensor.contiguous();
  const auto address = reinterpret_cast<uintptr_t>(result.const_data_ptr());
  return address % result.element_size() == 0 ? result : result.clone();
}

inline Tensors each(const Tensors& tensors, at::Tensor (*of)(const at::Tensor&)) {
  Tensors result;
  result.reserve(tensors.size());
  for (const auto& tensor : tensors) result.push_back(of(tensor));
  return result;
}

inline Tensors dense(const Tensors& tensors) { return each(tensors, dense); }

inline Tensors written(const Tensors& tensors) { return each(tensors, written); }

// Returns the library's number of an element type, or -1 if it has none.
inline int dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return UNISONO_F32;
    case at::kDouble: return UNISONO_F64;
    case at::kHalf: return UNISONO_F16;
    case at::kBFloat16: return UNISONO_BF16;
    case at::kInt: return UNISONO_I32;
    case at::kLong: return UNISONO_I64;
    case at::kByte: return UNISONO_U8;
    case at::kUInt32: return UNISONO_U32;
    case at::kUInt64: return UNISONO_U64;
    default: return -1;
  }
}

// Returns the type in which elements are reduced.
inline at::ScalarType widened(at::ScalarType type) {
  switch (type) {
    case at::kBool:
    case at::kChar:
    case at::kShort:
    case at::kUInt16: return at::kInt;
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e4m3fnuz:
    case at::kFloat8_e5m2:
    case at::kFloat8_e5m2fnuz: return at::kFloat;
    default: return type;
  }
}

// The type in which elements are moved without arithmetic: each is `width` elements of type `dtype`, or `width` bytes if the library
// has no such type.
struct Moved {
  // Sets the label of the call. Ranks compare it, so they detect types that differ even if the library has only bytes.
  Moved(at::ScalarType type, unisono_call& call) : dtype(dtype_of(type)) {
    call.label = nullptr;
    if (dtype < 0) {
      dtype = UNISONO_U8;
      width = c10::elementSize(type);
      call.label = c10::toString(type);
    }
  }

  int dtype;
  size_t width = 1;
};

inline const char* name_of(c10d::ReduceOp::RedOpType op) {
  static constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM", "UNUSED"};
  return kNames[op];
}

// Returns the library's number of a reduction, which must be defined for the elements of these tensors.
inline int reduction(const c10d::ReduceOp& op, const Tensors& tensors) {
  static constexpr int kNumbers[] = {
      UNISONO_SUM, UNISONO_MEAN, UNISONO_PRODUCT, UNISONO_MIN, UNISONO_MAX, UNISONO_BIT_AND, UNISONO_BIT_OR, UNISONO_BIT_XOR};
  const auto kind = op.op_;
  TORCH_CHECK(kind < c10d::ReduceOp::PREMUL_SUM, "unisono's backend does not support the reduction ", name_of(kind));
  const bool is_bitwise = kind >= c10d::ReduceOp::BAND;
  const bool adds = kind == c10d::ReduceOp::SUM || kind == c10d::ReduceOp::AVG;
  for (const auto& tensor : tensors) {
    const auto type = tensor.scalar_type();
    TORCH_CHECK(
        !is_bitwise || !(at::isFloatingType(type) || at::isComplexType(type)), name_of(kind), " is not defined for ", type);
    TORCH_CHECK(
        adds || !at::isComplexType(type), "the reduction of complex numbers must be SUM or AVG, got ", name_of(kind));
    TORCH_CHECK(
        at::isComplexType(type) || dtype_of(widened(type)) >= 0, "unisono's backend does not support reductions of ", type);
  }
  return kNumbers[kind];
}

// Copies the elements of one tensor to another of the same number of elements, of any shapes.
inline void assign(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_contiguous() && from.is_contiguous() && to.scalar_type() == from.scalar_type()) {
    if (to.data_ptr() != from.data_ptr()) unisono_copy(to.data_ptr(), from.data_ptr(), from.nbytes());
  } else {
    to.copy_(from.reshape(to.sizes()));
  }
}

// Returns the numbers of elements of tensors.
inline Counts counts_of(const Tensors& tensors, size_t width = 1) {
  Counts counts;
  for (const auto& tensor : tensors) counts.push_back(tensor.numel() * width);
  return counts;
}

// Returns the sum of the first numbers, or of all.
inline int64_t sum(const Counts& counts, size_t first = SIZE_MAX) {
  return std::accumulate(counts.begin(), counts.begin() + std::min(first, counts.size()), int64_t{0});
}

// Returns the concatenation of tensors.
inline at::Tensor joined(const Tensors& tensors) {
  const at::Tensor buffer = at::empty({sum(counts_of(tensors))}, tensors.front().options());
  int64_t start = 0;
  for (const auto& tensor : tensors) {
    assign(buffer.narrow(0, start, tensor.numel()), tensor);
    start += tensor.numel();
  }
  return buffer;
}

// Copies the parts of a tensor to other tensors.
inline void divide(const at::Tensor& whole, const Tensors& parts) {
  int64_t start = 0;
  for (const auto& part : parts) {
    assign(part, whole.narrow(0, start, part.numel()));
    start += part.numel();
  }
}

inline void check_pairs(size_t outputs, size_t inputs, const char* call) {
  TORCH_CHECK(outputs == inputs, call, ": there are ", outputs, " outputs and ", inputs, " inputs");
}

inline void check_same(const at::Tensor& one, const at::Tensor& other, const char* call) {
  TORCH_CHECK(
      one.scalar_type() == other.scalar_type() && one.numel() == other.numel(), call, ": the tensors have ", one.numel(),
      " elements of ", one.scalar_type(), " and ", other.numel(), " elements of ", other.scalar_type());
}

inline void check_types(const at::Tensor& one, const at::Tensor& other, const char* call) {
  TORCH_CHECK(
      one.scalar_type() == other.scalar_type(), call, ": the tensors are of ", one.scalar_type(), " and ", other.scalar_type());
}

inline void check_blocks(const at::Tensor& whole, const at::Tensor& block, int ranks, const char* call, const char* what) {
  check_types(whole, block, call);
  TORCH_CHECK(
      whole.numel() == block.numel() * ranks, call, ": the ", what, " has ", whole.numel(), " elements, expected ", ranks, " blocks of ",
      block.numel());
}

}  // namespace unisono
