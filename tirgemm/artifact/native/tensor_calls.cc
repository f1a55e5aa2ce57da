// Calls on PyTorch's tensors as Python gives them, taken apart by PyTorch's own DLPack exchange functions: what a call
// costs on the host is the launch. Python's functions of each kernel are made here, and hold it.
#include <tvm/ffi/function.h>

#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernel_set.h"
#include "python_api.h"
#include "tensor_checks.h"

namespace tirgemm {
namespace {

using tvm::ffi::AnyView;

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

// The stream and the allocator of PyTorch for kernels on a device.
bool QueueOf(DLDevice device, Queue* out) {
  out->allocator = torch.dlpack->managed_tensor_allocator;
  return torch.dlpack->current_work_stream(device.device_type, device.device_id, &out->stream) == 0;
}

// What PyTorch says of the tensors; false where it says nothing.
bool ViewsOf(const py::Api& api, py::Object* const* tensors, int count, DLTensor* views) {
  for (int i = 0; i < count; ++i) {
    if (torch.dlpack->dltensor_from_py_object_no_sync(tensors[i], &views[i]) != 0) {
      api.ErrClear();
      return false;
    }
  }
  return true;
}

// Whether the kernel took the tensors; without it nothing has run. Why not, the launcher says where it is asked with
// errors.
bool Ran(const py::Api& api, const TensorCall& call, const DLTensor* views, int count) {
  AnyView args[kMaxTensors];
  for (int i = 0; i < count; ++i) args[i] = AnyView(const_cast<DLTensor*>(&views[i]));
  Queue queue;
  const bool cuda = views[0].device.device_type == kDLCUDA;
  if (cuda && !QueueOf(views[0].device, &queue)) {
    api.ErrClear();
    return false;
  }
  bool ok = true;
  py::Thread* thread = api.SaveThread();
  try {
    const tvm::ffi::PackedArgs packed(args, count);
    if (call.rows) {
      call.kernel->CallRows(packed, cuda ? &queue : nullptr);
    } else {
      (*call.kernel)(packed, cuda ? &queue : nullptr);
    }
  } catch (const std::exception&) {
    ok = false;
  }
  api.RestoreThread(thread);
  return ok;
}

// (tensors..., out) -> whether the kernel took them. PyTorch counts the change of `out` where it records gradients, for
// which it keeps tensors, and of parameters, of which others keep copies: counting takes half a microsecond.
py::Object* Into(py::Object* self, py::Object* const* args, ptrdiff_t given) {
  const py::Api& api = py::api();
  const auto& call = *static_cast<TensorCall*>(api.CapsuleGetPointer(self, kName));
  const int count = static_cast<int>(given);
  DLTensor views[kMaxTensors];
  bool ok = count >= 1 && count <= kMaxTensors;
  for (int i = 0; ok && i < count; ++i) ok = Plain(api, args[i]);
  const bool records = ok && Records(api);
  ok = ok && !(records && RequireGrad(api, args, count)) && !Traced(api) && ViewsOf(api, args, count, views);
  for (int i = 0; ok && i < count; ++i) ok = !asked.Negated(api, args[i], views[i].data);
  ok = ok && Ran(api, call, views, count);
  if (ok && (records || IsParameter(api, args[count - 1]))) CountChange(api, args[count - 1]);
  py::Object* out = ok ? api.yes : api.no;
  api.IncRef(out);
  return out;
}

// The result for x, weight and bias (or None); null where PyTorch may want more than a result, or the kernel does not
// take the tensors.
py::Object* Result(const py::Api& api, const TensorCall& call, py::Object* const* args) {
  const int inputs = args[2] == api.none ? 2 : 3;
  if (Intercepted(api) || Negated(api, args[0]) || Differentiated(api, args, inputs)) return nullptr;
  py::Object* how[] = {call.shape, call.strides, call.dtype};
  py::Object* out = api.Vectorcall(call.empty, how, 3, nullptr);
  if (!out) {
    api.ErrClear();
    return nullptr;
  }
  py::Object* tensors[4] = {args[0], args[1], args[2], nullptr};
  tensors[inputs] = out;
  DLTensor views[4];
  if (ViewsOf(api, tensors, inputs + 1, views) && Ran(api, call, views, inputs + 1)) return out;
  api.DecRef(out);
  return nullptr;
}

py::Object* OrNone(const py::Api& api, py::Object* result) {
  if (result) return result;
  api.IncRef(api.none);
  return api.none;
}

// (x, weight, bias or None) -> the result or None.
py::Object* New(py::Object* self, py::Object* const* args, ptrdiff_t given) {
  const py::Api& api = py::api();
  const auto& call = *static_cast<TensorCall*>(api.CapsuleGetPointer(self, kName));
  return OrNone(api, given == 3 ? Result(api, call, args) : nullptr);
}

// Kernels ask for no more, in bytes.
constexpr uint64_t kAlign = 16;

// What was chosen for calls, by the layer, the shape, dtype and device of x and whether x is dense: a kernel that reads
// dense ones is not put out by calls with others. Read and written with Python's lock held.
struct Shape {
  static constexpr int kMost = 6;
  int ndim = 0;
  bool dense = true;
  DLDataType dtype = {};
  DLDevice device = {};
  int64_t size[kMost] = {};

  static bool Of(py::Object* tensor, Shape* out) {
    DLTensor view;
    return Of(tensor, out, &view);
  }

  static bool Of(py::Object* tensor, Shape* out, DLTensor* seen) {
    DLTensor& view = *seen;
    if (torch.dlpack->dltensor_from_py_object_no_sync(tensor, &view) != 0) {
      py::api().ErrClear();
      return false;
    }
    out->ndim = view.ndim;
    if (view.ndim > kMost) return false;
    out->dtype = view.dtype;
    out->device = view.device;
    std::memcpy(out->size, view.shape, sizeof(int64_t) * static_cast<size_t>(view.ndim));
    int64_t stride = 1;
    for (int i = view.ndim - 1; view.strides && i >= 0; --i) {
      if (view.shape[i] != 1 && view.strides[i] != stride) out->dense = false;
      stride *= view.shape[i];
    }
    return true;
  }
  bool operator==(const Shape& other) const {
    return ndim == other.ndim && dense == other.dense && std::memcmp(&dtype, &other.dtype, sizeof(dtype)) == 0 &&
           std::memcmp(&device, &other.device, sizeof(device)) == 0 && std::memcmp(size, other.size, sizeof(size)) == 0;
  }
};

// A weight, a bias or None, an activation's interned name, and what says which kernels may serve it: by identity.
struct Layer {
  py::Object *weight, *bias, *act, *kernels;
  bool operator==(const Layer& other) const { return std::memcmp(this, &other, sizeof(Layer)) == 0; }
};

// What a weight is and how it lies, whether there is a bias, and as in Layer what else says what serves a call.
struct WeightKind {
  Shape weight;
  int64_t strides[Shape::kMost] = {};
  uint64_t misaligned = 0;
  bool biased = false;
  py::Object *act = nullptr, *kernels = nullptr;

  // `args`: x, weight, bias or None, act, kernels.
  static bool Of(py::Object* const* args, WeightKind* out) {
    DLTensor view;
    if (!Shape::Of(args[1], &out->weight, &view)) return false;
    if (view.strides) std::memcpy(out->strides, view.strides, sizeof(int64_t) * static_cast<size_t>(view.ndim));
    out->misaligned = (reinterpret_cast<uint64_t>(view.data) + view.byte_offset) % kAlign;
    out->biased = args[2] != py::api().none;
    out->act = args[3];
    out->kernels = args[4];
    return true;
  }

  bool operator==(const WeightKind& other) const {
    return weight == other.weight && std::memcmp(strides, other.strides, sizeof(strides)) == 0 &&
           misaligned == other.misaligned && biased == other.biased && act == other.act && kernels == other.kernels;
  }
};

struct Hash {
  size_t operator()(const Layer& layer) const {
    return (reinterpret_cast<size_t>(layer.weight) >> 4) * 31 + (reinterpret_cast<size_t>(layer.bias) >> 4) +
           reinterpret_cast<size_t>(layer.act) + reinterpret_cast<size_t>(layer.kernels);
  }
  size_t operator()(const Shape& shape) const {
    size_t out = static_cast<size_t>(2 * shape.ndim + shape.dense);
    for (int i = 0; i < shape.ndim; ++i) out = out * 1000003 + static_cast<size_t>(shape.size[i]);
    return out;
  }
  size_t operator()(const WeightKind& kind) const {
    return (*this)(kind.weight) * 31 + kind.biased + reinterpret_cast<size_t>(kind.act) +
           reinterpret_cast<size_t>(kind.kernels);
  }
};

// A function that is held; `call` where it is one of ours, which then need not be called through Python.
struct Chosen {
  py::Object* function = nullptr;
  const TensorCall* call = nullptr;
};

// Shapes of x that are kept for layers of one kind.
constexpr size_t kMostShapes = 4096;

using ByShape = std::unordered_map<Shape, Chosen, Hash>;
std::unordered_map<int64_t, std::shared_ptr<ByShape>> kinds;
std::unordered_map<Layer, std::shared_ptr<ByShape>, Hash> layers;
// For weights that are made for one call, as the slices of a tensor of experts are.
std::unordered_map<WeightKind, std::shared_ptr<ByShape>, Hash> unnamed;

// What is let go may come back here: it is out of the table by then.
void Drop(ByShape* kind) {
  const ByShape dropped = std::move(*kind);
  kind->clear();
  for (const auto& entry : dropped) py::api().DecRef(entry.second.function);
}

bool IsTensor(const py::Api& api, py::Object* object) {
  py::Object* type = api.Type(object);
  api.DecRef(type);
  return type == torch.tensor;
}

// What was kept of calls with this weight and bias, or, of a weight that is no parameter, with others of its kind.
const ByShape* OfLayer(const py::Api& api, py::Object* const* args) {
  const auto layer = layers.find({args[1], args[2], args[3], args[4]});
  if (layer != layers.end()) return layer->second.get();
  WeightKind kind;
  if (unnamed.empty() || !IsTensor(api, args[1]) || !WeightKind::Of(args, &kind)) return nullptr;
  if (Negated(api, args[1])) return nullptr;
  if (kind.biased && (!Plain(api, args[2]) || Negated(api, args[2]))) return nullptr;
  const auto entry = unnamed.find(kind);
  return entry == unnamed.end() ? nullptr : entry->second.get();
}

// (x, weight, bias or None, act, kernels) -> the result; None where nothing was kept of such a call, or it is not
// taken.
py::Object* Kept(py::Object*, py::Object* const* args, ptrdiff_t given) {
  const py::Api& api = py::api();
  if (given != 5) return OrNone(api, nullptr);
  const ByShape* layer = OfLayer(api, args);
  Shape shape;
  if (!layer || !IsTensor(api, args[0]) || !Shape::Of(args[0], &shape)) return OrNone(api, nullptr);
  const auto entry = layer->find(shape);
  if (entry == layer->end()) return OrNone(api, nullptr);
  // Another thread may forget it meanwhile.
  const Chosen chosen = entry->second;
  api.IncRef(chosen.function);
  py::Object* out = chosen.call ? OrNone(api, Result(api, *chosen.call, args))
                                : api.Vectorcall(chosen.function, args, 3, nullptr);
  api.DecRef(chosen.function);
  return out;
}

py::MethodDef into_method{"call_into", reinterpret_cast<void*>(&Into), py::kFastCall, nullptr};
py::MethodDef kept_method{"kept_call", reinterpret_cast<void*>(&Kept), py::kFastCall, nullptr};
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
TIRGEMM_EXPORT void tirgemm_set_torch(const DLPackExchangeAPI* dlpack, tirgemm::py::Object* tensor,
                                      tirgemm::py::Object* parameter, tirgemm::py::Object* is_neg,
                                      tirgemm::py::Object* records, tirgemm::py::Object* requires_grad,
                                      tirgemm::py::Object* increment_version) {
  for (tirgemm::py::Object* object : {tensor, parameter, is_neg, records, requires_grad, increment_version})
    tirgemm::py::api().IncRef(object);
  tirgemm::torch.dlpack = dlpack;
  tirgemm::torch.tensor = tensor;
  tirgemm::torch.parameter = parameter;
  tirgemm::torch.is_neg = is_neg;
  tirgemm::torch.records = records;
  tirgemm::torch.requires_grad = requires_grad;
  tirgemm::torch.increment_version = increment_version;
}

TIRGEMM_EXPORT void tirgemm_set_mode_checks(tirgemm::py::Object* const* questions, tirgemm::py::Object* const* second,
                                            int count, int tracers, tirgemm::py::Object* owner,
                                            tirgemm::py::Object* level, int64_t (*modes)(),
                                            const void* const* (*tracing_state)()) {
  const tirgemm::py::Api& api = tirgemm::py::api();
  for (int i = 0; i < count && i < tirgemm::kMaxQuestions; ++i) {
    for (tirgemm::py::Object* object : {questions[i], second[i]}) api.IncRef(object);
    tirgemm::torch.questions[i] = questions[i];
    tirgemm::torch.second[i] = second[i];
    tirgemm::torch.count = i + 1;
  }
  tirgemm::torch.tracers = tracers;
  tirgemm::torch.modes = modes;
  tirgemm::torch.tracing_state = tracing_state;
  for (tirgemm::py::Object* object : {owner, level}) api.IncRef(object);
  tirgemm::torch.owner = owner;
  tirgemm::torch.level = level;
}

TIRGEMM_EXPORT tirgemm::py::Object* tirgemm_call_into(const std::shared_ptr<tirgemm::KernelSet>* kernel) {
  return tirgemm::Function(new tirgemm::TensorCall{*kernel}, &tirgemm::into_method);
}

TIRGEMM_EXPORT tirgemm::py::Object* tirgemm_call_new(const std::shared_ptr<tirgemm::KernelSet>* kernel, int rows,
                                                     tirgemm::py::Object* empty, tirgemm::py::Object* shape,
                                                     tirgemm::py::Object* strides, tirgemm::py::Object* dtype) {
  for (tirgemm::py::Object* object : {empty, shape, strides, dtype}) tirgemm::py::api().IncRef(object);
  return tirgemm::Function(new tirgemm::TensorCall{*kernel, rows != 0, empty, shape, strides, dtype},
                           &tirgemm::new_method);
}

// What was kept of calls: a function of x, weight and bias for all layers of one kind, by the shape of x.
TIRGEMM_EXPORT void tirgemm_keep(int64_t kind, tirgemm::py::Object* weight, tirgemm::py::Object* bias,
                                 tirgemm::py::Object* act, tirgemm::py::Object* kernels, tirgemm::py::Object* x,
                                 tirgemm::py::Object* function) {
  using namespace tirgemm;
  const py::Api& api = py::api();
  Shape shape;
  if (!Shape::Of(x, &shape)) return;
  py::Object* self = api.FunctionGetSelf(function);
  if (!self) api.ErrClear();
  const bool ours = self && api.CapsuleIsValid(self, kName);
  std::shared_ptr<ByShape> shapes = kinds[kind];
  if (!shapes) kinds[kind] = shapes = std::make_shared<ByShape>();
  if (shapes->size() >= kMostShapes) Drop(shapes.get());
  layers[{weight, bias, act, kernels}] = shapes;
  py::Object* const args[] = {x, weight, bias, act, kernels};
  WeightKind of_weight;
  if (WeightKind::Of(args, &of_weight)) unnamed[of_weight] = shapes;
  Chosen& chosen = (*shapes)[shape];
  py::Object* before = chosen.function;
  api.IncRef(function);
  chosen = {function, ours ? static_cast<const TensorCall*>(api.CapsuleGetPointer(self, kName)) : nullptr};
  if (before) api.DecRef(before);
}

// Forgets a weight or a bias by its address, before another object can have it.
TIRGEMM_EXPORT void tirgemm_forget(const void* tensor) {
  tirgemm::asked.Forget(tensor);
  for (auto entry = tirgemm::layers.begin(); entry != tirgemm::layers.end();) {
    const bool its = entry->first.weight == tensor || entry->first.bias == tensor;
    entry = its ? tirgemm::layers.erase(entry) : std::next(entry);
  }
}

TIRGEMM_EXPORT void tirgemm_forget_all() {
  tirgemm::layers.clear();
  tirgemm::unnamed.clear();
  const auto dropped = std::move(tirgemm::kinds);
  tirgemm::kinds.clear();
  for (const auto& entry : dropped) tirgemm::Drop(entry.second.get());
}

TIRGEMM_EXPORT tirgemm::py::Object* tirgemm_kept_call() {
  return tirgemm::py::api().FunctionNew(&tirgemm::kept_method, nullptr, nullptr);
}
