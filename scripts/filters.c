/*
 * Writes the filters of husk-vmm's threads as C, compiled from the tables in src/vmm/rules.c. Run by the Makefile, so
 * that a machine starts some milliseconds faster and husk-vmm does not link libseccomp.
 */
#include <stdio.h>

#include "vmm/rules.h"

static void print_program(const struct jail_program *program)
{
	printf("static struct sock_filter %s_code[] = {\n", program->name);
	for (unsigned i = 0; i < program->code.len; i++) {
		const struct sock_filter *step = &program->code.filter[i];

		printf("\t{ 0x%x, %u, %u, 0x%x },\n", step->code, step->jt, step->jf, step->k);
	}
	printf("};\n");
}

int main(void)
{
	struct husk_error err = { 0 };

	printf("/* Made from src/vmm/rules.c by scripts/filters.c. */\n#include \"vmm/rules.h\"\n\n");
	for (size_t i = 0; i < RULES_COUNT; i++) {
		struct jail_program *program = NULL;

		if (jail_filter_compile(&rules_filters[i], &program, &err) < 0) {
			fprintf(stderr, "filters: %s\n", err.message);
			return 1;
		}
		print_program(program);
		jail_program_free(program);
	}
	printf("\nconst struct jail_program rules_programs[RULES_COUNT] = {\n");
	for (size_t i = 0; i < RULES_COUNT; i++) {
		const char *name = rules_filters[i].name;

		printf("\t{ .name = \"%s\", .code = { .len = sizeof(%s_code) / sizeof(%s_code[0]), .filter = %s_code } "
		       "},\n",
		       name, name, name, name);
	}
	printf("};\n");
	return 0;
}
