/*
 * The few rules of HTTP/1 that every parser needs: a token, a Content-Length, a list of words. Used by the leash's
 * parser (net/leash_http.c), which filters a guest's requests, and by http1.c, which parses the answers of a guest's
 * programs. Further strictness is up to each parser.
 */
#ifndef HUSK_HTTP_GRAMMAR_H
#define HUSK_HTTP_GRAMMAR_H

#include "base/base.h"

/* True if the character may be part of a method or of a header's name. */
bool http_is_token(unsigned char c);
/* Decimal digits only, up to INT64_MAX; otherwise -1. */
int http_length(const char *text, size_t size, uint64_t *out);
/* True if a list ("keep-alive, Upgrade") contains this word; case does not matter. */
bool http_list_has(const char *list, size_t size, const char *word);
/* The value of a hexadecimal digit; -1 for another character. */
int http_hex_digit(char c);

#endif
