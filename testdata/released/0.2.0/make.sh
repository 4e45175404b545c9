#!/bin/sh
# Makes the images of this directory: make.sh TUFF, with the program of this version.
set -eu
tuff=$1
out=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p day1/dir/deep
seq 3000 > day1/numbers
seq 200 > day1/dir/small
echo text > day1/dir/deep/text
ln day1/numbers day1/dir/linked
ln -s ../numbers day1/dir/link
: > day1/empty
openssl enc -aes-128-ctr -nosalt -K 00 -iv 00 -in /dev/zero 2>/dev/null | head -c 9000 > day1/noise
cp -a day1 day2
seq 2000 > day2/numbers
echo more > day2/dir/new
rm day2/empty
mkdir upper
echo upper > upper/added
build() {
  name=$1
  shift
  "$tuff" build -q --all-root --timestamp 1700000000 "$@" -o "$name.erofs"
}
build default day1
build zstd -z zstd:3 -C 64K --fragments=all --dedupe=content day1
build deflate -z deflate --fragments=tails day1
build lzma -z lzma day1
build plain -z none day1
build chunks -z none --chunk 4K day1
build blob --blob blob.data --chunk 4K -z none day1
build verity --verity day1
build delta --base default.erofs day2
build layers default.erofs upper
cp default.erofs patched.erofs
"$tuff" patch -q --all-root --timestamp 1700000000 day2 patched.erofs
cp ./*.erofs blob.data "$out"
