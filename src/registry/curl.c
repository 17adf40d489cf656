/*
 * Loads libcurl (curl.h) once, under a lock.
 */
#include "registry/curl.h"

#include <dlfcn.h>
#include <pthread.h>

static struct curl_library library;
static bool loaded;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct {
	const char *name;
	void *slot;
} symbols[] = {
	{ "curl_easy_init", &library.easy_init },
	{ "curl_easy_setopt", &library.easy_setopt },
	{ "curl_easy_perform", &library.easy_perform },
	{ "curl_easy_getinfo", &library.easy_getinfo },
	{ "curl_easy_cleanup", &library.easy_cleanup },
	{ "curl_easy_reset", &library.easy_reset },
	{ "curl_easy_escape", &library.easy_escape },
	{ "curl_free", &library.release },
	{ "curl_slist_append", &library.slist_append },
	{ "curl_slist_free_all", &library.slist_free_all },
	{ "curl_url", &library.url },
	{ "curl_url_cleanup", &library.url_cleanup },
	{ "curl_url_set", &library.url_set },
	{ "curl_url_get", &library.url_get },
};

static int load(struct husk_error *err)
{
	void *handle = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
	void *initialize = handle ? dlsym(handle, "curl_global_init") : NULL;
	CURLcode (*global_init)(long flags) = NULL;

	memcpy(&global_init, &initialize, sizeof(initialize));
	for (size_t i = 0; global_init && i < ARRAY_SIZE(symbols); i++) {
		void *found = dlsym(handle, symbols[i].name);
		if (!found)
			global_init = NULL;
		memcpy(symbols[i].slot, &found, sizeof(found));
	}
	if (!global_init) {
		const char *why = dlerror();
		husk_fail(err, HUSK_UNAVAILABLE, "libcurl is missing (%s); install the package libcurl4",
			  why ? why : "too old");
		if (handle)
			dlclose(handle);
		return -1;
	}
	if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return husk_fail(err, HUSK_INTERNAL, "libcurl cannot be set up");
	loaded = true;
	return 0;
}

const struct curl_library *curl_load(struct husk_error *err)
{
	pthread_mutex_lock(&load_lock);
	int result = loaded ? 0 : load(err);
	pthread_mutex_unlock(&load_lock);
	return result < 0 ? NULL : &library;
}
