# shellcheck shell=bash disable=SC2034
# HDF5's I/O benchmark through POSIX calls, through STDIO and through HDF5 (`h5perf_serial`), and
# its tools on the resulting files. The parallel h5perf is in no Debian package and is not tested.
packages=(hdf5-tools)

work() {
    local size=4K,4K driver
    [ "$FOREIGN_SHORT" = no ] || size=512,512
    export HDF5_PREFIX=$PWD
    # Figures differ between runs; the names of measurements do not.
    for driver in sec2 stdio; do
        h5perf_serial -A posix,hdf5 -v $driver -e "$size" -x 64,64 -i 2 > output
        sed -E 's/[0-9]+\.[0-9]+/N/g' output | tr -s ' '
    done
    seq 1 1000 > numbers
    printf 'PATH /a\nINPUT-CLASS TEXTIN\nINPUT-SIZE 32\nRANK 1\nDIMENSION-SIZES 1000\n' > shape
    h5import numbers -c shape -o made.h5
    h5repack -f GZIP=6 -l CHUNK=100 made.h5 packed.h5
    h5diff made.h5 packed.h5 && echo "the same after packing"
    h5dump -d /a packed.h5 | grep -v '^HDF5' | sha256sum
    h5stat packed.h5 | grep -i 'unique\|datasets' | head -4
}
