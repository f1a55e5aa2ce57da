/* A libcuda.so.1 without a GPU: it records every call as a line of JSON and answers as the driver would.
 *
 * Built against the real cuda.h, so that the launcher's own declarations are held to it. A kernel's name ends in the
 * types of its parameters, which is how they are printed: gemm__ppfilm takes two pointers, a float, an int32, an int64
 * and a tensor map. FAKE_CUDA_ARCH (90), FAKE_CUDA_DEVICES (2) and FAKE_CUDA_FAIL (a function's name and an error, as
 * cuLibraryLoadData:200) are read at every call. Whatever else the process holds may ask it too (PyTorch, the CUDA
 * runtime): a null pointer, a device or a function that it does not have is an error code, as it is the driver's. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlpack/dlpack.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))

static FILE* log_file;
static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;

EXPORT void fake_log_to(const char* path) {
  if (log_file) fclose(log_file);
  log_file = fopen(path, "w");
}

EXPORT void fake_log_flush(void) { if (log_file) fflush(log_file); }

static void record(const char* format, ...) {
  va_list args;
  va_start(args, format);
  pthread_mutex_lock(&log_mutex);
  if (log_file) { vfprintf(log_file, format, args); fputc('\n', log_file); }
  pthread_mutex_unlock(&log_mutex);
  va_end(args);
}

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}

static CUresult planted(const char* name) {
  const char* text = getenv("FAKE_CUDA_FAIL");
  size_t length = strlen(name);
  return text && !strncmp(text, name, length) && text[length] == ':' ? (CUresult)atoi(text + length + 1) : CUDA_SUCCESS;
}

#define FAILS(name)                                                                                                    \
  do {                                                                                                                 \
    CUresult result = planted(name);                                                                                   \
    if (result != CUDA_SUCCESS) {                                                                                      \
      record("{\"call\": \"%s\", \"failed\": %d}", name, result);                                                      \
      return result;                                                                                                   \
    }                                                                                                                  \
  } while (0)
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define NEEDS(...)                                                                                                     \
  do {                                                                                                                 \
    const void* given[] = {__VA_ARGS__};                                                                               \
    for (size_t i = 0; i < COUNT(given); ++i) if (!given[i]) return CUDA_ERROR_INVALID_VALUE;                          \
  } while (0)
#define NEEDS_DEVICE(device)                                                                                           \
  do {                                                                                                                 \
    if ((device) < 0 || (device) >= device_count()) return CUDA_ERROR_INVALID_DEVICE;                                  \
  } while (0)

enum { MAX_DEVICES = 8, MAX_ATTRIBUTES = 4, MAX_RANK = 5 };

struct kernel { char name[200]; int shared[MAX_DEVICES]; };
struct function { struct kernel* kernel; int device; };
static __thread CUcontext stack[16];
static __thread int depth;
static int contexts[MAX_DEVICES];

static CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }
static int device_count(void) {
  int count = number("FAKE_CUDA_DEVICES", 2);
  return count < MAX_DEVICES ? count : MAX_DEVICES;
}
static int device_of(CUcontext context) { return context ? (int)((int*)context - contexts) : -1; }

static CUresult get_error_name(CUresult error, const char** text) {
  static __thread char name[40];
  NEEDS(text);
  sprintf(name, "CUDA_ERROR_%d", error);
  *text = name;
  return CUDA_SUCCESS;
}
static CUresult init(unsigned flags) {
  (void)flags;
  FAILS("cuInit");
  record("{\"call\": \"cuInit\"}");
  return CUDA_SUCCESS;
}
static CUresult device_get_count(int* count) { NEEDS(count); *count = device_count(); return CUDA_SUCCESS; }
static CUresult device_get(CUdevice* device, int ordinal) {
  NEEDS(device);
  NEEDS_DEVICE(ordinal);
  *device = ordinal;
  return CUDA_SUCCESS;
}
static CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  NEEDS(value);
  NEEDS_DEVICE(device);
  int arch = number("FAKE_CUDA_ARCH", 90);
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) *value = arch / 10;
  else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) *value = arch % 10;
  else return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
static CUresult primary_retain(CUcontext* context, CUdevice device) {
  NEEDS(context);
  NEEDS_DEVICE(device);
  record("{\"call\": \"cuDevicePrimaryCtxRetain\", \"device\": %d}", device);
  *context = (CUcontext)&contexts[device];
  return CUDA_SUCCESS;
}
static CUresult ctx_get(CUcontext* context) { NEEDS(context); *context = current(); return CUDA_SUCCESS; }
static CUresult ctx_push(CUcontext context) {
  if (depth == COUNT(stack)) return CUDA_ERROR_OUT_OF_MEMORY;
  stack[depth++] = context;
  return CUDA_SUCCESS;
}
static CUresult ctx_pop(CUcontext* context) {
  NEEDS(context);
  if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
  *context = stack[--depth];
  return CUDA_SUCCESS;
}
static CUresult library_load(CUlibrary* library, const void* code, CUjit_option* jit, void** jit_values,
                             unsigned jit_count, CUlibraryOption* options, void** values, unsigned count) {
  (void)jit; (void)jit_values; (void)options; (void)values;
  FAILS("cuLibraryLoadData");
  NEEDS(library, code);
  if (memcmp(code, "\177ELF", 4) || jit_count || count) return CUDA_ERROR_INVALID_IMAGE;
  record("{\"call\": \"cuLibraryLoadData\"}");
  *library = (CUlibrary)calloc(1, 8);
  return CUDA_SUCCESS;
}
static CUresult library_unload(CUlibrary library) {
  NEEDS(library);
  record("{\"call\": \"cuLibraryUnload\"}");
  free(library);
  return CUDA_SUCCESS;
}
static CUresult library_get_kernel(CUkernel* kernel, CUlibrary library, const char* name) {
  FAILS("cuLibraryGetKernel");
  NEEDS(kernel, library, name);
  if (!strncmp(name, "missing", 7)) return CUDA_ERROR_NOT_FOUND;
  struct kernel* made = calloc(1, sizeof *made);
  strncpy(made->name, name, sizeof made->name - 1);
  record("{\"call\": \"cuLibraryGetKernel\", \"name\": \"%s\"}", name);
  *kernel = (CUkernel)made;
  return CUDA_SUCCESS;
}
static CUresult kernel_get_function(CUfunction* function, CUkernel kernel) {
  NEEDS(function, kernel);
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  struct function* made = malloc(sizeof *made);
  made->kernel = (struct kernel*)kernel;
  made->device = device_of(current());
  record("{\"call\": \"cuKernelGetFunction\", \"name\": \"%s\", \"device\": %d}", made->kernel->name, made->device);
  *function = (CUfunction)made;
  return CUDA_SUCCESS;
}
static CUresult kernel_set_attribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  FAILS("cuKernelSetAttribute");
  NEEDS(kernel);
  NEEDS_DEVICE(device);
  const char* name = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? "shared"
                     : attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED ? "cluster"
                     : "?";
  if (*name == 's' && value > 227 * 1024) return CUDA_ERROR_INVALID_VALUE;
  record("{\"call\": \"cuKernelSetAttribute\", \"attribute\": \"%s\", \"value\": %d, \"device\": %d}", name, value,
         device);
  if (*name == 's') ((struct kernel*)kernel)->shared[device] = value;
  return CUDA_SUCCESS;
}
static CUresult exchange_mode(CUstreamCaptureMode* mode) {
  static __thread CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
  NEEDS(mode);
  CUstreamCaptureMode before = now;
  now = *mode;
  *mode = before;
  record("{\"call\": \"cuThreadExchangeStreamCaptureMode\", \"mode\": %d}", now);
  return CUDA_SUCCESS;
}
static CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                       const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                       const cuuint32_t* elements, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill oob) {
  char text[600];
  int at = 0;
  FAILS("cuTensorMapEncodeTiled");
  NEEDS(map, address, dims, box, elements);
  if (!rank || rank > MAX_RANK || (rank > 1 && !strides)) return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if ((uintptr_t)map % 64) return CUDA_ERROR_INVALID_VALUE;
  static int maps;
  int number = __atomic_add_fetch(&maps, 1, __ATOMIC_RELAXED);
  memset(map, 0, sizeof *map);
  map->opaque[0] = number;
  at += sprintf(text + at, "\"dims\": [");
  for (unsigned i = 0; i < rank; ++i) at += sprintf(text + at, "%s%llu", i ? ", " : "", (unsigned long long)dims[i]);
  at += sprintf(text + at, "], \"strides\": [");
  for (unsigned i = 0; i + 1 < rank; ++i)
    at += sprintf(text + at, "%s%llu", i ? ", " : "", (unsigned long long)strides[i]);
  at += sprintf(text + at, "], \"box\": [");
  for (unsigned i = 0; i < rank; ++i) at += sprintf(text + at, "%s%u", i ? ", " : "", box[i]);
  at += sprintf(text + at, "], \"element_strides\": [");
  for (unsigned i = 0; i < rank; ++i) at += sprintf(text + at, "%s%u", i ? ", " : "", elements[i]);
  record("{\"call\": \"cuTensorMapEncodeTiled\", \"map\": %d, \"type\": %d, \"address\": %llu, %s], "
         "\"modes\": [%d, %d, %d, %d]}",
         number, type, (unsigned long long)(uintptr_t)address, text, interleave, swizzle, l2, oob);
  return CUDA_SUCCESS;
}
static CUresult launch(const CUlaunchConfig* config, CUfunction handle, void** params, void** extra) {
  char values[30 * sizeof(((struct kernel*)0)->name)], attributes[60 * MAX_ATTRIBUTES] = "";
  struct function* function = (struct function*)handle;
  FAILS("cuLaunchKernelEx");
  NEEDS(config, handle, params);
  if (config->numAttrs > MAX_ATTRIBUTES || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  if (extra || device_of(current()) != function->device) return CUDA_ERROR_INVALID_CONTEXT;
  if (config->sharedMemBytes > 48 * 1024 &&
      (int)config->sharedMemBytes > function->kernel->shared[function->device])
    return CUDA_ERROR_INVALID_VALUE;
  int at = 0, index = 0;
  const char* types = strstr(function->kernel->name, "__");
  values[0] = 0;
  for (types = types ? types + 2 : ""; *types; ++types, ++index) {
    void* p = params[index];
    if (index) at += sprintf(values + at, ", ");
    if (*types == 'p') at += sprintf(values + at, "%llu", (unsigned long long)*(uint64_t*)p);
    if (*types == 'i') at += sprintf(values + at, "%d", *(int32_t*)p);
    if (*types == 'l') at += sprintf(values + at, "%lld", (long long)*(int64_t*)p);
    if (*types == 'f') at += sprintf(values + at, "%.9g", *(float*)p);
    if (*types == 'm') at += sprintf(values + at, "\"map %llu\"", (unsigned long long)((CUtensorMap*)p)->opaque[0]);
  }
  at = 0;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute* a = &config->attrs[i];
    if (i) at += sprintf(attributes + at, ", ");
    if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      at += sprintf(attributes + at, "[\"cluster\", %u, %u, %u]", a->value.clusterDim.x, a->value.clusterDim.y,
                    a->value.clusterDim.z);
    else if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      at += sprintf(attributes + at, "[\"dependent\", %d]", a->value.programmaticStreamSerializationAllowed);
    else at += sprintf(attributes + at, "[\"?\", %d]", a->id);
  }
  record("{\"call\": \"cuLaunchKernelEx\", \"name\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], "
         "\"shared\": %u, \"stream\": %llu, \"device\": %d, \"params\": [%s], \"attributes\": [%s]}",
         function->kernel->name, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
         config->blockDimY, config->blockDimZ, config->sharedMemBytes, (unsigned long long)(uintptr_t)config->hStream,
         function->device, values, attributes);
  return CUDA_SUCCESS;
}
static CUresult mem_alloc(CUdeviceptr* pointer, size_t size, CUstream stream) {
  static CUdeviceptr next = 0x700000000000;
  FAILS("cuMemAllocAsync");
  NEEDS(pointer);
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  *pointer = next;
  next += (size + 511) / 512 * 512;
  record("{\"call\": \"cuMemAllocAsync\", \"size\": %zu, \"stream\": %llu, \"address\": %llu}", size,
         (unsigned long long)(uintptr_t)stream, (unsigned long long)*pointer);
  return CUDA_SUCCESS;
}
static CUresult mem_free(CUdeviceptr pointer, CUstream stream) {
  record("{\"call\": \"cuMemFreeAsync\", \"address\": %llu, \"stream\": %llu}", (unsigned long long)pointer,
         (unsigned long long)(uintptr_t)stream);
  return CUDA_SUCCESS;
}
static CUresult memset_d8(CUdeviceptr pointer, unsigned char value, size_t size, CUstream stream) {
  FAILS("cuMemsetD8Async");
  record("{\"call\": \"cuMemsetD8Async\", \"address\": %llu, \"value\": %d, \"size\": %zu, \"stream\": %llu}",
         (unsigned long long)pointer, value, size, (unsigned long long)(uintptr_t)stream);
  return CUDA_SUCCESS;
}

/* The compiler compares each function with cuda.h's declaration of it. */
#define ENTRY(name, function)                                                                                          \
  {#name, (void*)(__builtin_types_compatible_p(__typeof__(&name), __typeof__(&function)) ? function : NULL)}

static const struct { const char* name; void* function; } entries[] = {
  ENTRY(cuGetErrorName, get_error_name), ENTRY(cuInit, init), ENTRY(cuDeviceGetCount, device_get_count),
  ENTRY(cuDeviceGet, device_get), ENTRY(cuDeviceGetAttribute, device_get_attribute),
  ENTRY(cuDevicePrimaryCtxRetain, primary_retain), ENTRY(cuCtxGetCurrent, ctx_get),
  ENTRY(cuLibraryLoadData, library_load), ENTRY(cuLibraryUnload, library_unload),
  ENTRY(cuLibraryGetKernel, library_get_kernel), ENTRY(cuKernelGetFunction, kernel_get_function),
  ENTRY(cuKernelSetAttribute, kernel_set_attribute), ENTRY(cuThreadExchangeStreamCaptureMode, exchange_mode),
  ENTRY(cuTensorMapEncodeTiled, encode), ENTRY(cuLaunchKernelEx, launch), ENTRY(cuMemAllocAsync, mem_alloc),
  ENTRY(cuMemFreeAsync, mem_free),
  ENTRY(cuCtxPushCurrent, ctx_push), ENTRY(cuCtxPopCurrent, ctx_pop), ENTRY(cuMemsetD8Async, memset_d8),
};

/* The name of an entry by its number, NULL after the last. */
EXPORT const char* fake_entry(size_t index) { return index < COUNT(entries) ? entries[index].name : NULL; }

EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char* name, void** address, int version, cuuint64_t flags,
                                            CUdriverProcAddressQueryResult* status) {
  (void)version;
  (void)flags;
  NEEDS(name, address);
  *address = NULL;
  for (size_t i = 0; i < COUNT(entries); ++i) if (!strcmp(entries[i].name, name)) *address = entries[i].function;
  if (status) *status = *address ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* What a framework such as PyTorch registers with tvm_ffi as its allocator. */
struct owned { DLManagedTensorVersioned managed; int64_t shape[1], strides[1]; };

static void give_back(DLManagedTensorVersioned* self) {
  record("{\"call\": \"framework_free\", \"address\": %llu}", (unsigned long long)(uintptr_t)self->dl_tensor.data);
  free(self);
}

EXPORT int fake_framework_allocator(DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
                                    void (*set_error)(void*, const char*, const char*)) {
  if (getenv("FAKE_CUDA_OOM")) { set_error(context, "RuntimeError", "the framework is out of memory"); return -1; }
  struct owned* made = calloc(1, sizeof *made);
  made->managed.version.major = DLPACK_MAJOR_VERSION;
  made->managed.deleter = give_back;
  made->managed.dl_tensor = *prototype;
  made->managed.dl_tensor.data = (void*)0x600000000000;
  made->shape[0] = prototype->shape[0];
  made->strides[0] = 1;
  made->managed.dl_tensor.shape = made->shape;
  made->managed.dl_tensor.strides = made->strides;
  record("{\"call\": \"framework_alloc\", \"size\": %lld, \"device\": [%d, %d], \"type\": [%d, %d]}",
         (long long)prototype->shape[0], prototype->device.device_type, prototype->device.device_id,
         prototype->dtype.code, prototype->dtype.bits);
  *out = &made->managed;
  return 0;
}
