#!/bin/sh
# Makes the golden images: one small tree, written in every way that mkfs.erofs knows.
#
#   sh recipe.sh DIR            with mkfs.erofs 1.9.3 on PATH (or in $MKFS), attr and GNU coreutils, as root
#
# What the files hold is written out once more in crates/image/tests/read_golden.rs.
set -eu
mkfs=${MKFS:-mkfs.erofs}
out=$1
src=$(mktemp -d)
trap 'rm -rf "$src"' EXIT

seq 1 2500 > "$src/numbers"
yes abc | head -c 16000 > "$src/letters"
seq 1 20000 | gzip -n9 | head -c 5000 > "$src/packed"
printf 'hello, erofs\n' > "$src/hi"
: > "$src/empty"
truncate -s 40000 "$src/sparse"
printf 'end' | dd of="$src/sparse" bs=1 seek=30000 conv=notrunc status=none
{ seq 1 2500; seq 5 500; } > "$src/numbers-more"
ln "$src/hi" "$src/hi-too"
ln -s numbers "$src/link"
mkfifo "$src/fifo"
mknod "$src/null" c 1 3
mkdir "$src/dir" "$src/dir/sub"
for i in $(seq 100 229); do : > "$src/dir/entry-$i"; done
printf 'deep\n' > "$src/dir/sub/file"
setfattr -n user.common.colour -v blue "$src/hi"
setfattr -n user.common.colour -v blue "$src/numbers"
setfattr -n user.common.colour -v blue "$src/dir"
setfattr -n user.nothing -v '' "$src/hi"
setfattr -n user.common.own -v 'only here' "$src/letters"
chmod 4755 "$src/numbers"
chown 100000:70000 "$src/letters"
find "$src" -exec touch -h -d @1700000000 {} +

make() {
	name=$1
	shift
	"$mkfs" --quiet -T1700000001 --mkfs-time -U00000000-0000-0000-0000-000000000000 "$@" "$out/$name.erofs" "$src" > /dev/null
}
make plain -b512
make chunk --chunksize=4096
make lz4 -zlz4
make lz4-full -zlz4 -C16384 -Ededupe,ztailpacking
make lzma -zlzma -C16384 -Efragments
make deflate -zdeflate -C8192 -b1024
make zstd -zzstd -C16384
make four -zlz4:zstd:lzma:deflate -C16384
make all-fragments -zzstd -C16384 -Eall-fragments,dedupe --zD=0
make all-fragments-zd -zzstd -C16384 -Eall-fragments,dedupe --zD=1
make 48bit-plain -b2048 -E48bit
make 48bit-chunk -E48bit --chunksize=4096
make 48bit-lz4 -zlz4 -C16384 -E48bit
make 48bit-zstd -zzstd -C16384 -E48bit
make 48bit-lzma -zlzma -C16384 -E48bit,all-fragments
make 48bit-fixed -zlz4 -C4096 -E48bit --max-extent-bytes=8192
make metabox-plain -b1024 -m4096
make metabox-lz4 -zlz4 -m4096 -x1
make metabox-48bit -zzstd -m4096 -E48bit,all-fragments --xattr-prefix=user.common.
make metazone -zlz4 --MZ=id
make prefix-plain -b512 --xattr-prefix=user.common.
make prefix-packed -zlz4 -Efragments --xattr-prefix=user.common.
make prefix-in-image -zlz4 -Eplain-xattr-prefixes -m4096 --xattr-prefix=user.common.
