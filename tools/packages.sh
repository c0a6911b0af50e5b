# shellcheck shell=bash disable=SC2034
# Which packages each command of ./dev needs, and how they get there. Sourced by ./dev.

build_packages=(gcc g++ libc6-dev meson ninja-build pkg-config python3
    liburing-dev libhwloc-dev libdnnl-dev libjansson-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev libyaml-dev
    libzstd-dev)
demo_packages=(bible-kjv bible-kjv-text)
test_packages=(libcmocka-dev e2fsprogs mount util-linux)
optional_test_packages=(fio libopenmpi-dev openmpi-bin iproute2)
fmt_packages=(clang-format)
# clang has OpenMP, and ThreadSanitizer understands it, only with libomp-dev.
clang_packages=(clang libomp-dev)
# A package of its own in Debian; Ubuntu 22.04 has it in clang's.
optional_sanitizer_packages=(libclang-rt-dev)
# llvm-cov, which tells what a fuzz target reaches.
optional_fuzz_packages=(llvm)
check_packages=(clang-tidy)
bundle_packages=(git xz-utils tar)
golden_packages=(python3 python3-venv ca-certificates)

# DeepSpeed and torch.compile compile with the compiler of build_packages.
peers_packages=(python3-venv python3-dev ca-certificates libaio-dev fio libopenmpi-dev openmpi-bin)

packages_came=false

is_installed() {
    [[ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null)" == ?i* ]]
}

missing_packages() {
    local package
    for package in "$@"; do
        is_installed "$package" || echo "$package"
    done
}

apt_install() {
    local become=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || return 1
        become=(sudo)
    fi
    local install=("${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq -y
        --no-install-recommends install "$@")
    echo "installing: $*"
    packages_came=true
    # Package lists are refreshed only where they are missing or too old to install from.
    "${install[@]}" </dev/null >/dev/null 2>&1 && return 0
    "${become[@]}" apt-get -o DPkg::Lock::Timeout=300 -qq update </dev/null
    "${install[@]}" </dev/null >/dev/null
}

# Elsewhere than on Debian and Ubuntu nothing is installed: what is there is used, and what is not is listed.
require_without_apt() {
    local lacking=() package
    for package in "$@"; do
        case "$package" in
        gcc | g++ | meson | pkg-config | python3 | clang | clang-tidy | clang-format)
            command -v "$package" >/dev/null || lacking+=("$package")
            ;;
        ninja-build) command -v ninja >/dev/null || lacking+=("ninja") ;;
        liburing-dev) pkg-config --exists liburing 2>/dev/null || lacking+=("liburing (headers)") ;;
        libhwloc-dev) pkg-config --exists hwloc 2>/dev/null || lacking+=("hwloc (headers)") ;;
        libjansson-dev) pkg-config --exists jansson 2>/dev/null || lacking+=("Jansson (headers)") ;;
        libxxhash-dev) pkg-config --exists libxxhash 2>/dev/null || lacking+=("xxHash (headers)") ;;
        libpcre2-dev) pkg-config --exists libpcre2-8 2>/dev/null || lacking+=("PCRE2 (headers)") ;;
        libutf8proc-dev) pkg-config --exists libutf8proc 2>/dev/null || lacking+=("utf8proc (headers)") ;;
        libzstd-dev) ;; # optional
        zlib1g-dev) pkg-config --exists zlib 2>/dev/null || lacking+=("zlib (headers)") ;;
        libyaml-dev) pkg-config --exists yaml-0.1 2>/dev/null || lacking+=("libyaml (headers)") ;;
        libcmocka-dev) pkg-config --exists cmocka 2>/dev/null || lacking+=("cmocka (headers)") ;;
        libdnnl-dev)
            echo '#include <oneapi/dnnl/dnnl.h>' | "${CC:-cc}" -E - >/dev/null 2>&1 || lacking+=("oneDNN 2 or 3 (headers)")
            ;;
        bible-kjv) command -v bible >/dev/null || lacking+=("bible-kjv (the demo's text)") ;;
        esac
    done
    ((${#lacking[@]} == 0)) ||
        die "this is not Debian or Ubuntu; install these and start again: $(printf '%s; ' "${lacking[@]}")"
}

require() {
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        require_without_apt "$@"
        return
    fi
    local missing
    mapfile -t missing < <(missing_packages "$@")
    ((${#missing[@]} == 0)) || apt_install "${missing[@]}" ||
        die "could not install packages; as root: apt-get update && apt-get install ${missing[*]}"
}

# For what some systems do not need or cannot have, such as fio, whose absence is reported by the tests that it skips.
require_if_possible() {
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || return 0
    local missing
    mapfile -t missing < <(missing_packages "$@")
    ((${#missing[@]} == 0)) || apt_install "${missing[@]}" || echo "going on without: ${missing[*]}"
}
