/*
 * Installs a compiled seccomp filter on the calling thread. Separate from seccomp.c, so that a program with precompiled
 * filters does not load libseccomp.
 */
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "jail/seccomp.h"

int jail_filter_install(const struct jail_program *program, struct husk_error *err)
{
	/* The kernel requires this for a filter without privileges; Husk wants it for every process. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return husk_fail_errno(err, "cannot set no_new_privs");
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program->code) < 0)
		return husk_fail_errno(err, "cannot install the system call filter '%s'", program->name);
	return 0;
}
