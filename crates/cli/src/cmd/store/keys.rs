//! Keys of encrypted stores: where they are, and what they open.

use super::objects::{Objects, home};
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use tuff_backup::{KeyFile, Secret, Store, StoreCompression, StoreKey};
use tuff_erofs::{Error, Result};
use zeroize::Zeroizing;

/// Arguments that open encrypted stores.
#[derive(clap::Args, Default)]
pub(in crate::cmd) struct KeyArgs {
    /// Key file of an encrypted store; may be repeated (default: that of the store in ~/.config/tuff/keys)
    #[arg(long, value_name = "FILE")]
    key_file: Vec<PathBuf>,
    /// File whose first line is the password of an encrypted store
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl KeyArgs {
    /// Opens the key of a store: with its key file, the password of a file, or one that is asked for.
    pub(super) fn open(&self, objects: &Objects, store: [u8; 16]) -> Result<StoreKey> {
        let open = |secret| StoreKey::open(&*objects.bucket, store, &secret);
        for path in &self.key_file {
            let file = KeyFile::read(path)?;
            if file.store == store {
                return open(Secret::File(file));
            }
        }
        if let Some(path) = &self.password_file {
            return open(Secret::Password(password_in(path)?));
        }
        if let Some(path) = self.key_file.first() {
            return Err(Error::usage(format_args!(
                "{}: the key of another store than {}",
                path.display(),
                objects.name()
            )));
        }
        let default = directory().map(|dir| dir.join(KeyFile::name(store)));
        match default.filter(|path| path.try_exists().unwrap_or(true)) {
            Some(path) => open(Secret::File(KeyFile::read(&path)?)),
            None => open(Secret::Password(ask(&format!(
                "Password of {}: ",
                objects.name()
            ))?)),
        }
    }

    /// Makes an encrypted store.
    pub(super) fn create(&self, objects: &Objects, compression: StoreCompression) -> Result<()> {
        let password = self.password_file.as_deref().map(password_in).transpose()?;
        let mut write = |file: &KeyFile| {
            let default = || directory().map(|dir| dir.join(KeyFile::name(file.store)));
            let path = self.key_file.first().cloned().or_else(default);
            let none = "HOME is not set; name a place for the key with --key-file";
            let path = path.ok_or_else(|| Error::usage(none))?;
            file.write(&path, &objects.name())?;
            eprintln!(
                "tuff: the key of the store is in {}; keep a copy elsewhere: without it nothing in the store can be read",
                path.display()
            );
            Ok(())
        };
        Store::create_encrypted(&*objects.bucket, compression, password, &mut write)
    }

    /// Refuses a store that is not encrypted where an encrypted one is expected: it may have been replaced, by one that others read.
    pub(super) fn refuse_plain(&self, objects: &Objects) -> Result<()> {
        let name = objects.name();
        if !self.key_file.is_empty() || self.password_file.is_some() {
            return Err(Error::usage(format_args!(
                "{name}: not an encrypted store, although a key is given; --encrypt makes one in an empty place"
            )));
        }
        let keys = directory().map(|dir| KeyFile::of_place(&dir, &name));
        match keys.unwrap_or_default().first() {
            Some(key) => Err(Error::usage(format_args!(
                "{name}: not encrypted, although {} is the key of an encrypted store in this place: it may have been replaced; \
                 move the key elsewhere if this is right",
                key.display()
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a store that is not encrypted with `--encrypt`.
    pub(in crate::cmd) fn compare(&self, path: &Path, encrypt: bool) -> Result<()> {
        if encrypt && Objects::at(path)?.encrypted()?.is_none() {
            return Err(Error::usage(format_args!(
                "{}: the store is not encrypted, and cannot be; copy it into a new one: tuff store copy --encrypt",
                path.display()
            )));
        }
        Ok(())
    }
}

/// Directory of key files.
fn directory() -> Option<PathBuf> {
    home("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("keys"))
}

/// Password in the first line of a file.
pub(super) fn password_in(path: &Path) -> Result<Zeroizing<String>> {
    let text = fs::read_to_string(path).map(Zeroizing::new);
    let text = text.map_err(|e| Error::io(path.display(), "cannot read", e))?;
    let line = text.lines().next().unwrap_or_default().to_owned();
    match line.is_empty() {
        true => Err(Error::usage(format_args!(
            "{}: the first line, which is the password, is empty",
            path.display()
        ))),
        false => Ok(Zeroizing::new(line)),
    }
}

/// Asks for a password on the terminal. Messages must be shown there, too: a program that waits unseen would be taken for a hang.
pub(super) fn ask(prompt: &str) -> Result<Zeroizing<String>> {
    let password = match std::io::stderr().is_terminal() {
        true => rpassword::prompt_password(prompt).ok(),
        false => None,
    };
    password.map(Zeroizing::new).ok_or_else(|| {
        Error::usage("the store is encrypted; name its key with --key-file or --password-file")
    })
}
