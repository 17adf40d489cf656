/*
 * Husk's error object: part of the public API (husk.h includes it). It has its own file because every internal part
 * uses it too.
 */
#ifndef HUSK_ERROR_H
#define HUSK_ERROR_H

/* The kind of failure. It decides exit codes and HTTP statuses, and is never parsed from the text. */
enum husk_code {
	HUSK_OK = 0,
	HUSK_INVALID,     /* the caller's input is wrong: the message names the field and the fix */
	HUSK_NOT_FOUND,   /* the named object does not exist */
	HUSK_CONFLICT,    /* the object exists already, or its state does not allow this */
	HUSK_LIMIT,       /* a limit was hit: memory, disk, processes, buffer, quota */
	HUSK_DENIED,      /* the caller has no token, a wrong one, or one without the right to do this */
	HUSK_TIMEOUT,     /* it took longer than allowed */
	HUSK_UNAVAILABLE, /* something Husk needs is missing or does not work here */
	HUSK_GONE,        /* the sandbox or the peer ended during the call */
	HUSK_PROTOCOL,    /* the other side sent invalid bytes */
	HUSK_INTERNAL,    /* a system call or a part of Husk failed */
};

struct husk_error {
	enum husk_code code;
	char message[1024]; /* "what is wrong; what to do about it": the hint follows the first "; " */
	char field[48];     /* INVALID: the name of the option that is wrong, where there is one; else "" */
};

#endif
