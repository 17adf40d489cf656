/*
 * The description of the API, as text.
 */
#ifndef HUSK_SERVER_OPENAPI_H
#define HUSK_SERVER_OPENAPI_H

extern const char openapi_text[], openapi_end[];

#endif
