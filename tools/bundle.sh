#!/usr/bin/env bash
# Packs the sources, and the files of the libraries that they need, into one archive that builds on a machine which can
# fetch nothing: `tar xf spillway-bundle.tar.xz && cd spillway && ./dev test`. Needs Debian or Ubuntu. A compiler, Python
# and, for the GPU, the CUDA Toolkit are the other machine's own. Started by ./dev bundle.
set -euo pipefail

readonly limit_bytes=$((40 << 20))
# In pairs of what programs link to and what they are built with; then what builds.
readonly packages=(liburing2 liburing-dev libhwloc15 libhwloc-dev libjansson4 libjansson-dev libxxhash0 libxxhash-dev
    libcmocka0 libcmocka-dev libdnnl2 libdnnl-dev ocl-icd-libopencl1 libudev1
    meson ninja-build pkgconf pkgconf-bin libpkgconf3)
readonly folder=build/bundle
readonly tree=$folder/spillway

rm -rf "$folder"
mkdir -p "$folder/packages" "$tree/libraries"

git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$tree"

git describe --always --dirty --abbrev=12 --exclude='*' >"$tree/COMMIT"

(cd "$folder/packages" && apt-get -qq download "${packages[@]}" 2>/dev/null) ||
    { echo "bundle: packages could not be fetched: apt-get download ${packages[*]}" >&2 && exit 1; }
for package in "$folder"/packages/*.deb; do
    dpkg-deb --extract "$package" "$tree/libraries"
done
rm -rf "$tree"/libraries/usr/share/{doc,man,lintian,bug,bash-completion,zsh,vim,polkit-1} "$tree"/libraries/{etc,var}
find "$tree/libraries" -name '*.a' -delete
# They say where they are by where they are found.
find "$tree/libraries" -name '*.pc' -exec sed -i 's#=/usr#=${pcfiledir}/../../..#' {} +

archive=$PWD/build/spillway-bundle.tar.xz
tar -cJf "$archive" -C "$folder" spillway
rm -rf "$folder"
bytes=$(stat -c %s "$archive")
((bytes < limit_bytes)) || { echo "bundle: $archive has $bytes bytes, more than $limit_bytes" >&2 && exit 1; }
echo "$archive: $((bytes >> 10)) KiB"
