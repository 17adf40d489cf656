/*
 * libcurl, loaded at the first request to a registry. libcurl needs thirty libraries, and no supervisor or other
 * command should have to load them.
 */
#ifndef HUSK_REGISTRY_CURL_H
#define HUSK_REGISTRY_CURL_H

#include <curl/curl.h>

#include "base/base.h"

struct curl_library {
	CURL *(*easy_init)(void);
	CURLcode (*easy_setopt)(CURL *handle, CURLoption option, ...);
	CURLcode (*easy_perform)(CURL *handle);
	CURLcode (*easy_getinfo)(CURL *handle, CURLINFO info, ...);
	void (*easy_cleanup)(CURL *handle);
	void (*easy_reset)(CURL *handle);
	char *(*easy_escape)(CURL *handle, const char *text, int length);
	void (*release)(void *memory);
	struct curl_slist *(*slist_append)(struct curl_slist *list, const char *text);
	void (*slist_free_all)(struct curl_slist *list);
	CURLU *(*url)(void);
	void (*url_cleanup)(CURLU *url);
	CURLUcode (*url_set)(CURLU *url, CURLUPart part, const char *text, unsigned flags);
	CURLUcode (*url_get)(const CURLU *url, CURLUPart part, char **text, unsigned flags);
};

/* The library, for the life of the process. NULL with UNAVAILABLE, which names the package. */
const struct curl_library *curl_load(struct husk_error *err);

#endif
