/*
 * docs/openapi.json inside the program, so that what is served is what was built. The assembler takes the file in;
 * make runs at the top of the source tree, where the path is true.
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
