/* Values, functions and errors of TVM's stable C interface, tvm/ffi/c_api.h, and its JSON: what fleet_runtime.c is made of.
 * A caller owns what these return by `result`, and lets it go by `drop`. Functions return 0, or say why by `fail`.
 */
#ifndef FLEET_VALUES_H_
#define FLEET_VALUES_H_

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#define MAX_ERROR 2000

static _Thread_local char error_text[MAX_ERROR];

static int fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(error_text, sizeof error_text, format, values);
  va_end(values);
  return -1;
}

static TVMFFIAny none(void) { return (TVMFFIAny){.type_index = kTVMFFINone}; }
static TVMFFIAny number(int64_t value) { return (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = value}; }
static TVMFFIAny boolean(int value) { return (TVMFFIAny){.type_index = kTVMFFIBool, .v_int64 = value}; }
static TVMFFIAny text(const char *value) { return (TVMFFIAny){.type_index = kTVMFFIRawStr, .v_c_str = value}; }

static void drop(TVMFFIAny *value) {
  if (value->type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(value->v_obj);
  *value = none();
}

static const void *content(const TVMFFIAny *value) { return (const char *)value->v_obj + sizeof(TVMFFIObject); }

static int raised(const char *what) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (error == NULL) return fail("%s: TVM gives no reason", what);
  const TVMFFIErrorCell *cell = (const TVMFFIErrorCell *)((const char *)error + sizeof(TVMFFIObject));
  fail("%s: %.*s", what, (int)cell->message.size, cell->message.data);
  TVMFFIObjectDecRef(error);
  return -1;
}

static int call(TVMFFIAny function, const char *what, TVMFFIAny *args, int count, TVMFFIAny *result) {
  *result = none();
  if (function.type_index != kTVMFFIFunction) return fail("%s: there is no such function", what);
  return TVMFFIFunctionCall(function.v_obj, args, count, result) == 0 ? 0 : raised(what);
}

static int call_global(const char *name, TVMFFIAny *args, int count, TVMFFIAny *result) {
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIAny function = none();
  TVMFFIObjectHandle found = NULL;
  *result = none();
  if (TVMFFIFunctionGetGlobal(&key, &found) != 0) return raised(name);
  if (found == NULL) return fail("%s: not in this TVM; is libtvm_runtime.so linked?", name);
  function.type_index = kTVMFFIFunction;
  function.v_obj = found;
  int status = call(function, name, args, count, result);
  drop(&function);
  return status;
}

/* Finds a function of a module or of those that it imports. */
static int method(TVMFFIAny module, const char *name, TVMFFIAny *result) {
  TVMFFIAny args[] = {module, text(name), boolean(1)};
  return call_global("ffi.ModuleGetFunction", args, 3, result);
}

static int call_method(TVMFFIAny module, const char *name, TVMFFIAny *args, int count, TVMFFIAny *result) {
  TVMFFIAny function;
  if (method(module, name, &function) != 0) return -1;
  int status = call(function, name, args, count, result);
  drop(&function);
  return status;
}

/* JSON objects and lists, as TVM's reader `ffi.json.Parse` returns them. */

static int field(TVMFFIAny map, const char *name, int32_t type, TVMFFIAny *result) {
  TVMFFIAny args[] = {map, text(name)};
  if (call_global("ffi.MapGetItem", args, 2, result) != 0) return fail("the manifest has no %s", name);
  int is_text = result->type_index == kTVMFFISmallStr || result->type_index == kTVMFFIStr;
  if (result->type_index == type || (type == kTVMFFIStr && is_text)) return 0;
  drop(result);
  return fail("the manifest's %s is malformed", name);
}

static int number_field(TVMFFIAny map, const char *name, int64_t *result) {
  TVMFFIAny value;
  if (field(map, name, kTVMFFIInt, &value) != 0) return -1;
  *result = value.v_int64;
  return 0;
}

static char *copy_of(const char *start, size_t size) {
  char *copy = calloc(1, size + 1);
  if (copy != NULL) memcpy(copy, start, size);
  return copy;
}

static char *string_of(const TVMFFIAny *value) {
  if (value->type_index == kTVMFFISmallStr) return copy_of(value->v_bytes, value->small_str_len);
  const TVMFFIByteArray *bytes = content(value);
  return copy_of(bytes->data, bytes->size);
}

static char *text_field(TVMFFIAny map, const char *name) {
  TVMFFIAny value;
  if (field(map, name, kTVMFFIStr, &value) != 0) return NULL;
  char *copy = string_of(&value);
  drop(&value);
  return copy;
}

static int64_t length(TVMFFIAny array) {
  TVMFFIAny size;
  return call_global("ffi.ArraySize", &array, 1, &size) == 0 ? size.v_int64 : -1;
}

static int item(TVMFFIAny array, int64_t index, TVMFFIAny *result) {
  TVMFFIAny args[] = {array, number(index)};
  return call_global("ffi.ArrayGetItem", args, 2, result);
}

#endif
