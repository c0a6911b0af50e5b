# shellcheck shell=bash
# Uses the libraries of a bundle (tools/bundle.sh) in the place of packages. Sourced by ./dev where there are any.

libraries=$PWD/libraries/usr
library_folders=$libraries/lib/x86_64-linux-gnu:$PWD/libraries/lib/x86_64-linux-gnu
# The machine's own programs come first, but for the headers and libraries of this build.
command -v meson >/dev/null || export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$libraries/lib/python3/dist-packages
export PATH=$PATH:$libraries/bin
export PKG_CONFIG_PATH=$libraries/lib/x86_64-linux-gnu/pkgconfig
export CPATH=$libraries/include:$libraries/include/x86_64-linux-gnu${CPATH:+:$CPATH}
export LIBRARY_PATH=$library_folders${LIBRARY_PATH:+:$LIBRARY_PATH}
# Programs built here find their libraries by themselves, so that others, such as Python with its own, never see them.
export LDFLAGS="-Wl,--disable-new-dtags,-rpath,$library_folders${LDFLAGS:+ $LDFLAGS}"

require() {
    :
}

require_if_possible() {
    :
}

# pkg-config of the bundle needs a library of the bundle.
meson() {
    LD_LIBRARY_PATH=$library_folders command meson "$@"
}

ninja() {
    LD_LIBRARY_PATH=$library_folders command ninja "$@"
}
