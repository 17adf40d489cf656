/*
 * Reads the host's DNS resolvers for leash.c, each time a policy is given to a leash. The leash itself cannot open files.
 */
#include "net/resolvers.h"

#include <arpa/inet.h>

#define FILE_MAX_BYTES (64u << 10)
#define COUNT_MAX 4

/* "addr", "addr:port", "[addr]:port" or a bare IPv6 address. */
static char *normalise(const char *text)
{
	char address[64];
	struct in6_addr parsed;
	int64_t port = 53;

	if (inet_pton(AF_INET6, text, &parsed) == 1)
		return str_format("[%s]:53", text);
	const char *end = text[0] == '[' ? strchr(text, ']') : strchr(text, ':');
	const char *colon = end && *end == ']' ? end + 1 : end;
	size_t size = end ? (size_t)(end - text) : strlen(text);
	if (size >= sizeof(address) ||
	    (colon && *colon && (*colon != ':' || str_to_int64(colon + 1, 1, 65535, &port) < 0)))
		return NULL;
	memcpy(address, text, size);
	address[size] = '\0';
	if (address[0] == '[')
		return inet_pton(AF_INET6, address + 1, &parsed) == 1 ? str_format("%s]:%d", address, (int)port) : NULL;
	return inet_pton(AF_INET, address, &parsed) == 1 ? str_format("%s:%d", address, (int)port) : NULL;
}

static int add(json_t *list, const char *text)
{
	cleanup_free char *plain = normalise(text);

	if (!plain)
		return -1;
	if (json_array_size(list) < COUNT_MAX)
		json_array_append_new(list, json_string(plain));
	return 0;
}

static int read_variable(json_t *list, const char *value, struct husk_error *err)
{
	cleanup_free char *copy = strdup(value);
	char *rest = copy, *word;

	if (!copy)
		return husk_fail_memory(err);
	while ((word = strsep(&rest, ", ")))
		if (*word && add(list, word) < 0)
			return husk_fail(err, HUSK_INVALID,
					 "HUSK_DNS: '%.64s' is not an address; write addr or addr:port", word);
	return 0;
}

/* Invalid lines of the host's own file are skipped, as the C library does. */
static void read_file(json_t *list, const char *path)
{
	cleanup_free char *text = file_read(path, FILE_MAX_BYTES, NULL, NULL);
	char *rest = text, *line;

	while (rest && (line = strsep(&rest, "\n"))) {
		char address[64];

		if (sscanf(line, " nameserver %63s", address) == 1 && !strchr(address, '%'))
			add(list, address);
	}
}

json_t *resolvers_list(const char *file, struct husk_error *err)
{
	const char *variable = getenv("HUSK_DNS");
	json_t *list = json_array();

	if (!list) {
		husk_fail_memory(err);
		return NULL;
	}
	if (variable && *variable) {
		if (read_variable(list, variable, err) < 0) {
			json_decref(list);
			return NULL;
		}
	} else {
		read_file(list, file);
	}
	if (json_array_size(list) == 0)
		add(list, "127.0.0.1"); /* the C library's default */
	return list;
}
