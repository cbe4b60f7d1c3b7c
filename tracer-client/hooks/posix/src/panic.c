/* Replaces the parts of Rust's standard library that every panic refers to: messages, backtraces,
 * the parser of unwind tables. No hook needs them, and each starting program would touch their
 * memory. build.rs makes the linker use these two functions (--wrap).
 *
 * PANIC is the function that Rust's core library calls to panic. Its name contains a hash of the
 * compiler's version, which build.rs reads from the standard library. */

#include <stdlib.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

#ifdef PANIC
/* No hook panics. If one does, the program ends here, because frames of the program above it do not
 * expect to be unwound. */
HIDDEN __attribute__((noreturn)) void PANIC(const void *info)
{
	static const char message[] = "miot: a hook has panicked, the program ends\n";
	(void)info;
	ssize_t written = write(STDERR_FILENO, message, sizeof message - 1);
	(void)written;
	abort();
}

/* Called for frames of this library when an exception or a cancellation of the program passes
 * through them. These frames own nothing that needs a destructor: unwinding continues
 * (_URC_CONTINUE_UNWIND). */
HIDDEN int __wrap_rust_eh_personality(int version, int actions, unsigned long class,
				      void *exception, void *context)
{
	(void)version, (void)actions, (void)class, (void)exception, (void)context;
	return 8;
}
#endif
