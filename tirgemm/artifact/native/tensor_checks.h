// What PyTorch is asked before a kernel runs on its tensors: whether more is wanted than a result.
#pragma once

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>

#include "python_api.h"

namespace tirgemm {

constexpr int kMaxQuestions = 8;

// Python's objects that are asked, set once.
struct TensorLibrary {
  const DLPackExchangeAPI* dlpack = nullptr;
  py::Object *tensor = nullptr, *parameter = nullptr, *is_neg = nullptr, *records = nullptr, *requires_grad = nullptr,
             *increment_version = nullptr;
  // What must be answered by something false, and an attribute that must be below 0, or PyTorch wants more than a
  // result; the first ones are of tracers. A question that is answered by something true is followed by a second one,
  // which decides, or None.
  py::Object *questions[kMaxQuestions] = {}, *second[kMaxQuestions] = {};
  int count = 0, tracers = 0;
  // PyTorch's own functions in C++ that answer those of the tracers: how many modes there are, and where a pointer is
  // that is null without a tracer. Null where the installed PyTorch lacks one.
  int64_t (*modes)() = nullptr;
  const void* const* (*tracing_state)() = nullptr;
  py::Object *owner = nullptr, *level = nullptr;
};

inline TensorLibrary torch;

// Whether an answer, which is taken, is true; an error is.
inline bool Affirmed(const py::Api& api, py::Object* answer) {
  if (!answer) {
    api.ErrClear();
    return true;
  }
  const bool out = answer != api.no && answer != api.none && api.IsTrue(answer) != 0;
  api.DecRef(answer);
  return out;
}

// Whether it is of PyTorch's own classes: a subclass may mean something else by a product.
inline bool Plain(const py::Api& api, py::Object* object) {
  py::Object* type = api.Type(object);
  api.DecRef(type);
  return type == torch.tensor || type == torch.parameter;
}

inline bool IsParameter(const py::Api& api, py::Object* object) {
  py::Object* type = api.Type(object);
  api.DecRef(type);
  return type == torch.parameter;
}

inline bool Negated(const py::Api& api, py::Object* tensor) {
  return Affirmed(api, api.Vectorcall(torch.is_neg, &tensor, 1, nullptr));
}

// Tensors that were asked and are not negated, each as long as it lives and has its memory: asking lets go of Python's
// lock and takes it again, which costs as much as a launch's arguments. Read and written with that lock held.
class AskedTensors {
 public:
  bool Negated(const py::Api& api, py::Object* tensor, const void* memory) {
    Entry& entry = EntryOf(tensor);
    if (entry.memory == memory && entry.reference && Refers(api, entry.reference, tensor)) return false;
    if (tirgemm::Negated(api, tensor)) return true;
    py::Object* reference = api.WeakrefNew(tensor, nullptr);
    if (!reference) api.ErrClear();
    py::Object* before = entry.reference;
    entry = {reference, memory};
    if (before) api.DecRef(before);
    return false;
  }

  // Lets go of the weak reference to a tensor, which PyTorch swaps with another only where there is none.
  void Forget(const void* tensor) {
    Entry& entry = EntryOf(tensor);
    py::Object* before = entry.reference;
    entry = {};
    if (before) py::api().DecRef(before);
  }

 private:
  static constexpr size_t kEntries = 509;
  struct Entry {
    py::Object* reference = nullptr;  // a weak one
    const void* memory = nullptr;
  };

  Entry& EntryOf(const void* tensor) { return entries_[(reinterpret_cast<size_t>(tensor) >> 4) % kEntries]; }

  static bool Refers(const py::Api& api, py::Object* reference, py::Object* tensor) {
    if (!api.WeakrefGetRef) return api.WeakrefGetObject(reference) == tensor;
    py::Object* now = nullptr;
    if (api.WeakrefGetRef(reference, &now) < 0) api.ErrClear();
    if (now) api.DecRef(now);
    return now == tensor;
  }

  Entry entries_[kEntries];
};

inline AskedTensors asked;

// Whether PyTorch records gradients now.
inline bool Records(const py::Api& api) { return Affirmed(api, api.CallNoArgs(torch.records)); }

inline bool RequireGrad(const py::Api& api, py::Object* const* tensors, int count) {
  for (int i = 0; i < count; ++i) {
    if (Affirmed(api, api.GetAttr(tensors[i], torch.requires_grad))) return true;
  }
  return false;
}

inline bool Differentiated(const py::Api& api, py::Object* const* tensors, int count) {
  return Records(api) && RequireGrad(api, tensors, count);
}

// Has PyTorch count a change of a tensor.
inline void CountChange(const py::Api& api, py::Object* tensor) {
  py::Object* none = api.Vectorcall(torch.increment_version, &tensor, 1, nullptr);
  if (none) {
    api.DecRef(none);
  } else {
    api.ErrClear();
  }
}

// Whether one of the first `count` questions is answered by something true, or forward-mode differentiation is on.
inline bool Watched(const py::Api& api, int count) {
  const bool direct = torch.modes && torch.tracing_state;
  if (direct && (torch.modes() != 0 || *torch.tracing_state() != nullptr)) return true;
  for (int i = direct ? torch.tracers : 0; i < count; ++i) {
    if (!Affirmed(api, api.CallNoArgs(torch.questions[i]))) continue;
    if (torch.second[i] == api.none || Affirmed(api, api.CallNoArgs(torch.second[i]))) return true;
  }
  py::Object* level = api.GetAttr(torch.owner, torch.level);
  const long number = level ? api.AsLong(level) : 0;
  if (level) api.DecRef(level);
  if (!level || number == -1) api.ErrClear();
  return number >= 0;
}

// Whether something asks for more than the result of a call: autocast, a mode, a tracer. Nobody knows before the
// questions are set.
inline bool Intercepted(const py::Api& api) { return !torch.owner || Watched(api, torch.count); }

// Whether something would not see what a kernel computes, though it is to see all: a tracer, forward-mode
// differentiation.
inline bool Traced(const py::Api& api) { return Watched(api, torch.tracers); }

}  // namespace tirgemm
