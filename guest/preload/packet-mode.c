/*
 * Packet mode of terminals (TIOCPKT) for VTE, the widget of xfce4-terminal and others: gVisor does not support it, and
 * VTE shows nothing without it. In packet mode every read of the master begins with a byte that reports changes. This
 * library, preloaded only into the terminal (templates/parts/desktop), claims support and returns zero for that byte, which
 * means data. It removes itself from the environment, so that programs in the terminal are not affected.
 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define DESCRIPTORS 4096

/* Masters in packet mode. One byte each, so that threads need no lock. */
static volatile unsigned char packets[DESCRIPTORS];

static long call(long number, long a, long b, long c)
{
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	if (result >= 0)
		return result;
	errno = (int)-result;
	return -1;
}

static int is_packet(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS && packets[fd];
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;

	va_start(list, request);
	long argument = va_arg(list, long);
	va_end(list);
	long result = call(SYS_ioctl, fd, (long)request, argument);
	if (result == 0 || request != TIOCPKT || errno != ENOTTY || fd < 0 || fd >= DESCRIPTORS)
		return (int)result;
	packets[fd] = *(const int *)argument != 0;
	return 0;
}

ssize_t read(int fd, void *data, size_t size)
{
	if (!is_packet(fd) || size < 2)
		return call(SYS_read, fd, (long)data, (long)size);
	long got = call(SYS_read, fd, (long)data + 1, (long)size - 1);
	if (got <= 0)
		return got;
	*(char *)data = 0;
	return got + 1;
}

int close(int fd)
{
	if (is_packet(fd))
		packets[fd] = 0;
	return (int)call(SYS_close, fd, 0, 0);
}

static __attribute__((constructor)) void once(void)
{
	unsetenv("LD_PRELOAD");
}
