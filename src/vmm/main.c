/*
 * husk-vmm: one virtual machine under KVM. Started by the microvm engine with its control socket as descriptor 3:
 *
 *     husk-vmm UID GID
 *
 * It enters the jail, makes its threads and devices, and then serves the engine until the engine is gone or the guest
 * ends. It must not read any data of a guest before it is in the jail. Without ids (tests) it runs without a jail.
 */
#include <fcntl.h>
#include <sys/prctl.h>

#include "base/log.h"
#include "jail/jail.h"
#include "vmm/serve.h"

#define FILES_MAX 256
#define THREADS_MAX (VMM_VCPUS_MAX + 8)

static int parse_jail(int argc, char **argv, struct jail *jail, struct husk_error *err)
{
	int64_t uid, gid;

	if (argc != 3 || str_to_int64(argv[1], 1, UINT32_MAX - 1, &uid) < 0 ||
	    str_to_int64(argv[2], 1, UINT32_MAX - 1, &gid) < 0)
		return husk_fail(err, HUSK_INVALID, "usage: husk-vmm UID GID (started by husk, not by hand)");
	*jail = (struct jail){
		.uid = (uint32_t)uid, .gid = (uint32_t)gid, .netns = -1, .files = FILES_MAX, .threads = THREADS_MAX
	};
	return 0;
}

/* The page map of this process shows which pages of the guest have changed; in the jail there is no /proc. */
static int start(struct vm *vm, const struct jail *jail, struct husk_error *err)
{
	vm->memory.pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (vm->memory.pagemap < 0)
		return husk_fail_errno(err, "cannot open the page map");
	vm->confined = true;
	if (jail_enter(jail, err) < 0 || vm_create(vm, err) < 0)
		return -1;
	return vm_confine(vm, RULES_MAIN, err);
}

int main(int argc, char **argv)
{
	static struct vm vm;
	struct husk_error err = { 0 };
	struct jail jail;

	log_begin("vmm", LOG_INFO);
	if (parse_jail(argc, argv, &jail, &err) < 0 || start(&vm, &jail, &err) < 0) {
		log_line(LOG_ERROR, "%s", err.message);
		return 1;
	}
	/* The kernel frees everything; threads that run the guest are not waited for. */
	_exit(serve(&vm, CONTROL_FD));
}
