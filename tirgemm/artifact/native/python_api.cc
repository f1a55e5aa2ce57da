#include "python_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

namespace tirgemm::py {
namespace {

Api Bind() {
  Api out{};
  const auto bind = [](auto& member, const char* name) {
    void* address = dlsym(RTLD_DEFAULT, name);
    if (!address) std::abort();  // no CPython from 3.11 on lacks one
    member = reinterpret_cast<std::decay_t<decltype(member)>>(address);
  };
  bind(out.IncRef, "Py_IncRef");
  bind(out.DecRef, "Py_DecRef");
  bind(out.CallNoArgs, "PyObject_CallNoArgs");
  bind(out.Vectorcall, "PyObject_Vectorcall");
  bind(out.IsTrue, "PyObject_IsTrue");
  bind(out.GetAttr, "PyObject_GetAttr");
  bind(out.AsLong, "PyLong_AsLong");
  bind(out.ErrClear, "PyErr_Clear");
  bind(out.SaveThread, "PyEval_SaveThread");
  bind(out.RestoreThread, "PyEval_RestoreThread");
  bind(out.CapsuleNew, "PyCapsule_New");
  bind(out.CapsuleGetPointer, "PyCapsule_GetPointer");
  bind(out.CapsuleIsValid, "PyCapsule_IsValid");
  bind(out.FunctionNew, "PyCFunction_NewEx");
  bind(out.FunctionGetSelf, "PyCFunction_GetSelf");
  bind(out.Type, "PyObject_Type");
  bind(out.TypeFromSpec, "PyType_FromSpecWithBases");
  bind(out.GenericAlloc, "PyType_GenericAlloc");
  bind(out.TupleSize, "PyTuple_Size");
  bind(out.TupleGetItem, "PyTuple_GetItem");
  bind(out.WeakrefNew, "PyWeakref_NewRef");
  out.WeakrefGetRef = reinterpret_cast<int (*)(Object*, Object**)>(dlsym(RTLD_DEFAULT, "PyWeakref_GetRef"));
  if (!out.WeakrefGetRef) bind(out.WeakrefGetObject, "PyWeakref_GetObject");
  bind(out.none, "_Py_NoneStruct");
  bind(out.yes, "_Py_TrueStruct");
  bind(out.no, "_Py_FalseStruct");
  return out;
}

}  // namespace

const Api& api() {
  static const Api bound = Bind();
  return bound;
}

}  // namespace tirgemm::py
