/*
 * Fuzzes the unpacker of root filesystems: the first byte says whether the rest is a whole tar or a layer over a small tree
 * with links in it. Whatever it holds, nothing appears beside the tree, and no path in the tree is longer or deeper than
 * an image may have.
 */
#include <fcntl.h>
#include <ftw.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "store/rootfs.h"

#include "place.h"

#define DEEPEST 520
#define LONGEST 4096

static size_t top_length;

static int look(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
	(void)kind;
	require(strlen(path) - top_length <= LONGEST && walk->level <= DEEPEST);
	require(!S_ISCHR(st->st_mode) && !S_ISBLK(st->st_mode));
	return 0;
}

/* What a layer may find: a file, a directory, links inside and out. */
static void lay_tree(const char *tree)
{
	cleanup_free char *file = str_format("%s/file", tree), *inner = str_format("%s/a/b", tree);
	cleanup_free char *out = str_format("%s/out", tree), *in = str_format("%s/in", tree);

	require(file && inner && out && in);
	require(dir_make(inner, 0755, NULL) == 0 && file_write_atomic(file, "x", 1, 0644, NULL) == 0);
	require(symlink("../outside", out) == 0 && symlink("/a", in) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *tree = str_format("%s/tree", place), *outside = str_format("%s/outside", place);
	cleanup_close int fd = memfd_create("tar", MFD_CLOEXEC);
	struct dirent *entry;
	size_t seen = 0;

	if (size < 1 || size > 1u << 16)
		return 0;
	require(tree && outside && fd >= 0);
	require(dir_make(tree, 0755, NULL) == 0 && dir_make(outside, 0755, NULL) == 0);
	require(write_full(fd, data + 1, size - 1) == 0 && lseek(fd, 0, SEEK_SET) == 0);
	top_length = strlen(tree);
	if (data[0] & 1) {
		lay_tree(tree);
		(void)unpack_layer(fd, "layer", tree, NULL);
	} else {
		(void)unpack_tar(fd, "tar", "tar", 0, tree, NULL);
	}
	require(rmdir(outside) == 0); /* nothing was put there */
	nftw(tree, look, 64, FTW_PHYS);
	require(dir_remove(tree, NULL) == 0);
	cleanup_dir DIR *dir = opendir(place);
	while (dir && (entry = readdir(dir)))
		seen += entry->d_name[0] != '.';
	require(seen == 0);
	return 0;
}
