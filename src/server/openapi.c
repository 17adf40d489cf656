/*
 * docs/openapi.json inside the program, so that the server always serves the document that it was built with. The assembler
 * includes the file; make runs at the top of the source tree, so that the path is right.
 */
#include "server/openapi.h"

__asm__(".pushsection .rodata\n"
	".global openapi_text\n"
	"openapi_text:\n"
	".incbin \"docs/openapi.json\"\n"
	".global openapi_end\n"
	"openapi_end:\n"
	".byte 0\n"
	".popsection\n");
