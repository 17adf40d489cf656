# Husk's build: one makefile for everything. Sources are found by folder, so a new file needs no line here.
#
#   make            build/husk, build/huskd, build/libhusk.a, build/libhusk.so, build/husk-agent, build/husk-vmm, build/husk-film,
#                   build/examples/*
#   make help       the other targets
#
# Anything that builds first makes sure that the Debian packages it needs are there (scripts/setup, once).
# V=1 shows the commands, JOBS=1 builds one file at a time, SANITIZE=1 builds the host side with ASan and UBSan into
# build-asan.

PREFIX ?= /usr/local
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
# Programs find their files beside themselves; this is where they look next. (Packages are installed with a PREFIX of their
# own from the same build.)
BUILD_PREFIX ?= $(PREFIX)
WERROR ?= -Werror
ifeq ($(origin CC),default)
CC := gcc
endif
MUSL_CC ?= musl-gcc
CLANG ?= clang
V ?= 0
Q := $(if $(filter 0,$(V)),@)

# All cores unless told otherwise. (make hides its own -j while it reads this file, so that one would be overridden.)
ifeq ($(MAKELEVEL),0)
JOBS ?= $(shell nproc)
MAKEFLAGS += --jobs=$(JOBS)
endif
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

# ---- flags -----------------------------------------------------------------------------------------------------------

TOP := build
BUILD := $(TOP)
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wconversion -Wno-sign-conversion $(WERROR)
CPPFLAGS := -Iinclude -Isrc -D_GNU_SOURCE -DHUSK_PREFIX='"$(BUILD_PREFIX)"' $(EXTRA_CPPFLAGS)
LANGUAGE := -std=gnu17 -g -fno-strict-aliasing -MMD -MP $(WARNINGS)
HARDENING := -fstack-protector-strong -fstack-clash-protection
CFLAGS := $(LANGUAGE) -O2 -fPIC -D_FORTIFY_SOURCE=2 $(HARDENING) $(EXTRA_CFLAGS)
LDFLAGS := -Wl,-z,relro,-z,now -Wl,--as-needed $(EXTRA_LDFLAGS)
LIBRARIES := -ljansson -lsqlite3 -larchive -lssl -lcrypto -lseccomp -lzstd -lpthread

# The agent must run in a root filesystem that may hold nothing else, so it is static and small.
AGENT_CFLAGS := $(LANGUAGE) -Os -static -ffunction-sections -fdata-sections $(HARDENING)
AGENT_LDFLAGS := -static -s -Wl,--gc-sections -Wl,-z,relro,-z,now

ifeq ($(SANITIZE),1)
BUILD := $(TOP)-asan
CFLAGS := $(LANGUAGE) -O1 -fPIC -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
	$(EXTRA_CFLAGS)
LDFLAGS += -fsanitize=address,undefined
# There is no sanitizer run-time for musl; traps need none.
AGENT_CFLAGS += -fsanitize=undefined -fsanitize-undefined-trap-on-error
# Limits of the tests are for programs without them, which take a third of the time.
export HUSK_TEST_SLOW ?= 3
endif

# ---- what is built ---------------------------------------------------------------------------------------------------

sources = $(foreach folder,$(1),$(wildcard $(folder)/*.c))
objects = $(patsubst %.c,$(BUILD)/$(1)/%.o,$(2))

KIT_SOURCES := $(call sources,src/base src/wire)
# What husk-vmm is made of; its messages and the form of its disks are the engine's too.
VMM_SHARED := src/vmm/message.c src/vmm/disk.c
VMM_SOURCES := $(filter-out src/vmm/main.c,$(call sources,src/vmm))
LIB_SOURCES := $(KIT_SOURCES) $(call sources,src/remote src/jail src/net src/engine src/engine/* src/store src/registry src/volume src/link) \
	$(call sources,src/instance src/supervisor src/client src/workspace src/build) \
	$(VMM_SHARED)
JSON_SOURCES := $(call sources,src/json)
MCP_SOURCES := $(call sources,src/mcp)
CLI_SOURCES := $(call sources,src/cli src/config) $(JSON_SOURCES) $(MCP_SOURCES)
SERVER_SOURCES := $(call sources,src/config src/server src/server/dialects src/server/dialects/*) $(JSON_SOURCES) $(MCP_SOURCES)
AGENT_SOURCES := $(call sources,src/agent)
GUEST_SOURCES := $(call sources,guest)
DESKTOP_SOURCES := $(call sources,guest/desktop)
FILM_SOURCES := $(call sources,src/film)
ADVERSARY_SOURCES := $(wildcard tests/adversary/*.c)
TEST_SOURCES := $(wildcard tests/unit/test_*.c)
FUZZ_SOURCES := $(wildcard tests/fuzz/fuzz_*.c)
EXAMPLE_SOURCES := $(wildcard examples/*.c)

LIB_OBJECTS := $(call objects,host,$(LIB_SOURCES))
CLI_OBJECTS := $(call objects,host,$(CLI_SOURCES))
SERVER_OBJECTS := $(call objects,host,$(SERVER_SOURCES))
AGENT_OBJECTS := $(call objects,guest-side,$(AGENT_SOURCES) $(KIT_SOURCES))
VMM_OBJECTS := $(call objects,host,$(filter-out $(VMM_SHARED),$(VMM_SOURCES)))
FUZZ_OBJECTS := $(call objects,fuzz,$(sort $(LIB_SOURCES) $(VMM_SOURCES) $(filter-out src/film/main.c,$(FILM_SOURCES))))

HUSK := $(if $(CLI_SOURCES),$(BUILD)/husk)
AGENT := $(if $(AGENT_SOURCES),$(BUILD)/husk-agent)
VMM := $(BUILD)/husk-vmm
FILM := $(BUILD)/husk-film
KERNEL := $(BUILD)/kernel/version
# What the guest gets beside the agent: programs built from guest/*.c; the other files of guest/ go in as they are.
GUEST := $(GUEST_SOURCES:guest/%.c=$(BUILD)/guest/%) $(BUILD)/guest/husk-desktop $(patsubst guest/preload/%.c,$(BUILD)/guest/%.so,$(wildcard guest/preload/*.c))
TESTS := $(TEST_SOURCES:tests/unit/%.c=$(BUILD)/tests/%)
FUZZERS := $(FUZZ_SOURCES:tests/fuzz/%.c=$(BUILD)/fuzzers/%)
ADVERSARY := $(BUILD)/adversary/husk-agent
EXAMPLES := $(EXAMPLE_SOURCES:examples/%.c=$(BUILD)/examples/%)

say = @printf '  %-6s %s\n' '$(1)' '$(2)'

.PHONY: all coverage release-check run test sanitized soak computer-use lab bench bench-lab runsc install uninstall format house lint fuzz setup clean help tests fuzzers deb dist templates-dist deb-test FORCE
all: $(HUSK) $(BUILD)/huskd $(BUILD)/libhusk.a $(BUILD)/libhusk.so.0 $(AGENT) $(VMM) $(FILM) $(KERNEL) $(GUEST) $(EXAMPLES) ## build everything (the default)
tests: $(TESTS) $(ADVERSARY)
fuzzers: $(FUZZERS)

# ---- packages --------------------------------------------------------------------------------------------------------

# A stamp each, remade when the list of packages changes. Order-only everywhere, so that it never rebuilds an object.
$(TOP)/.setup: scripts/setup
	@mkdir -p $(@D)
	@scripts/setup build
	@touch $@

$(TOP)/.setup-%: scripts/setup | $(TOP)/.setup
	@scripts/setup $*
	@touch $@

# The guest kernel of virtual machines. A host whose apt cannot give it still builds; `husk doctor` then says what is
# missing. KERNEL_FETCH=0 leaves it alone.
KERNEL_FETCH ?= 1
$(BUILD)/kernel/version: scripts/kernel | $(TOP)/.setup
	@mkdir -p $(@D)
	@[ '$(KERNEL_FETCH)' = 0 ] || scripts/kernel $(@D) || echo 'make: no guest kernel: virtual machines will not work'
	@touch $@

# noVNC, for the page of desktops. A host whose apt cannot give it still builds; the page then says what is missing.
$(TOP)/novnc/version: scripts/novnc | $(TOP)/.setup
	@mkdir -p $(@D)
	@scripts/novnc $(@D) || echo 'make: no noVNC: the live view of desktops will not work'
	@touch $@

# A current gVisor beside Debian's, which is years old; husk takes it when it is there. Only when asked for.
runsc: $(TOP)/runsc ## build the current gVisor from its Go module; husk prefers it to Debian's
$(TOP)/runsc: scripts/runsc scripts/go scripts/gvisor/go.mod scripts/gvisor/go.sum
	@scripts/runsc $@

setup: $(TOP)/.setup ## install the Debian packages that are missing

# ---- compiling and linking -------------------------------------------------------------------------------------------

# Changes when the flags do (another PREFIX, another compiler), and with it everything that is compiled.
export FLAGS_NOW := $(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $(MUSL_CC) $(AGENT_CFLAGS) $(AGENT_LDFLAGS)
$(BUILD)/.flags: FORCE
	@mkdir -p $(@D)
	@printf '%s' "$$FLAGS_NOW" | cmp -s - $@ || printf '%s' "$$FLAGS_NOW" >$@
FORCE:

$(BUILD)/host/%.o: %.c $(BUILD)/.flags | $(TOP)/.setup
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

$(BUILD)/host/src/server/openapi.o: docs/openapi.json
$(BUILD)/host/src/mcp/tools.o: src/mcp/tools.json

$(BUILD)/guest-side/%.o: %.c $(BUILD)/.flags | $(TOP)/.setup
	$(call say,MUSL,$<)
	@mkdir -p $(@D)
	$(Q)$(MUSL_CC) $(CPPFLAGS) $(AGENT_CFLAGS) -c $< -o $@

$(BUILD)/libhusk.a: $(LIB_OBJECTS)
%.a:
	$(call say,AR,$@)
	@mkdir -p $(@D)
	@rm -f $@ # and append only: files of one name in two folders must both go in
	$(Q)ar qcs $@ $^

$(BUILD)/libhusk.so: $(LIB_OBJECTS) src/libhusk.map
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,libhusk.so.0 -Wl,--version-script=src/libhusk.map $(LDFLAGS) \
		$(LIB_OBJECTS) $(LIBRARIES) -o $@

# By this name a program linked with `-Lbuild -lhusk` looks for it (LD_LIBRARY_PATH=build).
$(BUILD)/libhusk.so.0: $(BUILD)/libhusk.so
	$(Q)ln -sfn libhusk.so $@

$(BUILD)/husk: $(CLI_OBJECTS) $(BUILD)/libhusk.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ $(LIBRARIES) -o $@

# A program of its own, so that the command line and the supervisors do not load an HTTP server with TLS.
$(BUILD)/huskd: $(SERVER_OBJECTS) $(BUILD)/host/assets.o $(BUILD)/libhusk.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ -lmicrohttpd -lwslay $(LIBRARIES) -o $@

# The files of its web pages, inside the program.
$(BUILD)/assets.c: scripts/assets $(wildcard src/server/pages/*) $(TOP)/novnc/version
	@mkdir -p $(@D)
	$(Q)scripts/assets src/server/pages $(TOP)/novnc >$@
$(BUILD)/host/assets.o: $(BUILD)/assets.c
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

# Links no more than it uses, and no library that would have to be loaded first: what runs beside a hostile guest should
# be small, and every machine waits for its start.
VMM_LDFLAGS := $(if $(filter 1,$(SANITIZE)),,-static-pie)
$(BUILD)/husk-vmm: $(call objects,host,src/vmm/main.c) $(BUILD)/libvmm.a $(BUILD)/libhusk.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $(VMM_LDFLAGS) -Wl,--gc-sections $^ -lpthread -o $@

$(BUILD)/libvmm.a: $(VMM_OBJECTS) $(BUILD)/host/filters.o

# The system call filters of husk-vmm, compiled from their tables once and for all.
$(BUILD)/filters: $(call objects,host,scripts/filters.c src/vmm/rules.c) $(BUILD)/libhusk.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) $^ -lseccomp -o $@
$(BUILD)/filters.c: $(BUILD)/filters
	$(Q)$< >$@
$(BUILD)/host/filters.o: $(BUILD)/filters.c
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
$(BUILD)/fuzz/filters.o: $(BUILD)/filters.c | $(TOP)/.setup-test
	@mkdir -p $(@D)
	$(Q)$(CLANG) $(CPPFLAGS) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link -c $< -o $@

$(BUILD)/husk-agent: $(AGENT_OBJECTS)
	$(call say,LD,$@)
	$(Q)$(MUSL_CC) $(AGENT_LDFLAGS) $^ -o $@

# The hostile agent of the tests: the real one, with a man in the middle of its link.
$(ADVERSARY): $(AGENT_OBJECTS) $(call objects,guest-side,$(ADVERSARY_SOURCES))
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(MUSL_CC) $(AGENT_LDFLAGS) -Wl,--wrap=uplink_open $^ -o $@

$(BUILD)/guest/%: $(BUILD)/guest-side/guest/%.o
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(MUSL_CC) $(AGENT_LDFLAGS) $^ -o $@

# husk-desktop speaks to the X server of a guest and writes pictures. Debian has those libraries for glibc alone; static, so that it
# runs in every image that has an X server.
DESKTOP_LIBRARIES := -lxcb-xtest -lxcb-shm -lxcb-damage -lxcb-xfixes -lxcb-randr -lxcb-render -lxcb-shape -lxcb -lXau -lXdmcp \
	-lpng -lz -ljpeg -lwebp -ljansson -lm
$(BUILD)/desktop/keysyms.inc: | $(TOP)/.setup
	@mkdir -p $(@D)
	$(Q)sed -nE 's/^#define XK_([A-Za-z0-9_]+)[[:space:]]+(0x[0-9a-fA-F]+).*/{ "\1", \2 },/p' /usr/include/X11/keysymdef.h >$@.tmp
	$(Q)sed -nE 's/^#define XF86XK_([A-Za-z0-9_]+)[[:space:]]+(0x[0-9a-fA-F]+).*/{ "XF86\1", \2 },/p' \
		/usr/include/X11/XF86keysym.h >>$@.tmp
	$(Q)mv $@.tmp $@
$(BUILD)/desktop/%.o: %.c $(BUILD)/.flags $(BUILD)/desktop/keysyms.inc | $(TOP)/.setup
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) -I$(BUILD)/desktop $(AGENT_CFLAGS) -O2 -c $< -o $@
$(BUILD)/guest/husk-desktop: $(call objects,desktop,$(DESKTOP_SOURCES) $(call sources,src/base))
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(AGENT_LDFLAGS) $^ $(DESKTOP_LIBRARIES) -o $@

# husk-film runs in a cell that holds no other file.
$(BUILD)/husk-film: $(call objects,desktop,$(FILM_SOURCES) $(call sources,src/base))
	$(call say,LD,$@)
	$(Q)$(CC) $(AGENT_LDFLAGS) $^ -ljpeg -lz -o $@

# Loaded into programs of the guest before their own C library: no library, no start-up code.
$(BUILD)/guest/%.so: guest/preload/%.c $(BUILD)/.flags | $(TOP)/.setup
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LANGUAGE) -Os -fPIC -shared -nostdlib -s -MF $(@D)/.$(@F).d $< -o $@

$(BUILD)/examples/%: examples/%.c $(BUILD)/libhusk.a
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -Iinclude -D_GNU_SOURCE $(CFLAGS) $(LDFLAGS) $< $(BUILD)/libhusk.a $(LIBRARIES) -o $@

$(BUILD)/tests/%: $(BUILD)/host/tests/unit/%.o $(BUILD)/libvmm.a $(BUILD)/libhusk.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $^ -lcmocka $(LIBRARIES) -o $@
$(TESTS:$(BUILD)/tests/%=$(BUILD)/host/tests/unit/%.o): | $(TOP)/.setup-test
# It includes the parsers of husk-desktop.
$(BUILD)/host/tests/unit/test_desktop.o: $(BUILD)/desktop/keysyms.inc
$(BUILD)/host/tests/unit/test_desktop.o: CPPFLAGS += -Iguest/desktop -I$(BUILD)/desktop

# ---- fuzzing: the same sources once more, instrumented by clang ------------------------------------------------------

FUZZ_CFLAGS := -std=gnu17 -g -O1 -MMD -MP -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=all

$(BUILD)/fuzz/%.o: %.c | $(TOP)/.setup-test
	$(call say,CLANG,$<)
	@mkdir -p $(@D)
	$(Q)$(CLANG) $(CPPFLAGS) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link -c $< -o $@

$(BUILD)/fuzz/all.a: $(FUZZ_OBJECTS) $(BUILD)/fuzz/filters.o

$(BUILD)/fuzzers/%: $(BUILD)/fuzz/tests/fuzz/%.o $(BUILD)/fuzz/all.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CLANG) -fsanitize=fuzzer,address,undefined $^ $(LIBRARIES) -o $@
$(BUILD)/fuzzers/fuzz_film: LIBRARIES += -ljpeg -lz

FUZZ_SECONDS ?= 60
fuzz: $(FUZZERS) ## fuzz each target (FUZZ_SECONDS=60 each), and keep new inputs in tests/fuzz/corpus
	@HUSK_BUILD=$(BUILD) tests/run --fuzz-seconds $(FUZZ_SECONDS) --grow fuzz/

# ---- running ---------------------------------------------------------------------------------------------------------

run: ## set up, build, bake the default template, run a first command in a sandbox
	+@BUILD=$(BUILD) MAKE='$(MAKE) --no-print-directory SANITIZE=$(SANITIZE)' scripts/first-run

# $(call wanted,KIND): is this kind of test among those asked for? (Without the lab's packages one e2e test is skipped.)
wanted = $(if $(TESTS_ONLY),$(filter-out $(filter-out $(1)/%,unit/% asan/% fuzz/% e2e/% current/%),$(TESTS_ONLY)),all)

test: all $(TESTS) $(ADVERSARY) $(if $(call wanted,asan),sanitized) $(if $(call wanted,fuzz),$(FUZZERS)) | $(TOP)/.setup-test ## run every test (TESTS_ONLY='unit/test_base e2e/20_files')
	$(if $(call wanted,e2e),-@scripts/setup lab)
	@HUSK_BUILD=$(BUILD) tests/run $(TESTS_ONLY)

# The unit tests with ASan and UBSan, into a build folder of their own.
sanitized: | $(TOP)/.setup-test
	+@[ '$(SANITIZE)' = 1 ] || $(MAKE) --no-print-directory SANITIZE=1 tests

SOAK_MINUTES ?= 60
soak: all | $(TOP)/.setup-test ## lives, forks, sleeps and kills at random for SOAK_MINUTES=60; then looks for what is left
	@HUSK_BUILD=$(BUILD) tests/run --soak $(SOAK_MINUTES)

computer-use: all | $(TOP)/.setup-test ## sessions of 30 actions on a desktop with the model vendors' packages: 7 minutes, and npm and PyPI
	@HUSK_BUILD=$(BUILD) PYTHONPATH=tests/e2e tests/e2e/long/computer_use.py

lab: all $(TESTS) | $(TOP)/.setup-lab ## run the tests on real KVM, in a host under QEMU (TESTS_ONLY='e2e/10_')
	@HUSK_BUILD=$(BUILD) tests/lab/suite $(TESTS_ONLY)

bench: all ## measure against peers; writes build/bench.json
	@HUSK_BUILD=$(BUILD) bench/run

bench-lab: all | $(TOP)/.setup-lab ## measure a restore against QEMU's, on real KVM in the lab
	@HUSK_BUILD=$(BUILD) bench/run --count 7 --json $(BUILD)/bench-lab.json lab

# ---- installing ------------------------------------------------------------------------------------------------------

ROOT := $(DESTDIR)$(PREFIX)
VERSION = $(shell sed -n 's/^.define HUSK_VERSION "\(.*\)"/\1/p' include/husk.h)
install: all ## install under PREFIX (/usr/local), staged in DESTDIR
	install -d '$(ROOT)/bin' '$(ROOT)/lib/husk/guest' '$(ROOT)/share/husk' '$(ROOT)/include' '$(DESTDIR)$(LIBDIR)/pkgconfig'
	install -m 755 $(BUILD)/husk '$(ROOT)/bin/husk'
	install -m 755 $(BUILD)/huskd '$(ROOT)/bin/huskd'
	install -m 755 $(BUILD)/husk-agent '$(ROOT)/lib/husk/husk-agent'
	install -m 755 $(BUILD)/husk-vmm '$(ROOT)/lib/husk/husk-vmm'
	install -m 755 $(BUILD)/husk-film '$(ROOT)/lib/husk/husk-film'
	[ ! -f $(TOP)/runsc ] || install -m 755 $(TOP)/runsc '$(ROOT)/lib/husk/runsc'
	cp -R $(BUILD)/kernel '$(ROOT)/lib/husk/'
	cp -R $(GUEST) $(filter-out %.c %.h %/__pycache__ %/desktop %/preload,$(wildcard guest/*)) '$(ROOT)/lib/husk/guest/'
	rm -rf '$(ROOT)/share/husk/templates'
	cp -R templates '$(ROOT)/share/husk/templates'
	install -m 644 include/husk.h include/husk_error.h '$(ROOT)/include/'
	install -m 644 $(BUILD)/libhusk.a '$(DESTDIR)$(LIBDIR)/libhusk.a'
	install -m 755 $(BUILD)/libhusk.so '$(DESTDIR)$(LIBDIR)/libhusk.so.0'
	ln -sfn libhusk.so.0 '$(DESTDIR)$(LIBDIR)/libhusk.so'
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@LIBRARIES@|$(LIBRARIES)|' \
		contrib/libhusk.pc.in >'$(DESTDIR)$(LIBDIR)/pkgconfig/libhusk.pc'
	install -d '$(ROOT)/lib/systemd/system'
	for unit in $(UNITS); do \
		sed 's|/usr/local/bin|$(PREFIX)/bin|' contrib/$$unit >'$(ROOT)/lib/systemd/system/'$$unit; done
	install -D -m 644 contrib/huskd.sysusers '$(ROOT)/lib/sysusers.d/huskd.conf'
	install -D -m 644 contrib/huskd.tmpfiles '$(ROOT)/lib/tmpfiles.d/huskd.conf'
	for page in husk huskd; do install -D -m 644 docs/$$page.1 '$(ROOT)/share/man/man1/'$$page.1; done
	install -d $(COMPLETIONS:%='$(ROOT)/share/%')
	$(BUILD)/husk completion bash >'$(ROOT)/share/bash-completion/completions/husk'
	$(BUILD)/husk completion zsh >'$(ROOT)/share/zsh/vendor-completions/_husk'
	$(BUILD)/husk completion fish >'$(ROOT)/share/fish/vendor_completions.d/husk.fish'
	install -D -m 644 AGENTS.md '$(ROOT)/share/doc/husk/AGENTS.md'
	[ -n '$(DESTDIR)' ] || ldconfig

UNITS := huskd.service huskd.socket husk-recover.service husk-recover.timer
COMPLETIONS := bash-completion/completions zsh/vendor-completions fish/vendor_completions.d

uninstall: ## remove what `make install` installed; sandboxes and templates stay (husk uninstall --data, before it)
	rm -rf '$(ROOT)/lib/husk' '$(ROOT)/share/husk' '$(ROOT)/share/doc/husk'
	rm -f '$(ROOT)/bin/husk' '$(ROOT)/bin/huskd' '$(ROOT)/include/husk.h' '$(ROOT)/include/husk_error.h'
	rm -f '$(DESTDIR)$(LIBDIR)/'libhusk.a '$(DESTDIR)$(LIBDIR)/'libhusk.so '$(DESTDIR)$(LIBDIR)/'libhusk.so.0 \
		'$(DESTDIR)$(LIBDIR)/'pkgconfig/libhusk.pc
	rm -f $(UNITS:%='$(ROOT)/lib/systemd/system/%') '$(ROOT)/lib/sysusers.d/huskd.conf' '$(ROOT)/lib/tmpfiles.d/huskd.conf'
	rm -f '$(ROOT)/share/man/man1/husk.1' '$(ROOT)/share/man/man1/huskd.1'
	rm -f $(COMPLETIONS:%='$(ROOT)/share/%/husk') '$(ROOT)/share/zsh/vendor-completions/_husk' \
		'$(ROOT)/share/fish/vendor_completions.d/husk.fish'
	[ -n '$(DESTDIR)' ] || ldconfig

# ---- packages ----------------------------------------------------------------------------------------------------------

deb: all | $(TOP)/.setup-package ## Debian packages husk, huskd and libhusk-dev in build/deb
	@scripts/deb $(TOP) $(BUILD)/deb

dist: all | $(TOP)/.setup-package ## a tarball that needs no compiler, the same as a wheel, the wheel and the npm package of the SDKs, in build/dist
	@scripts/dist $(TOP) $(BUILD)/dist

templates-dist: all ## the bundled templates (TEMPLATES="base agent": these) as files for other hosts, in build/dist/templates
	@scripts/templates-dist $(BUILD) $(BUILD)/dist/templates $(TEMPLATES)

deb-test: deb ## install them in a bare Debian (SUITE=bookworm), run a sandbox, upgrade, purge; needs the network
	@scripts/deb-test $(BUILD)/deb $(SUITE)

# ---- keeping it in shape ---------------------------------------------------------------------------------------------

HOST_SOURCES := $(sort $(LIB_SOURCES) $(VMM_SOURCES) src/vmm/main.c scripts/filters.c $(CLI_SOURCES) $(SERVER_SOURCES))
C_FILES := $(HOST_SOURCES) $(AGENT_SOURCES) $(GUEST_SOURCES) $(DESKTOP_SOURCES) $(FILM_SOURCES) $(wildcard guest/preload/*.c) $(EXAMPLE_SOURCES) $(TEST_SOURCES) $(FUZZ_SOURCES) \
	$(ADVERSARY_SOURCES)
H_FILES := $(wildcard include/*.h src/*/*.h src/*/*/*.h src/*/*/*/*.h guest/*.h guest/*/*.h tests/adversary/*.h)

format: | $(TOP)/.setup-tools ## lay every C file out as .clang-format says (CHECK=1: only tell)
	clang-format $(if $(CHECK),--dry-run -Werror,-i) $(C_FILES) $(H_FILES)

# First what takes seconds (scripts/house.py, which is also a test). Then gcc's analyzer and clang-tidy's bug finders on each
# file, once for each change of the file or of a header that it uses. `make -k lint` shows the findings of all files.
LINTED := $(patsubst %.c,$(BUILD)/lint/%.ok,$(HOST_SOURCES) $(AGENT_SOURCES) $(GUEST_SOURCES) $(EXAMPLE_SOURCES))
lint: house $(LINTED) ## is the house in order (scripts/house.py), and static analysis: gcc -fanalyzer and clang-tidy
house: | $(TOP)/.setup-tools
	@scripts/house.py

$(BUILD)/lint/%.ok: %.c scripts/lint scripts/lint.h .clang-tidy | $(TOP)/.setup-tools
	$(call say,LINT,$<)
	@mkdir -p $(@D)
	$(Q)scripts/lint '$(CC)' $< $@

# The unit tests with gcov, into a build folder of their own. End-to-end tests are not counted.
COVERAGE := $(TOP)-coverage
coverage: | $(TOP)/.setup-tools $(TOP)/.setup-test ## line coverage of the unit tests: build-coverage/report/index.html
	+@$(MAKE) --no-print-directory TOP=$(COVERAGE) KERNEL_FETCH=0 EXTRA_CFLAGS='-O0 --coverage' EXTRA_LDFLAGS=--coverage WERROR= all tests
	@find $(COVERAGE) -name '*.gcda' -delete
	@HUSK_BUILD=$(COVERAGE) tests/run unit/
	@lcov -q -c -d $(COVERAGE)/host/src -o $(COVERAGE)/lines --no-external -b .
	@genhtml -q $(COVERAGE)/lines -o $(COVERAGE)/report
	@lcov --summary $(COVERAGE)/lines 2>&1 | grep lines

release-check: all ## what a machine can check before a release (docs/contributing/release.md)
	@scripts/release-check

clean: ## remove everything that was built
	rm -rf $(TOP) $(TOP)-asan $(COVERAGE)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '  make %-9s %s\n' "$$target" "$$text"; done

# ---- dependencies the compiler found ---------------------------------------------------------------------------------

-include $(patsubst %.o,%.d,$(call objects,host,$(HOST_SOURCES)) $(AGENT_OBJECTS) $(FUZZ_OBJECTS))
-include $(DESKTOP_SOURCES:%.c=$(BUILD)/desktop/%.d) $(ADVERSARY_SOURCES:%.c=$(BUILD)/guest-side/%.d) $(TEST_SOURCES:%.c=$(BUILD)/host/%.d) $(FUZZ_SOURCES:%.c=$(BUILD)/fuzz/%.d) $(EXAMPLES:%=%.d)
-include $(LINTED:.ok=.d)
.SECONDARY:
