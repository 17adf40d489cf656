/*
 * The system calls that each kind of thread of husk-vmm may make. A thread inherits the filter of the thread that started
 * it, and its own filter can only remove rights. So the first thread's list includes what starting the others needs. Each
 * entry names the function that needs it. Any other system call kills the process.
 */
#include "vmm/rules.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/kvm.h>
#include <sys/prctl.h>

/* loop.c, virtio.c, limit.c: waiting, and the eventfds and timers of devices. */
static const struct jail_rule loop_rules[] = {
	JAIL_ALLOW(epoll_wait), JAIL_ALLOW(read), JAIL_ALLOW(write), JAIL_ALLOW(timerfd_settime), JAIL_END,
};

/* block.c, disk.c: requests of the guest. */
static const struct jail_rule disk_rules[] = {
	JAIL_ALLOW(preadv), JAIL_ALLOW(pwritev), JAIL_ALLOW(fdatasync), JAIL_ALLOW(fallocate), JAIL_END,
};

/* vcpu.c, serial.c: running the guest, the eventfds it writes to, the console's log. */
static const struct jail_rule vcpu_rules[] = {
	JAIL_IOCTL(KVM_RUN),
	JAIL_ALLOW(write),
	JAIL_END,
};

/* net.c, vsock.c: a driver starts or resets a device by a register, on a vCPU's thread. */
static const struct jail_rule register_rules[] = {
	JAIL_ALLOW(epoll_ctl),
	JAIL_ALLOW(close),
	JAIL_IOCTL(TUNSETOFFLOAD),
	JAIL_END,
};

/* serve.c, message.c, vsock.c, net.c, rng.c: passed sockets, taps, random bytes. */
static const struct jail_rule main_rules[] = {
	JAIL_ALLOW(recvmsg),
	JAIL_ALLOW(sendmsg),
	JAIL_ALLOW(recvfrom),
	JAIL_ALLOW(sendto),
	JAIL_ALLOW(readv),
	JAIL_ALLOW(writev),
	JAIL_ALLOW_IF(shutdown, 2, SHUT_WR),
	JAIL_FCNTL(F_GETFL),
	JAIL_FCNTL(F_SETFL),
	JAIL_ALLOW(getrandom),
	JAIL_ALLOW(poll),
	JAIL_END,
};

/* disk.c, layers.c, state.c, boot.c: files of layers, images and kernels. */
static const struct jail_rule file_rules[] = {
	JAIL_ALLOW(pread64),   JAIL_ALLOW(pwrite64), JAIL_ALLOW(preadv),
	JAIL_ALLOW(pwritev),   JAIL_ALLOW(fstat),    JAIL_ALLOW(newfstatat),
	JAIL_ALLOW(ftruncate), JAIL_ALLOW(lseek),    JAIL_END,
};

/* memory.c, layers.c, prefetch.c: mapping layers, returning pages, loading pages in advance. The C library also maps
 * and unmaps. */
static const struct jail_rule memory_rules[] = {
	JAIL_MADVISE(MADV_DONTDUMP),      JAIL_MADVISE(MADV_DONTFORK),       JAIL_MADVISE(MADV_DONTNEED),
	JAIL_MADVISE(MADV_POPULATE_READ), JAIL_MADVISE(MADV_POPULATE_WRITE), JAIL_END,
};

/* vm.c, vcpu.c, cpuid.c: making the machine, and stopping it. */
static const struct jail_rule machine_rules[] = {
	JAIL_IOCTL(KVM_GET_API_VERSION),
	JAIL_IOCTL(KVM_CREATE_VM),
	JAIL_IOCTL(KVM_CHECK_EXTENSION),
	JAIL_IOCTL(KVM_GET_VCPU_MMAP_SIZE),
	JAIL_IOCTL(KVM_GET_SUPPORTED_CPUID),
	JAIL_IOCTL(KVM_GET_MSR_INDEX_LIST),
	JAIL_IOCTL(KVM_SET_USER_MEMORY_REGION),
	JAIL_IOCTL(KVM_SET_IDENTITY_MAP_ADDR),
	JAIL_IOCTL(KVM_SET_TSS_ADDR),
	JAIL_IOCTL(KVM_CREATE_IRQCHIP),
	JAIL_IOCTL(KVM_IRQFD),
	JAIL_IOCTL(KVM_IOEVENTFD),
	JAIL_IOCTL(KVM_CREATE_VCPU),
	JAIL_IOCTL(KVM_SET_CPUID2),
	JAIL_IOCTL(KVM_GET_SREGS),
	JAIL_IOCTL(KVM_SET_SREGS),
	JAIL_IOCTL(KVM_SET_REGS),
	JAIL_IOCTL(KVM_RUN), /* for the threads that are started */
	JAIL_ALLOW(tgkill),  /* the kick */
	JAIL_ALLOW(getpid),
	JAIL_ALLOW(rt_sigaction),
	JAIL_CLONE_THREAD,
	JAIL_ALLOW(set_robust_list),
	JAIL_ALLOW(rseq),
	JAIL_PRCTL(PR_SET_NO_NEW_PRIVS), /* the filters of the threads that are started */
	JAIL_ALLOW(seccomp),
	JAIL_END,
};

/* cpustate.c, snapshot.c, restore.c. */
static const struct jail_rule state_rules[] = {
	JAIL_IOCTL(KVM_GET_MP_STATE),
	JAIL_IOCTL(KVM_SET_MP_STATE),
	JAIL_IOCTL(KVM_GET_REGS),
	JAIL_IOCTL(KVM_GET_XSAVE),
	JAIL_IOCTL(KVM_GET_XSAVE2),
	JAIL_IOCTL(KVM_SET_XSAVE),
	JAIL_IOCTL(KVM_GET_XCRS),
	JAIL_IOCTL(KVM_SET_XCRS),
	JAIL_IOCTL(KVM_GET_DEBUGREGS),
	JAIL_IOCTL(KVM_SET_DEBUGREGS),
	JAIL_IOCTL(KVM_GET_LAPIC),
	JAIL_IOCTL(KVM_SET_LAPIC),
	JAIL_IOCTL(KVM_GET_MSRS),
	JAIL_IOCTL(KVM_SET_MSRS),
	JAIL_IOCTL(KVM_GET_CPUID2),
	JAIL_IOCTL(KVM_GET_VCPU_EVENTS),
	JAIL_IOCTL(KVM_SET_VCPU_EVENTS),
	JAIL_IOCTL(KVM_KVMCLOCK_CTRL),
	JAIL_IOCTL(KVM_GET_TSC_KHZ),
	JAIL_IOCTL(KVM_SET_TSC_KHZ),
	JAIL_IOCTL(KVM_GET_CLOCK),
	JAIL_IOCTL(KVM_SET_CLOCK),
	JAIL_IOCTL(KVM_GET_IRQCHIP),
	JAIL_IOCTL(KVM_SET_IRQCHIP),
	JAIL_END,
};

static const struct jail_rule *const main_lists[] = { jail_libc_rules, loop_rules,  register_rules,
						      main_rules,      file_rules,  memory_rules,
						      machine_rules,   state_rules, NULL };
static const struct jail_rule *const disk_lists[] = { jail_libc_rules, loop_rules, disk_rules, NULL };
static const struct jail_rule *const vcpu_lists[] = { jail_libc_rules, vcpu_rules, register_rules, NULL };

const struct jail_filter rules_filters[RULES_COUNT] = {
	[RULES_MAIN] = { .name = "main", .lists = main_lists },
	[RULES_DISK] = { .name = "disk", .lists = disk_lists },
	[RULES_VCPU] = { .name = "vcpu", .lists = vcpu_lists },
};
