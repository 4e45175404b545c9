# Place of a filesystem under test. Runs as `place make|check SOURCE`, and as mount(8)'s helper: `SOURCE DIR [-o OPTIONS]`.
# `tuff-lab suite xfstests` writes this file after lines that set `kind`, `program` and `size`.
set -e

make()
{
	local path=$1 size=${2:-$size}
	case $kind in
	directory)
		rm -rf "$path"
		"$program" volume create --size "$size" "$path"
		;;
	device)
		"$program" volume create --force --size "$size" "$path"
		;;
	fuse2fs)
		rm -f "$path"
		mkfs.ext4 -qF "$path" $((size / 1024))k
		;;
	passthrough_hp)
		mkdir -p "$path"
		! mountpoint -q "$path" || umount "$path"
		rm -f "$path.img"
		mkfs.ext4 -qF "$path.img" $((size / 1024))k
		mount -o loop "$path.img" "$path"
		rmdir "$path/lost+found"
		;;
	esac
}

# Runs a command when umount(8), which does not wait, has closed the volume.
when_closed()
{
	local log n result
	log=$(mktemp)
	for n in {1..1200}; do
		result=0
		"$@" > "$log" 2>&1 || result=$?
		[ $result = 5 ] && grep -q 'in use' "$log" || break
		# A volume that is mounted does not close by itself.
		! findmnt -rn --source "$source" > /dev/null || break
		sleep 0.1
	done
	cat "$log" >&2
	rm "$log"
	return $result
}

check()
{
	local source=$1
	case $kind in
	directory | device) when_closed "$program" volume check "$source" ;;
	fuse2fs) e2fsck -fn "$source" ;;
	esac
}

mount_on()
{
	local source=$1 dir=$2 options=
	shift 2
	while [ $# -gt 0 ]; do
		[ "$1" != -o ] || options=$options,$2
		shift
	done
	case $kind in
	directory | device)
		when_closed "$program" mount.tuff "$source" "$dir" -o "defaults$options"
		return
		;;
	esac
	options=allow_other,default_permissions,fsname=$source$options
	case $kind in
	fuse2fs) exec "$program" "$source" "$dir" -o "fakeroot,$options" ;;
	passthrough_hp)
		ulimit -n "$(ulimit -Hn)"
		exec "$program" --nopassthrough -o "$options" "$source" "$dir"
		;;
	esac
}

case $1 in
make) make "$2" "$3" ;;
check) check "$2" ;;
*) mount_on "$@" ;;
esac
