//! Tables of a record: figures, power cuts and faulty devices, by filesystem.

use crate::campaigns::power_loss::report::ROUNDS;
use crate::record::Record;
use crate::report::table::{self, Columns, Figure, Table};

/// Time from the start of the kernel to process 1.
pub(super) const KERNEL_BOOT: Figure = Figure::new("kernel_boot_us", "kernel to process 1, s", 1e6);
/// Time to mount the small root filesystem.
pub(super) const ROOT_MOUNT: Figure = Figure::new("root_mount_us", "small root: mount, ms", 1e3);
/// Time from a mounted root to the end of its first program.
pub(super) const ROOT_START: Figure =
    Figure::new("root_start_us", "small root: first program, ms", 1e3);
/// Share of an empty partition that files cannot use, in millionths.
pub(super) const OVERHEAD: Figure =
    Figure::new("overhead_ppm", "empty partition: not for files, %", 1e4);
/// Time to mount the large partition.
pub(super) const MOUNT: Figure = Figure::new("mount_us", "60 % full: mount, ms", 1e3);
/// Sequential reads of 128 KiB.
pub(super) const READ: Figure = Figure::new("read_kib_s", "fio read 128K, MiB/s", 1024.0);
/// Random reads of 4 KiB.
pub(super) const RANDOM_READ: Figure =
    Figure::new("random_read_kib_s", "fio randread 4K, MiB/s", 1024.0);
/// Sequential writes of 128 KiB.
pub(super) const WRITE: Figure = Figure::new("write_kib_s", "fio write 128K, MiB/s", 1024.0);
/// Random writes of 4 KiB.
pub(super) const RANDOM_WRITE: Figure =
    Figure::new("random_write_kib_s", "fio randwrite 4K, MiB/s", 1024.0);
/// Random writes of 4 KiB with fsync after each.
pub(super) const SYNC_WRITE: Figure =
    Figure::new("sync_write_kib_s", "fio randwrite 4K, fsync, MiB/s", 1024.0);
/// CPU time of kernel threads while fio runs.
pub(super) const THREADS_BUSY: Figure =
    Figure::new("threads_busy_us", "kernel threads during fio, CPU ms", 1e3);
/// CPU time of kernel threads in five seconds after the last write.
pub(super) const THREADS_IDLE: Figure =
    Figure::new("threads_idle_us", "kernel threads, 5 s idle, CPU ms", 1e3);
/// Time to check the large partition.
pub(super) const CHECK: Figure = Figure::new("check_us", "60 % full: check, ms", 1e3);

const FIGURES: Table = Table {
    columns: Columns::FigureRows(
        "filesystem",
        &[
            KERNEL_BOOT,
            ROOT_MOUNT,
            ROOT_START,
            OVERHEAD,
            MOUNT,
            READ,
            RANDOM_READ,
            WRITE,
            RANDOM_WRITE,
            SYNC_WRITE,
            THREADS_BUSY,
            THREADS_IDLE,
            CHECK,
        ],
    ),
    ..table::PLAIN
};

const FAULTS: Table = Table {
    title: "fault of the device",
    rows: &["fault", "filesystem", "write after the fault", "next mount"],
    columns: Columns::Figures(&[
        Figure::new("failed_operations", "failed operations", 1.0),
        Figure::new("files", "synced files", 1.0),
        Figure::new("lost", "lost or unreadable", 1.0),
        Figure::new("wrong", "silently wrong", 1.0),
    ]),
    ..table::PLAIN
};

/// Renders the tables as Markdown, after the conditions. Deviations of single cuts are in the record only.
pub(crate) fn render(record: &Record) -> String {
    let tables = [FIGURES, ROUNDS, FAULTS].map(|table| table.render(record));
    table::heading(record) + &tables.concat() + &table::failures(record)
}
