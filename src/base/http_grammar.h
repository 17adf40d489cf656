/*
 * The few rules of HTTP/1 that every reader of it needs: what a token is, a Content-Length, a list of words. Used by the
 * leash's parser (net/leash_http.c), which filters what a guest sends, and by http1.c, which reads what a
 * guest's program answers. How strict each of them is beyond that is its own affair.
 */
#ifndef HUSK_HTTP_GRAMMAR_H
#define HUSK_HTTP_GRAMMAR_H

#include "base/base.h"

/* May the character be in a method or in a header's name? */
bool http_is_token(unsigned char c);
/* Decimal digits alone, up to INT64_MAX; -1 when it is anything else. */
int http_length(const char *text, size_t size, uint64_t *out);
/* Whether a list ("keep-alive, Upgrade") has this word, whatever its case. */
bool http_list_has(const char *list, size_t size, const char *word);
/* The value of a hexadecimal digit, -1 when it is none. */
int http_hex_digit(char c);

#endif
