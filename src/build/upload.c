/*
 * The context that a client of a server sent (build.h), as one tar or as several. Its bytes are untrusted: a process in a cell
 * unpacks them, as it does root filesystems, in a workshop of the instance. After a kill, the instance's sweep removes the workshop.
 */
#include <fts.h>
#include <sys/stat.h>

#include "build/build.h"
#include "instance/spawn.h"
#include "instance/workshop.h"
#include "jail/cgroup.h"
#include "store/builder.h"

#define MEMORY_MAX (UINT64_C(1) << 30)
#define PROCESSES_MAX 16
#define BYTES_MAX (UINT64_C(8) << 30) /* of its files; holes count */

struct build_upload {
	struct husk *husk;
	struct workshop workshop;
	char *path;
};

const char *build_upload_path(const struct build_upload *upload)
{
	return upload->path;
}

void build_upload_close(struct build_upload *upload)
{
	if (!upload)
		return;
	workshop_close(upload->husk, &upload->workshop);
	free(upload->path);
	free(upload);
}

/* 1: it has no files. */
static int check_plain(int fd, struct husk_error *err)
{
	static const char end[512];
	char head[512];
	ssize_t size = pread(fd, head, sizeof(head), 0);

	if (size == (ssize_t)sizeof(head) && memcmp(head + 257, "ustar", 5) == 0)
		return 0;
	if (size == (ssize_t)sizeof(head) && memcmp(head, end, sizeof(head)) == 0)
		return 1;
	return husk_fail_field(err, "context", "the context is not a tar without compression");
}

/* For the process that unpacks. */
static int make_folder(const char *path, struct husk_error *err)
{
	uint32_t owner = slot_uid_base(0);

	if (dir_make(path, 0700, err) < 0)
		return -1;
	return chown(path, owner, owner) < 0 ? husk_fail_errno(err, "cannot hand '%s' over", path) : 0;
}

static int open_place(struct build_upload *upload, struct husk_error *err)
{
	const struct cgroup_limits limits = { .memory_bytes = MEMORY_MAX, .pids = PROCESSES_MAX };

	if (workshop_open(upload->husk, &upload->workshop, err) < 0 ||
	    cgroup_set_limits(upload->workshop.cgroup, &limits, err) < 0)
		return -1;
	upload->path = str_format("%s/context", upload->workshop.directory);
	if (!upload->path)
		return husk_fail_memory(err);
	return make_folder(upload->path, err);
}

/* Files with holes take no room, but every byte of them would be read. */
static int check_size(const struct build_upload *upload, struct husk_error *err)
{
	char *const roots[] = { upload->path, NULL };
	FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	uint64_t bytes = 0;

	if (!walk)
		return husk_fail_errno(err, "cannot read the context");
	for (FTSENT *entry; (entry = fts_read(walk)) && bytes <= BYTES_MAX;)
		if (entry->fts_info == FTS_F && __builtin_add_overflow(bytes, entry->fts_statp->st_size, &bytes))
			bytes = UINT64_MAX;
	fts_close(walk);
	if (bytes <= BYTES_MAX)
		return 0;
	return husk_fail_field(err, "context", "the files of the context have more than %llu bytes",
			       (unsigned long long)BYTES_MAX);
}

int build_upload_add(struct build_upload *upload, const char *name, int fd, struct husk_error *err)
{
	cleanup_free char *program = husk_program(err);
	cleanup_free char *folder = name ? str_format("%s/%s", upload->path, name) : strdup(upload->path);
	const char *called = name ? "the archive of files" : "the context";

	if (!program)
		return -1;
	if (!folder)
		return husk_fail_memory(err);
	int empty = name ? make_folder(folder, err) : check_plain(fd, err);
	if (empty)
		return MIN(empty, 0);
	const struct template_jail jail = { .program = program,
					    .uid_base = slot_uid_base(0),
					    .cgroup = upload->workshop.cgroup };
	if (lseek(fd, 0, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot read the context");
	if (step_unpack(&jail, fd, called, "context", BYTES_MAX, folder, err) < 0)
		return -1;
	return check_size(upload, err);
}

int build_upload_open(struct husk *owner, struct build_upload **out, struct husk_error *err)
{
	struct build_upload *upload = calloc(1, sizeof(*upload));

	if (!upload)
		return husk_fail_memory(err);
	*upload = (struct build_upload){ .husk = owner, .workshop = { .lock = -1 } };
	if (open_place(upload, err) == 0) {
		*out = upload;
		return 0;
	}
	build_upload_close(upload);
	return -1;
}
