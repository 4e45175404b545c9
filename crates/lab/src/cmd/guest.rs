//! `tuff-lab guest`: mounts images in the kernel of a guest.

use super::options::{self, Programs};
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::kernel;
use tuff_lab::guest::{Guest, KERNEL_FOLDER};

/// Mount images in an older kernel, in a virtual machine, and compare every file
///
/// Builds images of random trees: with settings for each feature, and with random settings. A guest
/// mounts them with its own EROFS. Names, content, metadata and attributes of all files must match
/// the source; an image that needs a newer kernel may also be refused. Writes a record and
/// prints its table. Exit code 1 if an outcome is not the expected one. benchmarks/guest-packages
/// installs QEMU and the kernel.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of images with random settings
    #[arg(long, value_name = "N", default_value_t = 48)]
    random: u32,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    programs: Programs,
    /// Folder for the record
    #[arg(long, default_value = "benchmarks/record/guest", value_name = "DIR")]
    records: PathBuf,
}

/// Kernel and folder of a guest.
#[derive(clap::Args)]
pub(crate) struct Machine {
    /// Folder with the unpacked package of the guest's kernel
    #[arg(long, default_value = KERNEL_FOLDER, value_name = "DIR")]
    kernel: PathBuf,
    /// Folder for images and the initramfs
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub(crate) work: PathBuf,
}

impl Machine {
    /// Returns the kernel.
    pub(crate) fn guest(&self) -> Result<Guest> {
        Guest::find(&options::absolute(&self.kernel)?)
    }
}

/// Runs the command. Returns false if an image is mounted wrongly, or not as promised.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let conditions = kernel::Conditions {
        tuff: args.programs.tuff()?,
        guest: args.machine.guest()?,
        random: args.random,
        seed: args.seed,
        work: args.machine.work.clone(),
    };
    let (path, is_right) = record::write(&args.records, "guest", |emit| {
        kernel::run(&conditions, emit)
    })?;
    record::report(&path)?;
    Ok(is_right)
}
