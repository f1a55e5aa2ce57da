// A class of kernels that CPython calls by its vectorcall protocol, as it calls functions: without it a call through
// `__call__` makes a tuple, a dictionary and a frame, and looks `__call__` up, which takes as long as the kernel's
// function of tensors itself.
#include "python_api.h"

namespace tirgemm {
namespace {

// A function of a, b and the output that says whether it took them, or None; and what CPython calls.
struct Members {
  py::Object* into;
  py::Vectorcall call;
};

// Where Members lie in an object, behind those of the class that is extended, and the names "out" and "__call__".
struct CallableClass {
  size_t size = 0;
  py::Object *out = nullptr, *call = nullptr;
};

CallableClass callable;

Members* MembersOf(py::Object* self) {
  return reinterpret_cast<Members*>(reinterpret_cast<char*>(self) + callable.size);
}

// kernel(a, b, out=out) goes to `into`; what that does not take, and every other call, to the method `__call__`.
py::Object* CallObject(py::Object* self, py::Object* const* args, size_t flags_and_count, py::Object* names) {
  const py::Api& api = py::api();
  py::Object* into = MembersOf(self)->into;
  const size_t count = flags_and_count & py::kVectorcallCount;
  if (into && into != api.none && names && count == 2 && api.TupleSize(names) == 1 &&
      api.TupleGetItem(names, 0) == callable.out) {
    py::Object* out = args[2];
    api.IncRef(into);
    py::Object* taken = api.Vectorcall(into, args, 3, nullptr);
    api.DecRef(into);
    if (!taken) return nullptr;
    api.DecRef(taken);
    if (taken == api.yes) {
      api.IncRef(out);
      return out;
    }
  }
  py::Object* method = api.GetAttr(self, callable.call);
  if (!method) return nullptr;
  py::Object* result = api.Vectorcall(method, args, count, names);
  api.DecRef(method);
  return result;
}

py::Object* MakeObject(py::Object* type, py::Object*, py::Object*) {
  py::Object* self = py::api().GenericAlloc(type, 0);
  if (self) MembersOf(self)->call = &CallObject;
  return self;
}

}  // namespace
}  // namespace tirgemm

// A class of this `name` that extends `base`, a class of Python with `__call__` whose objects have `size` bytes. It has
// the attribute `_into`. Null with Python's error set where CPython does not make the class.
extern "C" __attribute__((visibility("default"))) tirgemm::py::Object* tirgemm_callable_class(
    const char* name, tirgemm::py::Object* base, ptrdiff_t size, tirgemm::py::Object* out, tirgemm::py::Object* call) {
  using namespace tirgemm;
  const py::Api& api = py::api();
  for (py::Object* object : {out, call}) api.IncRef(object);
  callable = {static_cast<size_t>(size), out, call};
  // CPython copies both.
  py::MemberDef members[] = {
      {"_into", py::kMemberObject, size + static_cast<ptrdiff_t>(offsetof(Members, into)), 0, nullptr},
      {"__vectorcalloffset__", py::kMemberSize, size + static_cast<ptrdiff_t>(offsetof(Members, call)),
       py::kMemberReadOnly, nullptr},
      {}};
  py::TypeSlot slots[] = {{py::kSlotMembers, members}, {py::kSlotNew, reinterpret_cast<void*>(&MakeObject)}, {}};
  py::TypeSpec spec{name, static_cast<int>(size + static_cast<ptrdiff_t>(sizeof(Members))), 0, py::kTypeVectorcall,
                    slots};
  return api.TypeFromSpec(&spec, base);
}
