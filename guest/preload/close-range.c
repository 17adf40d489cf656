/*
 * gVisor refuses close_range(2) with the highest possible number, which is how most programs call it. GLib then cannot
 * start any program ("Failed to close file descriptor for child process"). This library, preloaded
 * (guest/desktop-session), uses the highest number that a descriptor can have instead. It uses only errno of the
 * program's own C library.
 */
#include <errno.h>
#include <limits.h>
#include <sys/syscall.h>

int close_range(unsigned first, unsigned last, int flags);

int close_range(unsigned first, unsigned last, int flags)
{
	register long number __asm__("rax") = SYS_close_range;
	long result;

	if (last > INT_MAX)
		last = INT_MAX;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "r"(number), "D"((long)first), "S"((long)last), "d"((long)flags)
			 : "rcx", "r11", "memory");
	if (result >= 0)
		return (int)result;
	errno = (int)-result;
	return -1;
}
