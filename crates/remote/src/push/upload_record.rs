//! Record of an unfinished upload to a bucket, by which a later process continues it: the id of the upload and of its parts.
//!
//! The record names the content by its digest. A bucket completes an upload only from parts that it has, so a record that
//! is out of date costs a new upload and never wrong bytes.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use tuff_store::PrivateDir;

/// Longest record that is read: about 100 bytes for each of 10,000 parts. Unit: bytes.
const LEN_MAX: u64 = 8 << 20;

/// Record of one upload. Failures of the disk make it shorter: what it lacks is sent again.
#[derive(Default)]
pub(crate) struct UploadRecord {
    /// Locked file with its directory and name. `None` if nothing is recorded.
    file: Option<(File, PrivateDir, String)>,
    /// Id of the upload.
    pub(crate) upload: Option<String>,
    /// Ids of the parts that the bucket has, by their numbers.
    pub(crate) parts: BTreeMap<u64, String>,
}

impl UploadRecord {
    /// Opens the record `name` in a directory, which is created if it does not exist. Nothing is recorded while another
    /// process uploads the same, or if others can change the directory or the file.
    pub(crate) fn open(dir: &Path, name: &str) -> Self {
        let mut record = Self::default();
        let opened = PrivateDir::open(dir).and_then(|dir| Ok((dir.file(name)?, dir)));
        let opened = opened.ok().filter(|(file, _)| file.try_lock().is_ok());
        let Some((mut file, dir)) = opened else {
            return record;
        };
        let mut text = String::new();
        // A line that was cut off is left out.
        if (&file).take(LEN_MAX).read_to_string(&mut text).is_ok() {
            record.parse(&text);
        }
        if file.seek(SeekFrom::End(0)).is_ok() {
            record.file = Some((file, dir, name.to_owned()));
        }
        record
    }

    fn parse(&mut self, text: &str) {
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            if let Some(upload) = line["upload"].as_str() {
                self.upload = Some(upload.to_owned());
                self.parts.clear();
            }
            if let (Some(number), Some(id)) = (line["part"].as_u64(), line["id"].as_str()) {
                self.parts.insert(number, id.to_owned());
            }
        }
    }

    fn write(&self, line: &Value) {
        if let Some((file, ..)) = &self.file {
            // Without the line, the part is sent again.
            let _ = writeln!(&mut &*file, "{line}");
        }
    }

    /// True if a later process can continue.
    pub(crate) fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Begins a new upload in place of an older one.
    pub(crate) fn begin(&mut self, upload: &str) {
        self.write(&json!({"upload": upload}));
        self.upload = Some(upload.to_owned());
        self.parts.clear();
    }

    /// Adds a part that the bucket has.
    pub(crate) fn add(&mut self, number: u64, id: &str) {
        self.write(&json!({"part": number, "id": id}));
        self.parts.insert(number, id.to_owned());
    }

    /// Removes the record of an upload that is complete.
    pub(crate) fn remove(self) {
        if let Some((_, dir, name)) = self.file {
            // A record that stays is found to be out of date.
            let _ = dir.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};

    #[test]
    fn a_record_survives_its_process_and_a_line_that_is_cut_off() {
        let dir = std::env::temp_dir().join(format!("tuff-record-{}", std::process::id()));
        let mut record = UploadRecord::open(&dir, "r");
        record.begin("old");
        record.add(0, "x");
        record.begin("new");
        record.add(2, "\"etag\"");
        // Another process records nothing meanwhile.
        let other = UploadRecord::open(&dir, "r");
        assert!(!other.is_kept() && other.upload.is_none());
        drop(record);
        let mut file = OpenOptions::new().append(true).open(dir.join("r")).unwrap();
        file.write_all(b"{\"part\":3,\"id\":").unwrap();
        drop(file);
        let record = UploadRecord::open(&dir, "r");
        assert_eq!(record.upload.as_deref(), Some("new"));
        assert_eq!(record.parts, BTreeMap::from([(2, "\"etag\"".to_owned())]));
        record.remove();
        assert!(!dir.join("r").exists());
        // A planted link is neither read nor written.
        let victim = dir.join("victim");
        fs::write(&victim, "{\"upload\":\"planted\"}\n").unwrap();
        std::os::unix::fs::symlink(&victim, dir.join("r")).unwrap();
        let mut record = UploadRecord::open(&dir, "r");
        assert!(!record.is_kept() && record.upload.is_none());
        record.begin("mine");
        assert_eq!(fs::read_to_string(&victim).unwrap().lines().count(), 1);
        fs::remove_dir_all(dir).unwrap();
    }
}
