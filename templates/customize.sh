#!/bin/sh
# Run by mmdebstrap as root, outside the new root ($1) but with its /proc, /sys and /dev mounted: adds to a freshly
# installed Debian what a template definition asks for beyond packages. src/store/debian.c starts it and passes
# HUSK_DEFINITION (the directory), HUSK_NPM, HUSK_KEEP_NPM, HUSK_PIP, HUSK_KEEP_PIP, HUSK_USERS, HUSK_SCRIPTS and HUSK_EXCLUDE.
#
# Nothing of the host may stay in the root: its settings of npm and pip and its certificates are there only while they are
# needed.
set -eu
root=$1
build=/.husk-build # inside the root, and gone at the end

say() { echo "husk: $*" >&2; }
fail() { echo "error: $*" >&2; exit 1; }
inside() {
	chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
		DEBIAN_FRONTEND=noninteractive "$@"
}

add_user() {
	say "making user $1"
	inside useradd --create-home --shell /bin/bash "$1"
	[ "${2:-}" = sudo ] || return 0
	[ -d "$root/etc/sudoers.d" ] || fail "user $1 is to have sudo, but the package 'sudo' is not listed"
	inside usermod --append --groups sudo "$1"
	echo "$1 ALL=(ALL:ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$1"
	chmod 440 "$root/etc/sudoers.d/$1"
}

# The host's way to the servers (certificates, proxies), for one command inside the root.
with_host() {
	[ ! -r /etc/ssl/certs/ca-certificates.crt ] || cp /etc/ssl/certs/ca-certificates.crt "$root$build/certificates"
	for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
		eval "value=\${$name:-}"
		[ -z "$value" ] || set -- "$name=$value" "$@"
	done
	inside HOME="$build" "$@"
}

# The same with the host's npm settings (registry, credentials).
with_npm() {
	user=${NPM_CONFIG_USERCONFIG:-$HOME/.npmrc}
	[ ! -r "$user" ] || cp "$user" "$root$build/npmrc"
	[ ! -r /etc/npmrc ] || cp /etc/npmrc "$root$build/npmrc-global"
	registry=${NPM_CONFIG_REGISTRY:-${npm_config_registry:-}}
	set -- npm_config_userconfig="$build/npmrc" npm_config_globalconfig="$build/npmrc-global" \
		npm_config_cache="$build/npm" npm_config_prefix=/usr/local npm_config_update_notifier=false "$@"
	[ ! -r /etc/ssl/certs/ca-certificates.crt ] ||
		set -- npm_config_cafile="$build/certificates" NODE_EXTRA_CA_CERTS="$build/certificates" "$@"
	[ -z "$registry" ] || set -- npm_config_registry="$registry" "$@"
	with_host "$@"
}

install_npm() {
	say "installing from npm: $*"
	with_npm npm install --global --no-audit --no-fund --omit=dev "$@" >&2 ||
		fail "npm could not install $*; is the npm registry reachable from here? (npm ping)"
	# It records where each package was fetched from.
	rm -f "$root/usr/local/lib/node_modules/.package-lock.json"
	[ -n "$HUSK_KEEP_NPM" ] || inside apt-get -qq -y purge --auto-remove npm >&2
}

# Packages of PyPI, these and no others: each is pinned, and so is the template.
install_pip() {
	say "installing from PyPI: $*"
	[ ! -r /etc/pip.conf ] || cp /etc/pip.conf "$root$build/pip.conf"
	set -- PIP_CONFIG_FILE="$build/pip.conf" PIP_CACHE_DIR="$build/pip" \
		python3 -m pip install --quiet --no-input --no-deps --break-system-packages --root-user-action=ignore "$@"
	[ ! -r /etc/ssl/certs/ca-certificates.crt ] || set -- PIP_CERT="$build/certificates" "$@"
	[ -z "${PIP_INDEX_URL:-}" ] || set -- PIP_INDEX_URL="$PIP_INDEX_URL" "$@"
	with_host "$@" >&2 || fail "pip could not install from PyPI; is it reachable from here? (pip download)"
	[ -n "$HUSK_KEEP_PIP" ] || inside apt-get -qq -y purge --auto-remove python3-pip >&2
}

run_script() {
	say "running $1"
	cp "$HUSK_DEFINITION/$1" "$root$build/script"
	chmod 755 "$root$build/script"
	inside "$build/script" >&2 || fail "script '$1' of the template failed"
}

install -d -m 700 "$root$build"
trap 'rm -rf "$root$build"' EXIT

printf '%s' "$HUSK_USERS" | while read -r name option; do add_user "$name" "$option"; done
# Kept modes and links, root's ownership: who owns a checkout says nothing about who should own a file in the guest.
[ ! -d "$HUSK_DEFINITION/files" ] ||
	tar -C "$HUSK_DEFINITION/files" --owner=0 --group=0 -cf - . | tar -C "$root" --no-overwrite-dir -xpf -
# shellcheck disable=SC2086 # a list of words
[ -z "$HUSK_NPM" ] || install_npm $HUSK_NPM
# shellcheck disable=SC2086 # a list of words
[ -z "$HUSK_PIP" ] || install_pip $HUSK_PIP
printf '%s' "$HUSK_SCRIPTS" | while read -r script; do run_script "$script"; done

# What came from this host or was needed only here. Credentials in the address of a mirror stay on the host.
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/hostname" "$root/etc/resolv.conf"
sed -i -E 's|(https?://)[^/@ ]*@|\1|' "$root"/etc/apt/sources.list.d/*.list
mv "$root"/etc/apt/sources.list.d/*debian.list "$root/etc/apt/sources.list" 2>/dev/null || true
# What the template leaves out of its own packages must not be missing from packages somebody adds later.
[ -z "$HUSK_EXCLUDE" ] || {
	printf '%s' "$HUSK_EXCLUDE" | sed 's/^/path-exclude=/' >"$root$build/excluded"
	grep -vxF -f "$root$build/excluded" "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap" >"$root$build/kept"
	cat "$root$build/kept" >"$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
}
printf 'APT::Install-Recommends "false";\n' >"$root/etc/apt/apt.conf.d/90husk"
: >"$root/etc/machine-id"
: >"$root/etc/resolv.conf"
echo husk >"$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost\n' >"$root/etc/hosts"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb \
	"$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root"/var/log/*.log "$root"/var/log/apt "$root"/tmp/* \
	"$root"/root/.npm "$root"/root/.cache
