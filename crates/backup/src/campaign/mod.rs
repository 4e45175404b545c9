//! Random campaigns, judged by a walk of the source and by an own count of what snapshots name.
//!
//! * `rounds`: runs on a tree that changes, with kills, a full disk, a wrong clock, files that change while they are read, and a store
//!   that loses writes.
//! * `mounts`: snapshots that the kernel mounts, after many runs and of all packs.
//! * `mutations`: damage of all files of a store, and all that is done with a damaged store.
//!
//! A few cases run by default. `TUFF_ROUNDS` and `TUFF_MUTATIONS` are the numbers of a campaign, `TUFF_SEED` repeats a single seed,
//! or is the first one of several.

mod disk;
mod judge;
mod mounts;
mod mutations;
mod rounds;
mod source;

/// Value of a variable of the environment.
fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// Calls `run` with each seed of a campaign, and names the seed that fails.
fn campaign(count: Option<u64>, usual: u64, run: &dyn Fn(u64)) {
    let seed = setting("TUFF_SEED");
    let number = count.unwrap_or(if seed.is_some() { 1 } else { usual });
    let first = seed.unwrap_or(1);
    for seed in first..first + number {
        let guard = Named(seed);
        run(seed);
        std::mem::forget(guard);
    }
}

/// Says which seed failed.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        println!("TUFF_SEED={} repeats this failure", self.0);
    }
}
