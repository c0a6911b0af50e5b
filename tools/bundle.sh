#!/usr/bin/env bash
# Packs the sources, and the files of the libraries that they need, into one archive for a machine which can fetch
# nothing: `tar xf spillway-bundle.tar.xz && cd spillway && ./dev test`. With --gpu-arch N it also carries the program and
# the tests, built here for GPUs of that compute capability, with all libraries that they load, so that nothing is built
# there unless they cannot start. Needs Debian or Ubuntu. Python and, to build there, a compiler and the CUDA Toolkit are
# the other machine's own. Started by ./dev bundle.
set -euo pipefail

readonly limit_bytes=$((40 << 20))
# The packages that programs are built with, and those that build. The names of what they link to differ between distributions.
readonly development=(liburing-dev libhwloc-dev libjansson-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev
    libyaml-dev libzstd-dev libcmocka-dev libdnnl-dev)
readonly builders=(meson ninja-build pkgconf pkgconf-bin)
# The libraries that those need where they are there.
readonly more_libraries=(ocl-icd-libopencl1 libudev1)
readonly folder=build/bundle
readonly tree=$folder/spillway
readonly built=build-bundle
# The C library is the other machine's: it fits its kernel and its loader.
readonly system_libraries='/(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv)\.so'
# Programs lie one and three folders deep in the build folder. Their path is inherited by the libraries that they load,
# unlike the newer kind of such paths, and unlike LD_LIBRARY_PATH it reaches no other program.
readonly path_args='-Wl,--disable-new-dtags,-rpath,$ORIGIN/../libraries/run:$ORIGIN/../../../libraries/run'
# The same code is in each test, so a dictionary that holds the last ten of them makes the archive small. With this one xz
# takes 769 MiB of memory, by its own count. Higher presets take two to three times as long for 4 and 6% fewer bytes.
readonly xz_args='--threads=1 --lzma2=preset=0,dict=128MiB'

die() {
    echo "bundle: $*" >&2
    exit 1
}

copy_sources() {
    git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$tree"
    git describe --always --dirty --abbrev=12 --exclude='*' >"$tree/COMMIT"
}

# The libraries that the packages of headers and pkg-config depend on.
linked_packages() {
    apt-cache depends --important "${development[@]}" pkgconf-bin |
        sed -n 's/^ *Depends: \(lib[^ <]*\|zlib1g\)$/\1/p' | grep -Ev -e '-dev$|^libc6$|^libpcre2-(16|32|posix)'
}

copy_packages() {
    mkdir -p "$folder/packages" "$tree/libraries"
    local packages
    # shellcheck disable=SC2046
    mapfile -t packages < <(printf '%s\n' "${development[@]}" "${builders[@]}" "${more_libraries[@]}" $(linked_packages) | sort -u)
    (cd "$folder/packages" && apt-get -qq download "${packages[@]}" 2>/dev/null) ||
        die "packages could not be fetched: apt-get download ${packages[*]}"
    local package
    for package in "$folder"/packages/*.deb; do
        dpkg-deb --extract "$package" "$tree/libraries"
    done
    rm -rf "$tree"/libraries/usr/share/{doc,man,lintian,bug,bash-completion,zsh,vim,polkit-1} "$tree"/libraries/{etc,var}
    find "$tree/libraries" -name '*.a' -delete
    # They say where they are by where they are found.
    find "$tree/libraries" -name '*.pc' -exec sed -i 's#=/usr#=${pcfiledir}/../../..#' {} +
}

# build_programs ARCH: several ranks need an MPI of the other machine, which these programs would not fit.
build_programs() {
    [[ -f $built/build.ninja ]] || meson setup "$built" -Dcuda=enabled -Dmpi=disabled "-Dgpu_arch=$1" \
        "-Dc_link_args=$path_args" "-Dcpp_link_args=$path_args"
    meson configure "$built" "-Dgpu_arch=$1"
    ninja -C "$built"
}

# The programs of the build folder, as paths in it.
built_programs() {
    (cd "$built" && find spillway tests -type f -executable)
}

copy_programs() {
    local program library
    while read -r program; do
        mkdir -p "$tree/build/$(dirname "$program")"
        strip -o "$tree/build/$program" "$built/$program"
    done < <(built_programs)
    # The assembler's output about the kernels is read there too.
    (cd "$built" && find kernels/cuda -name '*.ptxas.txt') | while read -r program; do
        install -D -m 644 "$built/$program" "$tree/build/$program"
    done
    mkdir -p "$tree/libraries/run"
    while read -r library; do
        cp -L "$library" "$tree/libraries/run/"
    done < <(built_programs | sed "s#^#$built/#" | xargs ldd 2>/dev/null | sed -n 's/^.* => \(\/[^ ]*\) .*/\1/p' |
        sort -u | grep -Ev "$system_libraries")
    find "$tree/libraries/run" -type f -exec strip --strip-unneeded {} +
}

# The list of tests has paths of this machine, and gets the other's when it is read (tools/run_tests.py). Tests that
# build something stay here.
copy_test_list() {
    mkdir -p "$tree/build/meson-info"
    python3 -c 'import json, sys
print(json.dumps([test for test in json.load(sys.stdin) if not any(s.endswith(":builds") for s in test["suite"])]))' \
        <"$built/meson-info/intro-tests.json" |
        sed -e "s#$PWD/$built#@ROOT@/build#g" -e "s#$PWD#@ROOT@#g" -e 's#"[^"]*/python3"#"python3"#g' \
            >"$tree/build/meson-info/intro-tests.json"
    touch "$tree/build/CARRIED"
}

arch=
case "${1:-}" in
"") ;;
--gpu-arch) arch=${2:?"bundle: --gpu-arch needs a compute capability, such as 90"} ;;
*) die "usage: ./dev bundle [--gpu-arch N]" ;;
esac

rm -rf "$folder"
mkdir -p "$tree"
[[ -z $arch ]] || build_programs "$arch"
copy_sources
copy_packages
if [[ -n $arch ]]; then
    copy_programs
    copy_test_list
fi
archive=$PWD/build/spillway-bundle.tar.xz
# shellcheck disable=SC2086
tar -cf - --sort=name -C "$folder" spillway | xz $xz_args >"$archive"
rm -rf "$folder"
bytes=$(stat -c %s "$archive")
((bytes <= limit_bytes)) || die "$archive has $bytes bytes, more than $limit_bytes"
echo "$archive: $((bytes >> 10)) KiB${arch:+, with programs for compute capability $arch}"
run="./dev test"
[[ -z $arch ]] || run="./dev gpu --minutes 10"
echo "it travels as this one file; on the other machine: tar xf ${archive##*/} && cd spillway && $run"
