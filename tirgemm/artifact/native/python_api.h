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

// PyMemberDef, PyType_Slot and PyType_Spec, with the numbers of CPython's headers that are used.
struct MemberDef {
  const char* name;
  int type;
  ptrdiff_t offset;
  int flags;
  const char* doc;
};
struct TypeSlot {
  int slot;
  void* value;
};
struct TypeSpec {
  const char* name;
  int size, item_size;
  unsigned flags;
  TypeSlot* slots;
};
constexpr int kMemberObject = 16, kMemberSize = 19, kMemberReadOnly = 1;  // T_OBJECT_EX, T_PYSSIZET, READONLY
constexpr int kSlotNew = 65, kSlotMembers = 72;
constexpr unsigned kTypeVectorcall = 1u << 11;

using Vectorcall = Object* (*)(Object* self, Object* const* args, size_t flags_and_count, Object* names);
// The number of arguments by position; the one other bit is a flag.
constexpr size_t kVectorcallCount = ~(size_t{1} << (8 * sizeof(size_t) - 1));

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
  Object* (*TypeFromSpec)(TypeSpec*, Object* bases);
  Object* (*GenericAlloc)(Object* type, ptrdiff_t items);
  ptrdiff_t (*TupleSize)(Object*);
  Object* (*TupleGetItem)(Object*, ptrdiff_t);
  Object* (*WeakrefNew)(Object*, Object* callback);
  // One of the two: the second from CPython 3.13 on, which then drops the first.
  Object* (*WeakrefGetObject)(Object*);
  int (*WeakrefGetRef)(Object*, Object**);
  Object *none, *yes, *no;
};

// Of the process's Python; only what Python calls may ask for it.
const Api& api();

}  // namespace tirgemm::py
