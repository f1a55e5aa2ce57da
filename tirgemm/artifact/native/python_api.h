// The few functions of CPython's stable ABI that calls on PyTorch tensors need, found at run time: no Python header,
// nothing linked.
#pragma once

#include <cstddef>

namespace tirgemm::py {

struct Object;
struct Thread;

struct MethodDef {
  const char* name;
  void* function;
  int flags;
  const char* doc;
};

// METH_FASTCALL: arguments by position, as an array.
constexpr int kFastCall = 0x0080;
using FastCall = Object* (*)(Object* self, Object* const* args, ptrdiff_t count);

struct Api {
  void (*IncRef)(Object*);
  void (*DecRef)(Object*);
  Object* (*CallNoArgs)(Object*);
  Object* (*Vectorcall)(Object* callable, Object* const* args, size_t count, Object* names);
  int (*IsTrue)(Object*);
  Object* (*GetAttr)(Object*, Object* name);
  long (*AsLong)(Object*);
  void (*ErrClear)();
  Thread* (*SaveThread)();
  void (*RestoreThread)(Thread*);
  Object* (*CapsuleNew)(void*, const char* name, void (*destructor)(Object*));
  void* (*CapsuleGetPointer)(Object*, const char* name);
  int (*CapsuleIsValid)(Object*, const char* name);
  Object* (*FunctionNew)(MethodDef*, Object* self, Object* module);
  Object* (*FunctionGetSelf)(Object*);
  Object* (*Type)(Object*);
  Object* (*WeakrefNew)(Object*, Object* callback);
  // One of the two: the second from CPython 3.13 on, which then drops the first.
  Object* (*WeakrefGetObject)(Object*);
  int (*WeakrefGetRef)(Object*, Object**);
  Object *none, *yes, *no;
};

// Of the process's Python; only what Python calls may ask for it.
const Api& api();

}  // namespace tirgemm::py
