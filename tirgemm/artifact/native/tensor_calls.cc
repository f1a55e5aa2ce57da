// Calls on PyTorch's tensors as Python gives them, taken apart by PyTorch's own DLPack exchange functions: what a call
// costs on the host is the launch. Python's functions of each kernel are made here, and hold it.
#include <dlpack/dlpack.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <memory>

#include "kernel_set.h"
#include "python_api.h"

namespace tirgemm {
namespace {

using tvm::ffi::AnyView;

constexpr int kMaxQuestions = 8;

// Python's objects that are asked, set once.
struct TensorLibrary {
  const DLPackExchangeAPI* dlpack = nullptr;
  py::Object *is_neg = nullptr, *records = nullptr, *requires_grad = nullptr;
  // What must be answered by something false, and an attribute that must be below 0, or PyTorch wants more than a result.
  py::Object* questions[kMaxQuestions] = {};
  int count = 0;
  py::Object *owner = nullptr, *level = nullptr;
} torch;

constexpr char kName[] = "tirgemm.tensor_call";

// A kernel with how a result is allocated, by empty(shape, strides, dtype), where it is.
struct TensorCall {
  std::shared_ptr<KernelSet> kernel;
  bool rows = false;
  py::Object *empty = nullptr, *shape = nullptr, *strides = nullptr, *dtype = nullptr;

  static void Delete(py::Object* capsule) {
    const py::Api& api = py::api();
    auto* self = static_cast<TensorCall*>(api.CapsuleGetPointer(capsule, kName));
    for (py::Object* object : {self->empty, self->shape, self->strides, self->dtype}) {
      if (object) api.DecRef(object);
    }
    delete self;
  }
};

// Whether an answer, which is taken, is true; an error is.
bool Affirmed(const py::Api& api, py::Object* answer) {
  if (!answer) {
    api.ErrClear();
    return true;
  }
  const bool out = answer != api.no && answer != api.none && api.IsTrue(answer) != 0;
  api.DecRef(answer);
  return out;
}

bool Negated(const py::Api& api, py::Object* tensor) { return Affirmed(api, api.Vectorcall(torch.is_neg, &tensor, 1, nullptr)); }

bool Differentiated(const py::Api& api, py::Object* const* tensors, int count) {
  if (!Affirmed(api, api.CallNoArgs(torch.records))) return false;
  for (int i = 0; i < count; ++i) {
    if (Affirmed(api, api.GetAttr(tensors[i], torch.requires_grad))) return true;
  }
  return false;
}

// Whether something asks for more than the result of a call: autocast, a mode, a tracer. Nobody knows before the
// questions are set.
bool Intercepted(const py::Api& api) {
  if (!torch.owner) return true;
  for (int i = 0; i < torch.count; ++i) {
    if (Affirmed(api, api.CallNoArgs(torch.questions[i]))) return true;
  }
  py::Object* level = api.GetAttr(torch.owner, torch.level);
  const long number = level ? api.AsLong(level) : 0;
  if (level) api.DecRef(level);
  if (!level || number == -1) api.ErrClear();
  return number >= 0;
}

// The stream and the allocator of PyTorch, for as long as a kernel is launched.
class Surroundings {
 public:
  explicit Surroundings(DLDevice device) : device_(device), cuda_(device.device_type == kDLCUDA) {
    if (!cuda_) return;
    ok_ = torch.dlpack->current_work_stream(device.device_type, device.device_id, &stream_) == 0 &&
          TVMFFIEnvSetStream(device.device_type, device.device_id, stream_, &stream_before_) == 0;
    if (!ok_) return;
    ok_ = TVMFFIEnvSetDLPackManagedTensorAllocator(torch.dlpack->managed_tensor_allocator, 0, &allocator_before_) == 0;
    set_ = true;
  }
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;
  ~Surroundings() {
    if (!set_) return;
    if (stream_before_ != stream_) TVMFFIEnvSetStream(device_.device_type, device_.device_id, stream_before_, nullptr);
    if (allocator_before_ != torch.dlpack->managed_tensor_allocator) TVMFFIEnvSetDLPackManagedTensorAllocator(allocator_before_, 0, nullptr);
  }

  bool ok() const { return ok_; }

 private:
  DLDevice device_;
  bool cuda_, ok_ = true, set_ = false;
  void *stream_ = nullptr, *stream_before_ = nullptr;
  DLPackManagedTensorAllocator allocator_before_ = nullptr;
};

// Whether the kernel took the tensors; without it nothing has run. Why not, the launcher says where it is asked with
// errors.
bool Ran(const py::Api& api, const TensorCall& call, py::Object* const* tensors, int count) {
  DLTensor views[kMaxTensors];
  AnyView args[kMaxTensors];
  for (int i = 0; i < count; ++i) {
    if (torch.dlpack->dltensor_from_py_object_no_sync(tensors[i], &views[i]) != 0) {
      api.ErrClear();
      return false;
    }
    args[i] = AnyView(&views[i]);
  }
  const Surroundings surroundings(views[0].device);
  if (!surroundings.ok()) {
    api.ErrClear();
    return false;
  }
  bool ok = true;
  py::Thread* thread = api.SaveThread();
  try {
    const tvm::ffi::PackedArgs packed(args, count);
    if (call.rows) {
      call.kernel->CallRows(packed);
    } else {
      (*call.kernel)(packed);
    }
  } catch (const std::exception&) {
    ok = false;
  }
  api.RestoreThread(thread);
  return ok;
}

// (tensors..., out) -> whether the kernel took them.
py::Object* Into(py::Object* self, py::Object* const* args, ptrdiff_t given) {
  const py::Api& api = py::api();
  const auto& call = *static_cast<TensorCall*>(api.CapsuleGetPointer(self, kName));
  const int count = static_cast<int>(given);
  bool ok = count >= 1 && count <= kMaxTensors && !Differentiated(api, args, count);
  for (int i = 0; ok && i < count; ++i) ok = !Negated(api, args[i]);
  py::Object* out = ok && Ran(api, call, args, count) ? api.yes : api.no;
  api.IncRef(out);
  return out;
}

// (x, weight, bias or None) -> the result; None where PyTorch may want more than a result, or the kernel does not take
// the tensors.
py::Object* New(py::Object* self, py::Object* const* args, ptrdiff_t given) {
  const py::Api& api = py::api();
  const auto& call = *static_cast<TensorCall*>(api.CapsuleGetPointer(self, kName));
  py::Object* out = nullptr;
  if (given == 3) {
    py::Object* tensors[4] = {args[0], args[1], args[2], nullptr};
    const int inputs = args[2] == api.none ? 2 : 3;
    if (!Intercepted(api) && !Negated(api, args[0]) && !Differentiated(api, args, inputs)) {
      py::Object* how[] = {call.shape, call.strides, call.dtype};
      out = api.Vectorcall(call.empty, how, 3, nullptr);
      if (!out) api.ErrClear();
    }
    tensors[inputs] = out;
    if (out && !Ran(api, call, tensors, inputs + 1)) {
      api.DecRef(out);
      out = nullptr;
    }
  }
  if (out) return out;
  api.IncRef(api.none);
  return api.none;
}

py::MethodDef into_method{"call_into", reinterpret_cast<void*>(&Into), py::kFastCall, nullptr};
py::MethodDef new_method{"call_new", reinterpret_cast<void*>(&New), py::kFastCall, nullptr};

py::Object* Function(TensorCall* call, py::MethodDef* method) {
  const py::Api& api = py::api();
  py::Object* capsule = api.CapsuleNew(call, kName, &TensorCall::Delete);
  if (!capsule) {
    delete call;
    return nullptr;
  }
  py::Object* out = api.FunctionNew(method, capsule, nullptr);
  api.DecRef(capsule);
  return out;
}

}  // namespace
}  // namespace tirgemm

#define TIRGEMM_EXPORT extern "C" __attribute__((visibility("default")))

// Python calls these with its lock held (ctypes.PyDLL). `kernel` is what `handle` of the loaded functions returns.
TIRGEMM_EXPORT void tirgemm_set_torch(const DLPackExchangeAPI* dlpack, tirgemm::py::Object* is_neg, tirgemm::py::Object* records,
                                      tirgemm::py::Object* requires_grad) {
  for (tirgemm::py::Object* object : {is_neg, records, requires_grad}) tirgemm::py::api().IncRef(object);
  tirgemm::torch.dlpack = dlpack;
  tirgemm::torch.is_neg = is_neg;
  tirgemm::torch.records = records;
  tirgemm::torch.requires_grad = requires_grad;
}

TIRGEMM_EXPORT void tirgemm_set_questions(tirgemm::py::Object* const* questions, int count, tirgemm::py::Object* owner, tirgemm::py::Object* level) {
  const tirgemm::py::Api& api = tirgemm::py::api();
  for (int i = 0; i < count && i < tirgemm::kMaxQuestions; ++i) {
    api.IncRef(questions[i]);
    tirgemm::torch.questions[i] = questions[i];
    tirgemm::torch.count = i + 1;
  }
  for (tirgemm::py::Object* object : {owner, level}) api.IncRef(object);
  tirgemm::torch.owner = owner;
  tirgemm::torch.level = level;
}

TIRGEMM_EXPORT tirgemm::py::Object* tirgemm_call_into(const std::shared_ptr<tirgemm::KernelSet>* kernel) {
  return tirgemm::Function(new tirgemm::TensorCall{*kernel}, &tirgemm::into_method);
}

TIRGEMM_EXPORT tirgemm::py::Object* tirgemm_call_new(const std::shared_ptr<tirgemm::KernelSet>* kernel, int rows, tirgemm::py::Object* empty,
                                                     tirgemm::py::Object* shape, tirgemm::py::Object* strides, tirgemm::py::Object* dtype) {
  for (tirgemm::py::Object* object : {empty, shape, strides, dtype}) tirgemm::py::api().IncRef(object);
  return tirgemm::Function(new tirgemm::TensorCall{*kernel, rows != 0, empty, shape, strides, dtype}, &tirgemm::new_method);
}
