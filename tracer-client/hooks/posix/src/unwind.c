/* The unwinder, looked for when something unwinds: a program that starts does not load libgcc_s for us.
 *
 * Rust's library refers to these functions. They are called when a hook panics, which none does, and for frames of
 * ours that have something to clean up, which those on the way from a program to its libc have not. Calls go to the
 * same unwinder that the program has: the structures are its own. */

#include <dlfcn.h>
#include <stdlib.h>

static void *find(const char *name)
{
	void *unwinder = dlopen("libgcc_s.so.1", RTLD_LAZY);
	void *found = unwinder ? dlsym(unwinder, name) : NULL;
	if (found == NULL)
		abort();
	return found;
}

#define PASS(type, name, parameters, arguments)                            \
	__attribute__((visibility("hidden"))) type name parameters         \
	{                                                                  \
		static type(*real) parameters;                             \
		type(*known) parameters = __atomic_load_n(&real, __ATOMIC_RELAXED); \
		if (known == NULL) {                                       \
			known = find(#name);                               \
			__atomic_store_n(&real, known, __ATOMIC_RELAXED);  \
		}                                                          \
		return known arguments;                                    \
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
