//! Serves one image to many threads: a shared cache of clusters, a session for each thread.

use std::error::Error;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_erofs::serve::{ServeOptions, Server};
use tuff_store::FileStore;

pub(crate) fn read_by_threads(
    image: &str,
    path: &str,
    threads: u64,
) -> Result<u64, Box<dyn Error>> {
    let image = Image::open(FileStore::open(image.as_ref())?, OpenOptions::default())?;
    let server = Server::new(image, ServeOptions::default());
    let inode = server.image().resolve(path.as_bytes())?;
    let share = inode.size().div_ceil(threads);
    let read_share = |n| -> tuff_erofs::Result<u64> {
        let (mut session, mut buf) = (server.session(), vec![0; 64 << 10]);
        let (mut at, end) = (n * share, inode.size().min((n + 1) * share));
        while at < end {
            let len = buf
                .len()
                .min(usize::try_from(end - at).unwrap_or(usize::MAX));
            at += server.read(&mut session, &inode, at, &mut buf[..len])? as u64;
        }
        Ok(end.saturating_sub(n * share))
    };
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|n| scope.spawn(move || read_share(n)))
            .collect();
        let read = started
            .into_iter()
            .map(|thread| thread.join().expect("no thread panics"));
        Ok(read.sum::<tuff_erofs::Result<u64>>()?)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, path] = &args[..] else {
        return Err("usage: serve_threads IMAGE PATH".into());
    };
    println!("{} bytes", read_by_threads(image, path, 4)?);
    Ok(())
}
