/*
 * The guest of test_gvisor.c: pid 1 of a tiny root image. It sets up its writable root as husk-agent does, then answers
 * lines on stdin, each answer starting with how many lines it has seen so far: that number is its memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

static int make_root(void)
{
	if (chdir("/.husk/disk/data") < 0 && chdir("/.husk/disk") < 0)
		return -1;
	mkdir("upper", 0755);
	mkdir("work", 0755);
	if (mount("overlay", "/.husk/root", "overlay", 0,
		  access("/.husk/disk/data", F_OK) == 0
			  ? "lowerdir=/,upperdir=/.husk/disk/data/upper,workdir=/.husk/disk/data/work"
			  : "lowerdir=/,upperdir=/.husk/disk/upper,workdir=/.husk/disk/work") < 0)
		return -1;
	if (mkdir("/.husk/root/old", 0755) < 0 || syscall(SYS_pivot_root, "/.husk/root", "/.husk/root/old") < 0)
		return -1;
	return chdir("/");
}

/* Writes up to `count` MiB; how many fitted. */
static size_t fill(const char *path, size_t count)
{
	static char block[1 << 20];
	int fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0644);
	size_t done = 0;

	memset(block, 7, sizeof(block));
	while (fd >= 0 && done < count && write(fd, block, sizeof(block)) == (ssize_t)sizeof(block))
		done++;
	close(fd);
	return done;
}

static char *volatile kept; /* so that the compiler leaves memory that nobody reads in place */

static void answer(unsigned long number, char *line)
{
	char *space = strchr(line, ' ');
	size_t amount = space ? strtoul(space, NULL, 10) : 0;

	if (strncmp(line, "memory ", 7) == 0) {
		char *block = malloc(amount << 20);

		if (block)
			memset(block, 1, amount << 20);
		kept = block;
		printf("%lu %s\n", number, block ? "ok" : "no");
	} else if (strncmp(line, "file ", 5) == 0) {
		size_t done = fill("/big", amount);

		printf("%lu %zu %s\n", number, done, done < amount ? strerror(errno) : "ok");
	} else if (strcmp(line, "size") == 0) {
		struct stat found;

		printf("%lu %lld\n", number, stat("/big", &found) == 0 ? (long long)found.st_size : -1ll);
	} else if (strcmp(line, "host") == 0) {
		/* Anything the host would show: none of it may be there. */
		printf("%lu %s\n", number, access("/etc/passwd", F_OK) == 0 ? "seen" : "none");
	} else if (strcmp(line, "noise") == 0) {
		for (int i = 0; i < 400; i++)
			fprintf(stderr, "%08191d\n", i);
		printf("%lu ok\n", number);
	} else if (strcmp(line, "exit") == 0) {
		exit(3);
	} else {
		printf("%lu %s\n", number, line);
	}
}

int main(void)
{
	char line[256];
	unsigned long number = 0;

	if (make_root() < 0)
		fprintf(stderr, "guest: no root: %s\n", strerror(errno));
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		answer(++number, line);
	}
	return 0;
}
