#include "arguments.h"

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>

#include "errors.h"

namespace tirgemm {
namespace {

using tvm::ffi::AnyView;
using tvm::ffi::PackedArgs;

std::string Tuple(const int64_t* values, int count) {
  std::ostringstream out;
  out << "(";
  for (int i = 0; i < count; ++i) out << (i ? ", " : "") << values[i];
  out << (count == 1 ? ",)" : ")");
  return out.str();
}

std::string DeviceName(DLDevice device) {
  if (device.device_type == kDLCPU) return "the CPU";
  if (device.device_type == kDLCUDA) return "cuda:" + std::to_string(device.device_id);
  return "a device of DLPack type " + std::to_string(static_cast<int>(device.device_type));
}

// DLPack's dtype as NumPy would name it. tvm_ffi has no name for a complex one, and throws.
std::string DtypeName(DLDataType dtype) {
  const std::string size = std::to_string(dtype.bits) + (dtype.lanes == 1 ? "" : "x" + std::to_string(dtype.lanes));
  if (dtype.code == kDLComplex) return "complex" + size;
  try {
    return std::string(tvm::ffi::DLDataTypeToString(dtype));
  } catch (const std::exception&) {
    return "of DLPack code " + std::to_string(dtype.code) + " and " + size + " bits";
  }
}

bool OnDevice(const Plan& plan, DLDevice device) {
  if (plan.cuda) return device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
  return device.device_type == kDLCPU || device.device_type == kDLCUDAHost;
}

uint64_t Address(const DLTensor& tensor) { return reinterpret_cast<uint64_t>(tensor.data) + tensor.byte_offset; }

// Stride of an axis in elements; DLPack leaves strides out where the tensor is dense.
int64_t StrideOf(const DLTensor& tensor, int axis) {
  if (tensor.strides) return tensor.strides[axis];
  int64_t stride = 1;
  for (int i = tensor.ndim - 1; i > axis; --i) stride *= tensor.shape[i];
  return stride;
}

// The bytes from a tensor's first element to behind its last; 0 where it is not what the plan wants.
inline uint64_t BytesIfFits(const Plan& plan, const TensorSpec& spec, const DLTensor& tensor, DLDevice device,
                            int64_t m) {
  if (!(OnDevice(plan, tensor.device) && tensor.device.device_id == device.device_id && tensor.ndim == spec.ndim &&
        tensor.dtype.code == spec.dtype.code && tensor.dtype.bits == spec.dtype.bits && tensor.dtype.lanes == 1 &&
        (Address(tensor) & (spec.align - 1)) == 0 && tensor.data != nullptr)) {
    return 0;
  }
  int64_t last = 0;
  for (int axis = 0; axis < spec.ndim; ++axis) {
    const int64_t size = spec.shape[axis].At(m);
    if (tensor.shape[axis] != size) return 0;
    if (size == 1) continue;
    const int64_t stride = spec.strides[axis].At(m);
    if (StrideOf(tensor, axis) != stride) return 0;
    last += (size - 1) * stride;
  }
  return static_cast<uint64_t>((last + 1) * spec.element_bytes);
}

[[noreturn]] __attribute__((noinline, cold)) void Explain(const Plan& plan, const TensorSpec& spec,
                                                          const DLTensor& tensor, DLDevice device, int64_t m) {
  if (!OnDevice(plan, tensor.device)) {
    TIRGEMM_FAIL(kCall) << spec.shown << " is on " << DeviceName(tensor.device) << "; this kernel runs on "
                        << (plan.cuda ? "a CUDA device" : "the CPU");
  }
  if (tensor.device.device_id != device.device_id) {
    TIRGEMM_FAIL(kCall) << spec.shown << " is on " << DeviceName(tensor.device) << ", but " << plan.tensors[0].shown
                        << " is on " << DeviceName(device);
  }
  if (tensor.dtype.code != spec.dtype.code || tensor.dtype.bits != spec.dtype.bits || tensor.dtype.lanes != 1) {
    TIRGEMM_FAIL(kCallType) << spec.shown << " has dtype " << DtypeName(tensor.dtype) << "; it must be "
                            << DtypeName(spec.dtype) << " (" << spec.dtype_name << ")";
  }
  int64_t shape[kMaxRank], strides[kMaxRank], found[kMaxRank] = {0};
  bool same = tensor.ndim == spec.ndim;
  for (int axis = 0; axis < spec.ndim; ++axis) {
    shape[axis] = spec.shape[axis].At(m);
    strides[axis] = spec.strides[axis].At(m);
    same = same && tensor.shape[axis] == shape[axis];
  }
  if (!same)
    TIRGEMM_FAIL(kCall) << spec.shown << " has shape " << Tuple(tensor.shape, tensor.ndim) << "; it must be "
                        << Tuple(shape, spec.ndim);
  if (tensor.data == nullptr) TIRGEMM_FAIL(kCall) << spec.shown << " has no memory behind it";
  if (Address(tensor) & (spec.align - 1)) {
    TIRGEMM_FAIL(kCall) << spec.shown << " lies at an address that is " << (Address(tensor) & (spec.align - 1))
                        << " past a multiple of " << spec.align << "; it must be aligned to " << spec.align << " bytes";
  }
  for (int axis = 0; axis < spec.ndim; ++axis) found[axis] = StrideOf(tensor, axis);
  TIRGEMM_FAIL(kCall) << spec.shown << " has strides " << Tuple(found, spec.ndim) << " in elements; they must be "
                      << Tuple(strides, spec.ndim);
  __builtin_unreachable();
}

// Whether two operands whose extents overlap still share no element: columns of one wider matrix, side by side.
bool SideBySide(const TensorSpec& left, uint64_t left_address, const TensorSpec& right, uint64_t right_address,
                int64_t m) {
  if (left.ndim < 2 || right.ndim < 2) return false;
  const auto bytes = [m](const TensorSpec& spec, int axis) { return spec.strides[axis].At(m) * spec.element_bytes; };
  const int64_t row = bytes(left, left.ndim - 2);
  if (row != bytes(right, right.ndim - 2) || row <= 0) return false;
  for (const TensorSpec* spec : {&left, &right}) {
    for (int axis = 0; axis < spec->ndim - 2; ++axis) {
      if (bytes(*spec, axis) % row != 0) return false;
    }
  }
  const int64_t left_width = left.shape[left.ndim - 1].At(m) * left.element_bytes;
  const int64_t right_width = right.shape[right.ndim - 1].At(m) * right.element_bytes;
  const int64_t distance = static_cast<int64_t>(right_address - left_address);
  const int64_t offset = ((distance % row) + row) % row;
  return offset >= left_width && offset + right_width <= row;
}

inline void CheckOverlap(const Plan& plan, const Call& call, const uint64_t* bytes) {
  const int count = plan.tensor_count();
  const TensorSpec* specs = plan.tensors.data();
  for (int out = 0; out < count; ++out) {
    if (!specs[out].output) continue;
    const uint64_t begin = call.address[out], end = begin + bytes[out];
    for (int other = 0; other < count; ++other) {
      if (other == out) continue;
      if (__builtin_expect(call.address[other] + bytes[other] <= begin || end <= call.address[other], 1)) continue;
      if (SideBySide(plan.tensors[other], call.address[other], plan.tensors[out], call.address[out], call.m)) continue;
      TIRGEMM_FAIL(kCall) << plan.tensors[out].shown << " overlaps " << plan.tensors[other].shown
                          << " in memory; give it memory of its own";
    }
  }
}

float ScalarOf(const Plan& plan, int index, const AnyView& arg) {
  const TVMFFIAny raw = arg.CopyToTVMFFIAny();
  if (raw.type_index == kTVMFFIFloat) return static_cast<float>(raw.v_float64);
  if (raw.type_index == kTVMFFIInt) return static_cast<float>(raw.v_int64);
  TIRGEMM_FAIL(kCallType) << plan.scalars[index] << " must be a number, not " << std::string(arg.GetTypeKey());
  __builtin_unreachable();
}

[[noreturn]] __attribute__((noinline, cold)) void ExplainCount(const Plan& plan, int given) {
  std::string names;
  for (const TensorSpec& spec : plan.tensors) names += (names.empty() ? "" : ", ") + spec.shown;
  for (const std::string& scalar : plan.scalars) names += ", " + scalar;
  TIRGEMM_FAIL(kCallType) << "this kernel takes " << plan.tensor_count() + plan.scalar_count() << " arguments ("
                          << names << "), not " << given;
  __builtin_unreachable();
}

}  // namespace

const DLTensor* AsTensor(const AnyView& arg) {
  const TVMFFIAny raw = arg.CopyToTVMFFIAny();
  if (raw.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(raw.v_ptr);
  if (raw.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(raw.v_obj);
  return nullptr;
}

AnyView AsRows(const AnyView& arg, Rows* rows) {
  const DLTensor* tensor = AsTensor(arg);
  if (!tensor || tensor->ndim == 2 || tensor->ndim < 1) return arg;
  const int last = tensor->ndim - 1;
  int64_t count = 1, distance = tensor->shape[last];
  // From the inside out: a dimension of one element has any stride, and the first other one sets the distance.
  for (int axis = last - 1; axis >= 0; --axis) {
    if (tensor->shape[axis] == 1) continue;
    const int64_t stride = StrideOf(*tensor, axis);
    if (count == 1) {
      distance = stride;
    } else if (stride != count * distance) {
      return arg;
    }
    count *= tensor->shape[axis];
  }
  rows->shape[0] = count;
  rows->shape[1] = tensor->shape[last];
  rows->strides[0] = distance;
  rows->strides[1] = StrideOf(*tensor, last);
  rows->tensor = *tensor;
  rows->tensor.ndim = 2;
  rows->tensor.shape = rows->shape;
  rows->tensor.strides = rows->strides;
  return AnyView(&rows->tensor);
}

__attribute__((noinline, cold)) void RefuseM(const TensorSpec& spec, const DLTensor& tensor, int64_t m, int64_t low,
                                             int64_t high) {
  TIRGEMM_FAIL(kCall) << spec.shown << " has shape " << Tuple(tensor.shape, tensor.ndim) << ", so that m is " << m
                      << "; this kernel takes m from " << low << " to " << high;
  __builtin_unreachable();
}

uint64_t BindOne(const Plan& plan, int index, const AnyView& arg) {
  const TensorSpec& spec = plan.tensors[index];
  const DLTensor* tensor = AsTensor(arg);
  if (!tensor) TIRGEMM_FAIL(kCallType) << spec.shown << " must be a tensor, not " << std::string(arg.GetTypeKey());
  if (!BytesIfFits(plan, spec, *tensor, tensor->device, plan.m_low))
    Explain(plan, spec, *tensor, tensor->device, plan.m_low);
  return Address(*tensor);
}

uint64_t BindPacked(const Plan& plan, const AnyView& arg) {
  const int64_t nbytes = plan.workspaces[plan.packed_workspace].nbytes.At(plan.m_low);
  const DLTensor* tensor = AsTensor(arg);
  if (!tensor) TIRGEMM_FAIL(kCallType) << "the packed operand must be a tensor, not " << std::string(arg.GetTypeKey());
  if (tensor->device.device_type != kDLCPU)
    TIRGEMM_FAIL(kCall) << "the packed operand is on " << DeviceName(tensor->device) << "; it must be on the CPU";
  const bool bytes = tensor->dtype.code == kDLUInt && tensor->dtype.bits == 8 && tensor->dtype.lanes == 1;
  if (!bytes || tensor->ndim != 1 || tensor->shape[0] != nbytes || (nbytes > 1 && StrideOf(*tensor, 0) != 1) ||
      tensor->data == nullptr) {
    TIRGEMM_FAIL(kCall) << "the packed operand must be a dense array of " << nbytes << " unsigned bytes";
  }
  if (Address(*tensor) % kPackedAlign != 0)
    TIRGEMM_FAIL(kCall) << "the packed operand must be aligned to " << kPackedAlign << " bytes";
  return Address(*tensor);
}

void Bind(const Plan& plan, PackedArgs args, Call* call) {
  const int count = plan.tensor_count(), scalars = plan.scalar_count();
  if (args.size() != count + scalars) ExplainCount(plan, args.size());
  const TensorSpec* specs = plan.tensors.data();
  const DLTensor* tensors[kMaxTensors];
  for (int i = 0; i < count; ++i) {
    tensors[i] = AsTensor(args[i]);
    if (!tensors[i])
      TIRGEMM_FAIL(kCallType) << specs[i].shown << " must be a tensor, not " << std::string(args[i].GetTypeKey());
  }
  call->m = plan.m_low;
  if (plan.m_tensor >= 0) {
    const TensorSpec& spec = plan.tensors[plan.m_tensor];
    const DLTensor& tensor = *tensors[plan.m_tensor];
    // A wrong rank is explained below, with the smallest m in the expected shape.
    if (tensor.ndim == spec.ndim) {
      call->m = tensor.shape[plan.m_axis];
      if (__builtin_expect(call->m < plan.m_low || call->m > plan.m_high, 0))
        RefuseM(spec, tensor, call->m, plan.m_low, plan.m_high);
    }
  }
  call->device = tensors[0]->device;
  uint64_t bytes[kMaxTensors];
  for (int i = 0; i < count; ++i) {
    bytes[i] = BytesIfFits(plan, specs[i], *tensors[i], call->device, call->m);
    if (__builtin_expect(bytes[i] == 0, 0)) Explain(plan, specs[i], *tensors[i], call->device, call->m);
    call->address[i] = Address(*tensors[i]);
  }
  for (int i = 0; i < scalars; ++i) call->scalar[i] = ScalarOf(plan, i, args[count + i]);
  CheckOverlap(plan, *call, bytes);
}

}  // namespace tirgemm
