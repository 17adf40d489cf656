/*
 * METHOD_NETWORK, and the network part of IDENTITY: the name server, and the certificate authority of the gateway. The
 * interface is set up by the engine or by interface.c. Files are replaced, never written through: a process of the guest
 * may have put a link or a pipe in their place, and the agent must not wait on one.
 */
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

/* The current bundle, or "" if it does not exist or is not a regular file. */
static char *read_bundle(struct husk_error *err)
{
	cleanup_close int fd = open(BUNDLE, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return strdup("");
	if (st.st_size > (off_t)BUNDLE_MAX) {
		husk_fail(err, HUSK_LIMIT, "'" BUNDLE "' is larger than %u bytes", BUNDLE_MAX);
		return NULL;
	}
	char *text = calloc(1, (size_t)st.st_size + 1);
	if (!text || read_full(fd, text, (size_t)st.st_size) < 0) {
		husk_fail_errno(err, "cannot read '" BUNDLE "'");
		free(text);
		return NULL;
	}
	return text;
}

/* OpenSSL finds a certificate through a link named after the hash of its subject. */
static int link_by_hash(const char *hash, struct husk_error *err)
{
	cleanup_free char *path = str_format(CERTIFICATES "/%s.0", hash);

	if (!path)
		return husk_fail_memory(err);
	unlink(path);
	return symlink(OWN_FILE, path) < 0 ? husk_fail_errno(err, "cannot make '%s'", path) : 0;
}

static int trust(const char *certificate, const char *hash, struct husk_error *err)
{
	cleanup_free char *bundle = read_bundle(err);
	cleanup_free char *longer = NULL;

	if (!bundle)
		return -1;
	if (dir_make(OWN_DIRECTORY, 0755, err) < 0 || dir_make(CERTIFICATES, 0755, err) < 0 ||
	    file_write_atomic(OWN_FILE, certificate, strlen(certificate), 0644, err) < 0)
		return -1;
	if (hash && link_by_hash(hash, err) < 0)
		return -1;
	if (strstr(bundle, certificate))
		return 0;
	longer = str_format("%s%s", bundle, certificate);
	return longer ? file_write_atomic(BUNDLE, longer, strlen(longer), 0644, err) : husk_fail_memory(err);
}

int network_apply(const struct request *request, bool fresh, struct husk_error *err)
{
	cleanup_free char *resolver = NULL, *certificate = NULL, *hash = NULL;

	if (request_string(request, TAG_NAMESERVER, &resolver, err) < 0 ||
	    request_string(request, TAG_CERTIFICATE, &certificate, err) < 0 ||
	    request_string(request, TAG_NAME, &hash, err) < 0)
		return -1;
	if (interface_apply(request, fresh, err) < 0)
		return -1;
	if (resolver && set_resolver(resolver, err) < 0)
		return -1;
	return certificate ? trust(certificate, hash, err) : 0;
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
