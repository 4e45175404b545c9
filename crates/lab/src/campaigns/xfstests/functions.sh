
# Appended to common/rc by `tuff-lab suite xfstests`: xfstests does not make or check filesystems of the type fuse.
_scratch_mkfs()
{
	_scratch_unmount &> /dev/null
	"$SUITE_PLACE" make "$SCRATCH_DEV"
}

_try_scratch_mkfs_sized()
{
	_scratch_unmount &> /dev/null
	"$SUITE_PLACE" make "$SCRATCH_DEV" "$1"
}

_check_test_fs()
{
	_suite_check "$TEST_DEV" "$TEST_DIR" "$TEST_FS_MOUNT_OPTS"
}

_check_scratch_fs()
{
	_suite_check "${1:-$SCRATCH_DEV}" "$SCRATCH_MNT" "$MOUNT_OPTIONS"
}

_suite_check()
{
	local was_mounted= result=0
	if mountpoint -q "$2"; then
		was_mounted=yes
		$UMOUNT_PROG "$2" || return 1
	fi
	if ! "$SUITE_PLACE" check "$1" &> $seqres.check; then
		_log_err "_suite_check: filesystem on $1 is inconsistent"
		result=1
	fi
	[ -z "$was_mounted" ] || _mount -t $FSTYP$FUSE_SUBTYP $3 "$1" "$2" || result=1
	return $result
}

_fs_type()
{
	local fstype=$(findmnt -rn -o FSTYPE --source "$1" | head -1)
	[ -z "$fstype" ] || echo "$FSTYP"
}

# umount(8) does not look for a source that is a directory.
eval "_suite$(declare -f _unmount)"
_unmount()
{
	local arg args=()
	for arg; do
		case $arg in
		"$SCRATCH_DEV") arg=$SCRATCH_MNT ;;
		"$TEST_DEV") arg=$TEST_DIR ;;
		esac
		args+=("$arg")
	done
	_suite_unmount "${args[@]}"
}

# Programs that look at all mounts, such as df in another run, hold each for a moment.
_suite_umount()
{
	local n printed
	for n in {1..50}; do
		printed=$(umount "$@" 2>&1) && return
		[[ $printed == *busy* ]] || break
		sleep 0.1
	done
	echo "$printed" >&2
	return 1
}
UMOUNT_PROG=_suite_umount

# mount(8) takes a source of the type fuse without a subtype for a command.
eval "_suite$(declare -f _mount)"
_mount()
{
	local arg last= args=()
	for arg; do
		[ "$last" != -t ] || [ "$arg" != "$FSTYP" ] || arg=$FSTYP$FUSE_SUBTYP
		args+=("$arg")
		last=$arg
	done
	_suite_mount "${args[@]}"
}

# Some tests make a filesystem on a loop device of their own. A volume does not take all of a device.
_try_mkfs_dev()
{
	[ ! -b "$SCRATCH_DEV" ] || "$SUITE_PLACE" make "$1" $(($(blockdev --getsize64 "$1") / 7 * 6))
}
