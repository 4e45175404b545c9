//! Arguments of `tuff mount`.

use super::prefetch::PrefetchArgs;
use super::profile::Pin;
use crate::image::ImageArgs;
use crate::units::parse_size;
use std::net::SocketAddr;
use std::path::PathBuf;
use tuff_erofs::THREADS_MAX;
use tuff_erofs::serve::Policy;
use tuff_fuse::CpuLatencyMode;
use tuff_fuse::transport::Transport;

/// Mount an image through FUSE, or in the kernel with --kernel
///
/// A background process serves the image. The command returns when the mount is ready; the process ends when the mount is
/// unmounted (tuff umount, umount, fusermount3 -u) or on SIGTERM or SIGINT. Root is not required. Mounts made by root are
/// accessible to all users, like kernel mounts. SIGUSR1 writes the counters of tuff stats to the log.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) image: ImageArgs,
    /// Directory to mount on
    #[arg(value_name = "DIR")]
    pub(super) dir: PathBuf,
    /// Stay in the foreground
    #[arg(short, long)]
    pub(super) foreground: bool,
    /// Mount with the kernel's EROFS if possible; needs root. An image behind a URL also needs Linux 6.12
    #[arg(long)]
    pub(super) kernel: bool,
    /// Mount options, as in fstab: ro, allow_other, uid=, gid=, offset=, device=, nosuid, suid, nodev, dev, noexec, fsname=,
    /// verity.roothash=, verity.hashdevice=
    #[arg(short, value_name = "OPTION,...")]
    pub(super) options: Vec<String>,
    /// Serving threads [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX.into()))]
    pub(super) threads: Option<u16>,
    /// Memory for decoded clusters and indexes [default: 48M, at most a quarter of the control group's limit]
    #[arg(long, value_parser = parse_cache, value_name = "BYTES")]
    pub(super) cache: Option<usize>,
    /// Policy for decoding, for measurements: adaptive; commercial or latest, as in the EROFS paper; or one strategy for all
    /// clusters: gathered, buffer, rolling or in-place
    #[arg(long, default_value = "adaptive", value_name = "POLICY", hide = true)]
    pub(super) decode: Policy,
    /// Transport of FUSE requests: dev (/dev/fuse), uring (io_uring), or auto (io_uring if the kernel supports it)
    #[arg(long, default_value = "auto", value_name = "HOW", hide = true)]
    pub(super) transport: Transport,
    /// Keep CPUs out of deep idle states between requests, which costs CPU time but reduces latency where wake-ups are
    /// slow: on, off, or auto (in virtual machines of up to 16 CPUs)
    #[arg(long, default_value = "auto", value_name = "WHEN")]
    pub(super) keep_awake: CpuLatencyMode,
    /// Record which parts of files are read, and write this profile at unmount and on SIGUSR1 (see tuff profile)
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// Decode the hottest parts of this profile at startup and pin them, up to BYTES and half of the cache
    #[arg(long, value_name = "FILE[,BYTES]")]
    pub(super) pin: Option<Pin>,
    #[command(flatten)]
    pub(super) prefetch: PrefetchArgs,
    /// Write the requests to the server of an image behind a URL to this file at unmount and on SIGUSR1, a line of JSON each (see
    /// tuff stats --start)
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Never store the rest of a decoded cluster in the kernel's page cache [default: store it when random reads return to a
    /// cluster]
    #[arg(long, hide = true)]
    pub(super) no_push: bool,
    /// Serve the counters at http://ADDR/metrics in the Prometheus text format; ADDR is a loopback address such as
    /// 127.0.0.1:9000
    #[arg(long, value_name = "ADDR")]
    pub(super) metrics: Option<SocketAddr>,
    /// Append log messages to this file [default: standard error, or the system log in the background]
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// Print how the image is mounted
    #[arg(short, long)]
    pub(super) verbose: bool,
}

fn parse_cache(text: &str) -> std::result::Result<usize, String> {
    let bytes = parse_size(text)?;
    usize::try_from(bytes).map_err(|_| format!("'{text}' is too large"))
}
