/* Lookup of the unwinder at its first use, so that a starting program does not load libgcc_s for
 * this library.
 *
 * Rust's standard library refers to these functions. They are called when a hook panics, which
 * no hook does, and for frames of this library with destructors, which the frames between a
 * program and its libc do not have. The calls go to the program's own unwinder, because the
 * structures belong to it. */

#include <dlfcn.h>
#include <stdlib.h>

static void *find(const char *name)
{
	void *unwinder = dlopen("libgcc_s.so.1", RTLD_LAZY);
	void *function = unwinder ? dlsym(unwinder, name) : NULL;
	if (function == NULL)
		abort();
	return function;
}

#define PASS(type, name, parameters, arguments)                            \
	__attribute__((visibility("hidden"))) type name parameters         \
	{                                                                  \
		static type(*real) parameters;                             \
		type(*cached) parameters = __atomic_load_n(&real, __ATOMIC_RELAXED); \
		if (cached == NULL) {                                      \
			cached = find(#name);                              \
			__atomic_store_n(&real, cached, __ATOMIC_RELAXED); \
		}                                                          \
		return cached arguments;                                   \
	}

typedef void *context;
typedef void *exception;
typedef unsigned long word;

PASS(int, _Unwind_RaiseException, (exception it), (it))
PASS(void, _Unwind_Resume, (exception it), (it))
PASS(void, _Unwind_DeleteException, (exception it), (it))
PASS(int, _Unwind_Backtrace, (void *each, void *argument), (each, argument))
PASS(word, _Unwind_GetIP, (context at), (at))
PASS(word, _Unwind_GetIPInfo, (context at, int *before), (at, before))
PASS(void, _Unwind_SetIP, (context at, word value), (at, value))
PASS(word, _Unwind_GetGR, (context at, int index), (at, index))
PASS(void, _Unwind_SetGR, (context at, int index, word value), (at, index, value))
PASS(word, _Unwind_GetCFA, (context at), (at))
PASS(word, _Unwind_GetRegionStart, (context at), (at))
PASS(word, _Unwind_GetDataRelBase, (context at), (at))
PASS(word, _Unwind_GetTextRelBase, (context at), (at))
PASS(void *, _Unwind_GetLanguageSpecificData, (context at), (at))
PASS(void *, _Unwind_FindEnclosingFunction, (void *address), (address))
