/*
 * METHOD_NETWORK, and the network part of IDENTITY: the name server, and the certificates that programs trust in addition
 * to the template's (the authority of the gateway, those of the policy). The interface is set up by the engine or by
 * interface.c. Files are replaced, never written through: a process of the guest
 * may have put a link or a pipe in their place, and the agent must not wait on one.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "agent/agent.h"
#include "agent/environment.h"

#define RESOLVER "/etc/resolv.conf"
#define CERTIFICATES "/etc/ssl/certs"
#define BUNDLE NETWORK_BUNDLE
#define OWN_DIRECTORY "/usr/local/share/ca-certificates" /* update-ca-certificates makes the bundle from these files */
#define OWN_FILE NETWORK_OWN_FILE
#define BUNDLE_MAX (8u << 20)
#define LINKS_MAX 10      /* certificates whose subjects have one hash */
#define ENTRIES_MAX 20000 /* of the directory of links: a guest may have filled it */

static int set_resolver(const char *address, struct husk_error *err)
{
	cleanup_free char *text = NULL;

	if (address[0] == '\0' || strspn(address, "0123456789.:abcdef") != strlen(address))
		return husk_fail(err, HUSK_INVALID, "name server '%.60s' is not an address", address);
	/* There is no search domain. */
	text = str_format("nameserver %s\noptions timeout:5 attempts:2\n", address);
	if (!text)
		return husk_fail_memory(err);
	return file_write_atomic(RESOLVER, text, strlen(text), 0644, err);
}

/* The current text, or "" if the file does not exist or is not a regular file. */
static char *read_text(const char *path, struct husk_error *err)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return strdup("");
	if (st.st_size > (off_t)BUNDLE_MAX) {
		husk_fail(err, HUSK_LIMIT, "'%s' is larger than %u bytes", path, BUNDLE_MAX);
		return NULL;
	}
	char *text = calloc(1, (size_t)st.st_size + 1);
	if (!text || read_full(fd, text, (size_t)st.st_size) < 0) {
		husk_fail_errno(err, "cannot read '%s'", path);
		free(text);
		return NULL;
	}
	return text;
}

bool network_is_link(int directory, const char *name)
{
	char target[sizeof(OWN_FILE) + 1];
	ssize_t size = readlinkat(directory, name, target, sizeof(target));

	return size == (ssize_t)strlen(OWN_FILE) && memcmp(target, OWN_FILE, (size_t)size) == 0;
}

/* OpenSSL finds a certificate through a link named after the hash of its subject: "5f15c80c.0", and ".1" if another
 * certificate has that name. */
static int link_by_hash(const char *hash, struct husk_error *err)
{
	for (int i = 0; i < LINKS_MAX; i++) {
		cleanup_free char *path = str_format(CERTIFICATES "/%s.%d", hash, i);

		if (!path)
			return husk_fail_memory(err);
		if (symlink(OWN_FILE, path) == 0 || network_is_link(AT_FDCWD, path))
			return 0;
		if (errno != EEXIST && errno != EINVAL)
			return husk_fail_errno(err, "cannot make '%s'", path);
	}
	return 0; /* programs that read the bundle still find the certificate */
}

static void remove_links(void)
{
	cleanup_dir DIR *directory = opendir(CERTIFICATES);
	struct dirent *entry;

	for (int i = 0; directory && i < ENTRIES_MAX && (entry = readdir(directory)); i++)
		if (network_is_link(dirfd(directory), entry->d_name))
			unlinkat(dirfd(directory), entry->d_name, 0);
}

/* The bundle without the certificates of an earlier call. */
static void cut(char *bundle, const char *old)
{
	char *at = *old ? strstr(bundle, old) : NULL;

	if (at)
		memmove(at, at + strlen(old), strlen(at + strlen(old)) + 1);
}

static int write_bundle(const char *bundle, const char *certificates, struct husk_error *err)
{
	size_t size = strlen(bundle);
	bool open_line = size && bundle[size - 1] != '\n';
	cleanup_free char *text = str_format("%s%s%s", bundle, open_line ? "\n" : "", certificates);

	return text ? file_write_atomic(BUNDLE, text, strlen(text), 0644, err) : husk_fail_memory(err);
}

/* Makes `certificates` the ones that are trusted in addition; "": none. */
static int trust(const char *certificates, const char *hash, char *const *more, struct husk_error *err)
{
	cleanup_free char *old = read_text(OWN_FILE, err);

	if (!old)
		return -1;
	if (!*old && !*certificates)
		return 0;
	cleanup_free char *bundle = read_text(BUNDLE, err);
	if (!bundle)
		return -1;
	if (*old && !str_equal(old, certificates)) {
		remove_links();
		cut(bundle, old);
	}
	if (!*certificates) {
		unlink(OWN_FILE);
		return write_bundle(bundle, "", err);
	}
	if (dir_make(OWN_DIRECTORY, 0755, err) < 0 || dir_make(CERTIFICATES, 0755, err) < 0 ||
	    file_write_atomic(OWN_FILE, certificates, strlen(certificates), 0644, err) < 0)
		return -1;
	if (hash && link_by_hash(hash, err) < 0)
		return -1;
	for (; *more; more++)
		if (link_by_hash(*more, err) < 0)
			return -1;
	return strstr(bundle, certificates) ? 0 : write_bundle(bundle, certificates, err);
}

static int apply_certificates(const struct request *request, struct husk_error *err)
{
	cleanup_free char *certificates = NULL, *hash = NULL;
	cleanup_strv char **more = request_strings(request, TAG_HASH, err);

	if (!more || request_string(request, TAG_CERTIFICATE, &certificates, err) < 0 ||
	    request_string(request, TAG_NAME, &hash, err) < 0)
		return -1;
	return certificates ? trust(certificates, hash, more, err) : 0;
}

int network_apply(const struct request *request, bool fresh, struct husk_error *err)
{
	cleanup_free char *resolver = NULL;

	if (request_string(request, TAG_NAMESERVER, &resolver, err) < 0)
		return -1;
	if (interface_apply(request, fresh, err) < 0)
		return -1;
	if (resolver && set_resolver(resolver, err) < 0)
		return -1;
	return apply_certificates(request, err);
}

int network_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	cleanup_strv char **environment = request_strings(request, TAG_ENV, err);

	(void)results;
	if (!environment)
		return -1;
	if (getpid() == 1 && network_apply(request, false, err) < 0)
		return -1;
	environment_adopt(agent, steal_pointer(environment));
	return 0;
}
